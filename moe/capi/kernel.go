//go:build cgo

package main

// #define SONICMOE_TYPES_ONLY
// #include "sonicmoe.h"
import "C"

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unsafe"

	"sonicmoe/internal/strict"
	"sonicmoe/moe"
	"sonicmoe/ptx"
	"sonicmoe/ptx/emu"
	"sonicmoe/ptx/emu/layout"
)

// kernelRun is the JSON form of the first argument of sm_check_kernel.
type kernelRun struct {
	PTX         string      `json:"ptx"`
	Kernel      string      `json:"kernel"` // "" if the PTX has one kernel
	Grid        [3]int      `json:"grid"`
	Block       [3]int      `json:"block"`
	Cluster     [3]int      `json:"cluster"`
	Shared      int         `json:"shared"`
	Cooperative bool        `json:"cooperative"`
	Buffers     []int       `json:"buffers"` // the bytes of each buffer
	Args        []kernelArg `json:"args"`
	Pad         bool        `json:"pad"` // missing last arguments are 0
	// Check is the number of random orders in addition to the earliest and the latest. 0 runs the
	// earliest order alone, and looks for no races.
	Check   int      `json:"check"`
	Explore int      `json:"explore"`
	Keep    bool     `json:"keep"`
	Strict  bool     `json:"strict"`
	NaN     bool     `json:"nan"`
	Seed    uint64   `json:"seed"`
	Known   []string `json:"known"` // findings to leave out: "LINE RULE"
}

// kernelArg is an argument of a kernel. One field must be set, not counting Offset.
type kernelArg struct {
	Buffer *int       `json:"buffer"` // the number of a buffer, whose address is the argument
	Offset int64      `json:"offset"` // bytes, added to the buffer's address
	Int    *int64     `json:"int"`
	Float  *float64   `json:"float"`
	Hex    *string    `json:"hex"` // the argument's bytes
	Map    *kernelMap `json:"map"`
}

// kernelMap is a tensor map. Dimension 0 is contiguous.
type kernelMap struct {
	Buffer  int      `json:"buffer"`
	Offset  int64    `json:"offset"`
	Type    string   `json:"type"`
	Dims    []uint64 `json:"dims"`
	Strides []uint64 `json:"strides"` // bytes between neighbours in dimension 1 and up
	Box     []uint32 `json:"box"`
	Swizzle int      `json:"swizzle"` // bytes: 0, 32, 64 or 128
}

// kernelFinding is the JSON form of a finding.
type kernelFinding struct {
	Severity string `json:"severity"`
	Rule     string `json:"rule"`
	Kernel   string `json:"kernel"`
	Line     int    `json:"line"`
	Where    string `json:"where"`
	CTA      [3]int `json:"cta"`
	Warp     int    `json:"warp"`
	Lanes    uint32 `json:"lanes"`
	Text     string `json:"text"`
	Timing   string `json:"timing"`
	Seed     uint64 `json:"seed"`
	Choices  string `json:"choices"`
	Runs     int    `json:"runs"`
}

//export sm_go_check_kernel
func sm_go_check_kernel(run *C.char, buffers *unsafe.Pointer, report *C.char, bytes C.int64_t) C.sm_status {
	return guarded(func() error {
		if run == nil || report == nil || bytes < 1 {
			return &moe.ArgError{Field: "run or report", Got: "NULL or no bytes", Want: "addresses and room for the report"}
		}
		var r kernelRun
		if err := strict.Decode([]byte(C.GoString(run)), &r); err != nil {
			return &moe.ArgError{Field: "run", Got: err.Error(), Want: "the JSON text of a launch"}
		}
		host := make([][]byte, len(r.Buffers))
		for i, n := range r.Buffers {
			at := unsafe.Slice(buffers, len(r.Buffers))[i]
			if n < 1 || at == nil {
				return &moe.ArgError{Field: fmt.Sprintf("buffer %d", i), Got: fmt.Sprintf("%d bytes at %p", n, at), Want: "one byte at least"}
			}
			host[i] = unsafe.Slice((*byte)(at), n)
		}
		text, err := r.run(host)
		if err != nil {
			return err
		}
		if len(text) >= int(bytes) {
			return &moe.ArgError{Field: "report", Got: fmt.Sprintf("room for %d bytes", bytes), Want: fmt.Sprintf("%d", len(text)+1)}
		}
		to := unsafe.Slice((*byte)(unsafe.Pointer(report)), bytes)
		to[copy(to, text)] = 0
		return nil
	})
}

// wrongRun returns the error for a wrong field of a launch.
func wrongRun(field, format string, args ...any) error {
	return &moe.ArgError{Field: field, Got: fmt.Sprintf(format, args...), Want: "what the comment of sm_check_kernel in sonicmoe.h describes"}
}

// run runs the kernel on copies of the buffers, writes the results back and returns the report.
func (r *kernelRun) run(host [][]byte) ([]byte, error) {
	if r.Check < 0 || r.Explore < 0 || r.Check > 0 && r.Explore > 0 {
		return nil, wrongRun("check or explore", "%d and %d", r.Check, r.Explore)
	}
	m, err := emu.Load([]byte(r.PTX))
	if err != nil {
		return nil, wrongRun("ptx", "%v", err)
	}
	k, err := r.kernel(m)
	if err != nil {
		return nil, err
	}
	mem := emu.NewMemory(math.MaxInt64)
	at := make([]uint64, len(host))
	for i, b := range host {
		if at[i], err = mem.Alloc(int64(len(b))); err == nil {
			err = mem.Write(at[i], b)
		}
		if err != nil {
			return nil, err
		}
	}
	params, err := r.pack(k.Params(), at)
	if err != nil {
		return nil, err
	}
	var printed strings.Builder
	l := emu.Launch{Grid: r.Grid, Block: r.Block, Cluster: r.Cluster, SharedBytes: r.Shared, Cooperative: r.Cooperative, Params: params, Seed: r.Seed,
		StrictProxy: r.Strict, NaNs: r.NaN, Unread: true, Print: func(text string) { printed.WriteString(text) },
		Known: func(f *emu.Fault) bool { return slices.Contains(r.Known, fmt.Sprintf("%d %v", f.Line, f.Kind)) },
		GoOn:  func(f *emu.Fault) bool { return r.Keep || f.Severity == emu.Note }}
	ctx := context.Background()
	switch {
	case r.Explore > 0:
		_, err = k.Explore(ctx, mem, l, r.Explore)
	case r.Check > 0:
		err = k.Check(ctx, mem, l, r.Check)
	default:
		err = k.Once(ctx, mem, l)
	}
	var found *emu.Findings
	if err != nil && !errors.As(err, &found) {
		return nil, wrongRun("launch", "%v", err)
	}
	for i, b := range host {
		if err := mem.Read(b, at[i]); err != nil {
			return nil, err
		}
	}
	list := []kernelFinding{}
	if found != nil {
		for _, x := range found.List {
			list = append(list, kernelFinding{x.Severity.String(), x.Kind.String(), x.Kernel, x.Line, x.Where, x.CTA, x.Warp, x.Lanes, x.Text, x.Timing.String(), x.Seed, x.Choices, x.Runs})
		}
	}
	return json.Marshal(map[string]any{"findings": list, "printed": printed.String()})
}

// kernel returns the kernel with the given name, or the only one of the module.
func (r *kernelRun) kernel(m *emu.Module) (*emu.Kernel, error) {
	name, names := r.Kernel, m.Kernels()
	if name == "" && len(names) == 1 {
		name = names[0]
	}
	k, err := m.Kernel(name)
	if err != nil {
		return nil, wrongRun("kernel", "%q, the PTX has %q", name, names)
	}
	return k, nil
}

// pack returns the packed parameters.
func (r *kernelRun) pack(want []ptx.Param, at []uint64) ([]byte, error) {
	if len(r.Args) > len(want) || len(r.Args) < len(want) && !r.Pad {
		return nil, wrongRun("args", "%d, the kernel takes %d", len(r.Args), len(want))
	}
	var out []byte
	for i, q := range want {
		value := make([]byte, q.Bytes)
		if i < len(r.Args) {
			var err error
			if value, err = r.Args[i].bytes(q.Bytes, at); err != nil {
				return nil, wrongRun(fmt.Sprintf("argument %d, %s of %d bytes", i, q.Name, q.Bytes), "%v", err)
			}
		}
		out = append(append(out, make([]byte, q.Offset-len(out))...), value...)
	}
	return out, nil
}

// bytes returns the argument as a parameter of n bytes.
func (a *kernelArg) bytes(n int, at []uint64) (b []byte, err error) {
	le := binary.LittleEndian
	address := func(buffer int, offset int64) (uint64, error) {
		if buffer < 0 || buffer >= len(at) {
			return 0, fmt.Errorf("buffer %d, must be one of %d buffers, numbered from 0", buffer, len(at))
		}
		return at[buffer] + uint64(offset), nil
	}
	switch {
	case a.Buffer != nil:
		p, err := address(*a.Buffer, a.Offset)
		if err != nil {
			return nil, err
		}
		b = le.AppendUint64(nil, p)
	case a.Int != nil && n <= 8:
		if v := *a.Int; n < 8 && (v < -1<<(8*n-1) || v >= 1<<(8*n)) {
			return nil, fmt.Errorf("%d does not fit in %d bytes", v, n)
		}
		b = le.AppendUint64(nil, uint64(*a.Int))[:n]
	case a.Float != nil && n == 4:
		b = le.AppendUint32(nil, math.Float32bits(float32(*a.Float)))
	case a.Float != nil && n == 8:
		b = le.AppendUint64(nil, math.Float64bits(*a.Float))
	case a.Hex != nil:
		if b, err = hex.DecodeString(*a.Hex); err != nil {
			return nil, err
		}
	case a.Map != nil:
		p, err := address(a.Map.Buffer, a.Map.Offset)
		if err != nil {
			return nil, err
		}
		if b, err = a.Map.encode(p); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("got a value that does not fill %d bytes, want a buffer, hex, map, an int of up to 8 bytes, or a float of 4 or 8 bytes", n)
	}
	if len(b) != n {
		return nil, fmt.Errorf("%d bytes, must be %d", len(b), n)
	}
	return b, nil
}

var mapTypes = map[string]layout.ElemType{"bf16": layout.ElemBF16, "f16": layout.ElemF16, "f32": layout.ElemF32,
	"u8": layout.ElemU8, "u16": layout.ElemU16, "u32": layout.ElemU32, "s32": layout.ElemS32}

var mapSwizzles = map[int]layout.Swizzle{0: layout.SwizzleNone, 32: layout.Swizzle32, 64: layout.Swizzle64, 128: layout.Swizzle128}

func (t *kernelMap) encode(at uint64) ([]byte, error) {
	swizzle, ok := mapSwizzles[t.Swizzle]
	m := layout.TensorMap{Elem: mapTypes[t.Type], Rank: len(t.Dims), Address: at, Swizzle: swizzle}
	if !ok || m.Rank < 1 || m.Rank > 5 || len(t.Box) != m.Rank || len(t.Strides) != m.Rank-1 {
		return nil, fmt.Errorf("map with swizzle %d, %d dims, %d strides and %d extents of the box: want swizzle 0, 32, 64 or 128, one to five dims, one stride fewer, and as many extents of the box as dims", t.Swizzle, len(t.Dims), len(t.Strides), len(t.Box))
	}
	copy(m.Dims[:], t.Dims)
	copy(m.Strides[:], t.Strides)
	copy(m.Box[:], t.Box)
	if err := m.Check(); err != nil {
		return nil, err
	}
	b := m.Encode()
	return b[:], nil
}
