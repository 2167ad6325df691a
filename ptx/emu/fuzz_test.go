package emu

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"
)

// FuzzLoad loads and runs arbitrary text. The result must be an error, a fault or success, never a
// panic or a launch that outlasts its context. A second run must give the same fault and the same
// memory.
func FuzzLoad(f *testing.F) {
	f.Add([]byte(body("")), uint8(0))
	f.Add([]byte(body("ld.param.u64 %d0, [out];\nmov.u32 %r0, %tid.x;\nmul.wide.u32 %d1, %r0, 4;\nadd.u64 %d0, %d0, %d1;\nst.global.u32 [%d0], %r0;\n")), uint8(1))
	f.Add([]byte(body("mov.u32 %r0, smem;\nst.shared.u32 [%r0], 1;\nbar.sync 0;\nld.shared.u32 %r1, [%r0+4];\n")), uint8(2))
	f.Add([]byte(body("mov.u32 %r0, smem;\nmbarrier.init.shared.b64 [%r0], 1;\nagain:\nmbarrier.try_wait.parity.shared.b64 %p0, [%r0], 0;\n@!%p0 bra again;\n")), uint8(0))
	f.Add([]byte(body("mov.u32 %r0, 1;\nagain:\nadd.u32 %r0, %r0, 1;\nsetp.lt.u32 %p0, %r0, 9;\n@%p0 bra again;\nshfl.sync.bfly.b32 %r1, %r0, 1, 31, -1;\n")), uint8(1))
	f.Fuzz(func(t *testing.T, text []byte, timing uint8) {
		m, err := Load(text)
		if err != nil {
			return
		}
		k, err := m.Kernel("k")
		if err != nil {
			return
		}
		ticks := bytes.Contains(text, []byte("clock")) || bytes.Contains(text, []byte("globaltimer"))
		var first string
		for try := range 2 {
			mem := NewMemory(1 << 20)
			at, err := mem.Alloc(4096)
			if err != nil {
				t.Fatal(err)
			}
			params := make([]byte, k.ParamBytes())
			for i := range params {
				params[i] = byte(at >> (8 * (i % 8)))
			}
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			begun := time.Now()
			err = k.Launch(ctx, mem, Launch{Grid: k.Cluster(), Block: [3]int{min(64, k.MaxThreads())}, SharedBytes: 1 << 10,
				Params: params, Timing: Timing(timing % 3), Parallel: 1, SpinLimit: 1 << 10, HostBytes: 64 << 20})
			cancel()
			if took := time.Since(begun); took > 30*time.Second {
				t.Fatalf("ended %v after it began", took)
			}
			if errors.Is(err, context.DeadlineExceeded) {
				return
			}
			got := make([]byte, 4096)
			if err := mem.Read(got, at); err != nil {
				t.Fatal(err)
			}
			now := string(got)
			if err != nil {
				now += err.Error()
			}
			if try == 1 && now != first && !ticks {
				t.Fatalf("other results on the second run: %v", err)
			}
			first = now
		}
	})
}
