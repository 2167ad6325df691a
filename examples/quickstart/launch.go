package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/examples/internal/command"
	"sonicmoe/internal/disk"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
	"sonicmoe/moe/checkpoint/safetensors"
	"sonicmoe/ptx"
	"sonicmoe/ptx/emu/layout"
)

// recorder is a device that records its allocations, and the launch of one kernel with the
// memory before the launch.
type recorder struct {
	gpu.Device
	all    []region // all allocations so far, in order
	kernel string   // name of the kernel whose launch is recorded
	names  []string // the kernels launched before the recorded one

	launch *gpu.Launch
	params []byte
	memory []region // with the content before the recorded launch
}

// region is an allocation. bytes is its content before the launch. The launch file also lists
// freed regions, without content, so that all regions keep their distances. A tensor map needs
// this, because its base address may lie in an earlier allocation.
type region struct {
	at    driver.DevicePtr
	size  int64
	freed bool
	bytes []byte
}

func (r *recorder) Alloc(bytes int64) (driver.DevicePtr, error) {
	p, err := r.Device.Alloc(bytes)
	if err == nil {
		r.all = append(r.all, region{at: p, size: bytes})
	}
	return p, err
}

func (r *recorder) Free(p driver.DevicePtr) error {
	for i := range r.all {
		r.all[i].freed = r.all[i].freed || r.all[i].at == p
	}
	return r.Device.Free(p)
}

func (r *recorder) NewStream() (driver.Stream, error) {
	s, err := r.Device.NewStream()
	if err != nil {
		return nil, err
	}
	return recorded{s.(gpu.Stream), r}, nil
}

// recorded is a stream of a recorder, which records launches.
type recorded struct {
	gpu.Stream
	r *recorder
}

func (s recorded) Launch(f gpu.Function, l *gpu.Launch, params []byte) error {
	if r := s.r; len(r.names) > 0 && r.names[len(r.names)-1] == r.kernel && r.launch == nil {
		at := *l
		r.launch, r.params = &at, slices.Clone(params)
		r.memory = slices.Clone(r.all)
		for i := range r.memory {
			x := &r.memory[i]
			x.bytes = make([]byte, (x.size+3)/4*4)
			if x.freed {
				continue
			}
			if err := s.CopyToHost(x.bytes[:x.size], x.at); err != nil {
				return err
			}
		}
	}
	return s.Stream.Launch(f, l, params)
}

// record writes the launch of a kernel in a forward pass for the command emulate. It writes
// FILE.json, FILE.ptx with the kernel, and FILE.safetensors with the memory before the launch.
func (j *job) record(kernel, file string) (err error) {
	if j.gpu || filepath.Ext(file) != ".json" {
		return command.Usagef("-launch %s: must end in .json, and the device be emulated", file)
	}
	inner, err := gpu.Of(j.dev)
	if err != nil {
		return err
	}
	var launched []string
	// The kernels for large batches are launched only by a layer without small-batch kernels,
	// and the kernels of inference only by a layer without backward.
	for _, options := range [][]moe.Option{nil, {moe.WithoutBackward()}, {moe.WithoutDecode()}, {moe.WithoutDecode(), moe.WithoutBackward()}} {
		r := &recorder{Device: inner, kernel: kernel}
		l, err := moe.New(j.ctx, r, j.row.Config, append(options, moe.WithLogger(j.log), moe.WithCache(j.openCache(j.dir)))...)
		if err != nil {
			return err
		}
		if !slices.Contains(l.Kernels(), kernel) && len(options) > 0 {
			continue
		}
		text, err := l.Listing(kernel)
		if err != nil {
			return err
		}
		if err := j.forwardOn(r, l); err != nil {
			return err
		}
		if r.launch != nil {
			return r.write(j.out, text, file)
		}
		for _, name := range r.names {
			if !slices.Contains(launched, name) {
				launched = append(launched, name)
			}
		}
	}
	return fmt.Errorf("forward passes of %d tokens launch %s, not %s: -tokens may choose another", j.row.Tokens, strings.Join(launched, ", "), kernel)
}

// forwardOn runs a forward pass on random tensors.
func (j *job) forwardOn(r *recorder, l *moe.Layer) error {
	s, err := r.NewStream()
	if err != nil {
		return err
	}
	defer s.Close()
	memory := moe.NewArena(r)
	defer memory.Free()
	f := memory.ForwardArgs(l, j.row.Tokens)
	f.Weights, f.Workspace = memory.Weights(l), memory.Workspace(j.row.Tokens, l)
	if err := memory.Err(); err != nil {
		return err
	}
	x, w := trial.Draw(j.row.Config, j.row.Tokens, 1, j.boost)
	if err := moe.Write(s, f.X, x); err != nil {
		return err
	}
	for _, id := range moe.WeightIDs() {
		if t := *f.Weight(id); !t.IsZero() {
			if err := moe.Write(s, t, *w.Bits(id)); err != nil {
				return err
			}
		}
	}
	call := l.NewCall()
	call.Observe(func(kernel string, _ driver.Stream) error {
		r.names = append(r.names, kernel)
		return nil
	})
	if err := call.Forward(s, f); err != nil {
		return err
	}
	return l.Explain(s.Synchronize(j.ctx))
}

// write writes the three files of the launch.
func (r *recorder) write(out io.Writer, text []byte, file string) error {
	module, err := ptx.Parse(text)
	if err != nil {
		return err
	}
	kernel := module.Entries[0]
	base := strings.TrimSuffix(file, ".json")
	buffers := map[string]any{}
	var tensors []safetensors.Source
	for i, x := range r.memory {
		buffer := memoryName(i)
		if x.freed {
			buffers[buffer] = map[string]any{"type": "u32", "words": len(x.bytes) / 4}
			continue
		}
		buffers[buffer] = map[string]any{"type": "u32", "file": filepath.Base(base) + ".safetensors", "tensor": buffer}
		tensors = append(tensors, safetensors.Source{Name: buffer, DType: "U32", Shape: []int64{int64(len(x.bytes) / 4)}, Data: bytes.NewReader(x.bytes)})
	}
	var params []any
	for _, p := range kernel.Params {
		v, err := r.param(p)
		if err != nil {
			return err
		}
		params = append(params, v)
	}
	d := func(d gpu.Dim3) [3]int { return [3]int{d.X, d.Y, d.Z} }
	launch, err := json.MarshalIndent(map[string]any{"kernel": kernel.Name, "grid": d(r.launch.Grid), "block": d(r.launch.Block), "cluster": d(r.launch.Cluster),
		"shared": r.launch.SharedBytes, "buffers": buffers, "params": params}, "", "\t")
	if err != nil {
		return err
	}
	for _, f := range []struct {
		path  string
		write func(io.Writer) error
	}{
		{base + ".ptx", func(w io.Writer) error { _, err := w.Write(text); return err }},
		{base + ".safetensors", func(w io.Writer) error { return safetensors.Write(w, nil, tensors...) }},
		{file, func(w io.Writer) error { _, err := w.Write(append(launch, '\n')); return err }},
	} {
		if err := disk.WriteFile(disk.OS, f.path, 0o644, f.write); err != nil {
			return err
		}
		fmt.Fprintln(out, "wrote", f.path)
	}
	fmt.Fprintf(out, "go run ./examples/emulate -ptx %s.ptx -launch %s\n", base, file)
	return nil
}

// memoryName returns the name of an allocation. The command emulate allocates in the order of
// the names.
func memoryName(i int) string { return fmt.Sprintf("memory%03d", i) }

// buffer returns the name of the allocation that contains an address, and the offset in it.
func (r *recorder) buffer(address uint64) (name string, offset int64, ok bool) {
	for i, x := range r.memory {
		if d := int64(address) - int64(x.at); d >= 0 && d < max(x.size, 1) {
			return memoryName(i), d, true
		}
	}
	return "", 0, false
}

// elements and swizzles map values of tensor maps to the words of launch files.
var (
	elements = map[layout.ElemType]string{layout.ElemBF16: "bf16", layout.ElemF16: "f16", layout.ElemF32: "f32", layout.ElemU8: "u8", layout.ElemU16: "u16", layout.ElemU32: "u32", layout.ElemS32: "s32"}
	swizzles = map[layout.Swizzle]int{layout.SwizzleNone: 0, layout.Swizzle32: 32, layout.Swizzle64: 64, layout.Swizzle128: 128}
)

// param returns the value of a parameter in the form of the launch file.
func (r *recorder) param(p ptx.Param) (any, error) {
	raw := r.params[p.Offset:][:p.Bytes]
	switch p.Bytes {
	case 4:
		return map[string]any{"u32": binary.LittleEndian.Uint32(raw)}, nil
	case 8:
		v := binary.LittleEndian.Uint64(raw)
		if name, offset, ok := r.buffer(v); ok {
			return map[string]any{"buffer": name, "offset": offset}, nil
		}
		return map[string]any{"u64": v}, nil
	case layout.TensorMapBytes:
		m, err := layout.DecodeTensorMap(raw)
		if err != nil {
			break // a parameter that this launch does not use
		}
		// The address need not lie in an allocation. Any allocation can then be the base,
		// because all keep their distances.
		name, offset := memoryName(0), int64(m.Address)-int64(r.memory[0].at)
		if inside, d, ok := r.buffer(m.Address); ok {
			name, offset = inside, d
		}
		return map[string]any{"map": map[string]any{"buffer": name, "offset": offset, "type": elements[m.Elem], "dims": m.Dims[:m.Rank], "strides": m.Strides[:m.Rank-1],
			"box": m.Box[:m.Rank], "swizzle": swizzles[m.Swizzle]}}, nil
	}
	return map[string]any{"hex": hex.EncodeToString(raw)}, nil
}
