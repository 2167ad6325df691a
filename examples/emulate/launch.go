package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"

	"sonicmoe/examples/internal/command"
	"sonicmoe/internal/num"
	"sonicmoe/internal/strict"
	"sonicmoe/ptx"
	"sonicmoe/ptx/emu"
	"sonicmoe/ptx/emu/layout"
)

// launch is the content of LAUNCH.json.
type launch struct {
	// Kernel is the kernel's name: that of the PTX, or its C++ name, with or without template
	// arguments and namespaces. It may be absent if the file has only one kernel.
	Kernel  string `json:"kernel"`
	Grid    [3]int `json:"grid"`    // number of CTAs in each dimension; 0 counts as one
	Block   [3]int `json:"block"`   // in threads
	Cluster [3]int `json:"cluster"` // number of CTAs in each dimension; if all are zero, the shape that the kernel demands
	Shared  int    `json:"shared"`  // dynamic shared memory in bytes
	// Cooperative makes the launch a cooperative launch, whose CTAs may synchronise by
	// grid_group.
	Cooperative bool `json:"cooperative"`
	// Buffers are allocated in global memory. Parameters refer to them by name.
	Buffers map[string]buffer `json:"buffers"`
	// Params are the kernel's parameters in their order.
	Params []param `json:"params"`

	folder string // the folder of the launch file
}

// buffer describes a buffer of 32-bit words.
type buffer struct {
	Words int `json:"words"` // absent if File is given
	// Fill is the initial content, as numbers of type Type: "zero", "ramp" (0, 1, 2 …), "ones"
	// or "normal" (random, but the same in each run). Without Fill all words are 0xffffffff.
	Fill string `json:"fill"`
	// File is a .npy or .safetensors file with the content. A relative path starts at the
	// folder of the launch file. If the file has several tensors, Tensor names one of them.
	File   string `json:"file"`
	Tensor string `json:"tensor"`
	// Type is the type of the numbers: "u32", "f32", "bf16" or "f16".
	Type string `json:"type"`
	// Want is a file with the numbers that the buffer must have after the last run, or its first
	// numbers. WantTensor names a tensor of the file. An element is right if it differs from the
	// wanted one w by at most Tolerance*(1+|w|).
	Want       string  `json:"want"`
	WantTensor string  `json:"want_tensor"`
	Tolerance  float64 `json:"tolerance"`
	// Show is how many numbers are printed after the run.
	Show int `json:"show"`
}

// param is one parameter of the kernel. Exactly one field must be set, not counting Offset.
type param struct {
	Buffer *string    `json:"buffer"` // the address of this buffer
	U32    *uint32    `json:"u32"`
	U64    *uint64    `json:"u64"`
	F32    *float32   `json:"f32"`
	Map    *tensorMap `json:"map"`
	Hex    *string    `json:"hex"` // the parameter's bytes
	// Offset is added to the buffer's address. It is in bytes.
	Offset int64 `json:"offset"`
}

// tensorMap is a TMA descriptor. Dimension 0 is contiguous.
type tensorMap struct {
	Buffer  string   `json:"buffer"`
	Offset  int64    `json:"offset"`  // offset of the tensor in the buffer, in bytes; negative if the tensor begins before it
	Type    string   `json:"type"`    // bf16, f16, f32, u8, u16, u32, s32
	Dims    []uint64 `json:"dims"`    // elements
	Strides []uint64 `json:"strides"` // distances in bytes between neighbours in dimensions 1 and up; absent if the tensor has no gaps
	Box     []uint32 `json:"box"`     // elements
	Swizzle int      `json:"swizzle"` // 0, 32, 64 or 128 bytes
}

func readLaunch(ctx context.Context, file string) (*launch, error) {
	text, err := command.ReadText(ctx, file)
	if err != nil {
		return nil, err
	}
	l := launch{folder: filepath.Dir(file)}
	if err := strict.Decode(text, &l); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return &l, nil
}

// allocate allocates and fills the buffers.
func (l *launch) allocate(ctx context.Context, m *emu.Memory) (map[string]uint64, error) {
	at := map[string]uint64{}
	for _, name := range slices.Sorted(maps.Keys(l.Buffers)) {
		b := l.Buffers[name]
		data, err := b.content(ctx, l.folder, uint64(len(at)))
		if err == nil {
			b.Words = len(data) / 4
			l.Buffers[name] = b
			if at[name], err = m.Alloc(int64(len(data))); err == nil {
				err = m.Write(at[name], data)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("buffer %s: %w", name, err)
		}
	}
	return at, nil
}

// content returns the initial bytes of a buffer.
func (b buffer) content(ctx context.Context, folder string, seed uint64) ([]byte, error) {
	kind, ok := kinds[b.Type]
	switch {
	case !ok:
		return nil, fmt.Errorf("type %q, must be u32, f32, bf16 or f16", b.Type)
	case b.File != "" && b.Fill != "":
		return nil, fmt.Errorf("file %s and fill %s are given, must be one of them", b.File, b.Fill)
	case b.File != "":
		return b.readFile(ctx, folder)
	case b.Tensor != "":
		return nil, fmt.Errorf("tensor %s needs a file", b.Tensor)
	case b.Words < 0 || b.Words > maxFile/4:
		return nil, fmt.Errorf("words is %d, must be 0 to %d", b.Words, maxFile/4)
	}
	data := bytes.Repeat([]byte{0xff}, 4*b.Words)
	if b.Fill == "" {
		return data, nil
	}
	random := rand.New(rand.NewPCG(seed, 0))
	of := map[string]func(i int) float64{"zero": func(int) float64 { return 0 }, "ramp": func(i int) float64 { return float64(i) },
		"ones": func(int) float64 { return 1 }, "normal": func(int) float64 { return random.NormFloat64() }}[b.Fill]
	if of == nil || b.Fill == "normal" && b.Type == "u32" {
		return nil, fmt.Errorf("fill %q of type %s, must be zero, ramp, ones, normal (of f32, bf16, f16) or absent", b.Fill, b.Type)
	}
	le := binary.LittleEndian
	for i := range len(data) / kind.bytes {
		to := data[i*kind.bytes:]
		switch v := of(i); b.Type {
		case "u32":
			le.PutUint32(to, uint32(v))
		case "f32":
			le.PutUint32(to, math.Float32bits(float32(v)))
		case "bf16":
			le.PutUint16(to, num.Float64ToBF16(v))
		case "f16":
			le.PutUint16(to, num.Float64ToF16(v))
		}
	}
	return data, nil
}

// pack returns the launch's parameters in the layout of the kernel.
func (l *launch) pack(want []ptx.Param, at map[string]uint64) ([]byte, error) {
	if len(want) != len(l.Params) {
		return nil, fmt.Errorf("there are %d params, kernel %s takes %d", len(l.Params), l.Kernel, len(want))
	}
	var out []byte
	for i, q := range want {
		value, err := l.Params[i].bytes(at)
		if err == nil && len(value) != q.Bytes {
			err = fmt.Errorf("%d bytes, the kernel takes %d", len(value), q.Bytes)
		}
		if err != nil {
			return nil, fmt.Errorf("param %d, %s: %w", i, q.Name, err)
		}
		out = append(append(out, make([]byte, q.Offset-len(out))...), value...)
	}
	return out, nil
}

func (p param) bytes(at map[string]uint64) ([]byte, error) {
	le := binary.LittleEndian
	switch {
	case p.Buffer != nil:
		a, ok := at[*p.Buffer]
		if !ok {
			return nil, fmt.Errorf("no buffer %q", *p.Buffer)
		}
		return le.AppendUint64(nil, a+uint64(p.Offset)), nil
	case p.U32 != nil:
		return le.AppendUint32(nil, *p.U32), nil
	case p.U64 != nil:
		return le.AppendUint64(nil, *p.U64), nil
	case p.F32 != nil:
		return le.AppendUint32(nil, math.Float32bits(*p.F32)), nil
	case p.Map != nil:
		return p.Map.encode(at)
	case p.Hex != nil:
		return hex.DecodeString(*p.Hex)
	}
	return nil, fmt.Errorf("must be one of buffer, u32, u64, f32, map, hex")
}

var elements = map[string]layout.ElemType{"bf16": layout.ElemBF16, "f16": layout.ElemF16, "f32": layout.ElemF32,
	"u8": layout.ElemU8, "u16": layout.ElemU16, "u32": layout.ElemU32, "s32": layout.ElemS32}

var swizzles = map[int]layout.Swizzle{0: layout.SwizzleNone, 32: layout.Swizzle32, 64: layout.Swizzle64, 128: layout.Swizzle128}

func (t *tensorMap) encode(at map[string]uint64) ([]byte, error) {
	m := layout.TensorMap{Rank: len(t.Dims)}
	var ok [3]bool
	m.Elem, ok[0] = elements[t.Type]
	m.Swizzle, ok[1] = swizzles[t.Swizzle]
	m.Address, ok[2] = at[t.Buffer]
	switch {
	case !ok[0]:
		return nil, fmt.Errorf("map of type %q, must be one of bf16, f16, f32, u8, u16, u32, s32", t.Type)
	case !ok[1]:
		return nil, fmt.Errorf("map with swizzle %d, must be 0, 32, 64 or 128", t.Swizzle)
	case !ok[2]:
		return nil, fmt.Errorf("no buffer %q", t.Buffer)
	case m.Rank < 1 || m.Rank > 5 || len(t.Box) != m.Rank || len(t.Strides) > 0 && len(t.Strides) != m.Rank-1:
		return nil, fmt.Errorf("map with %d dims, %d box and %d strides: one to five dims, as many box, one stride less or none", m.Rank, len(t.Box), len(t.Strides))
	}
	m.Address += uint64(t.Offset)
	copy(m.Dims[:], t.Dims)
	copy(m.Box[:], t.Box)
	copy(m.Strides[:], t.Strides)
	if len(t.Strides) == 0 {
		bytes := uint64(m.Elem.Bytes())
		for i := range m.Rank - 1 {
			bytes *= t.Dims[i]
			m.Strides[i] = bytes
		}
	}
	if err := m.Check(); err != nil {
		return nil, err
	}
	b := m.Encode()
	return b[:], nil
}

// show prints the first numbers of each buffer that has Show.
func (l *launch) show(w io.Writer, m *emu.Memory, at map[string]uint64) error {
	for _, name := range slices.Sorted(maps.Keys(l.Buffers)) {
		b := l.Buffers[name]
		if b.Show < 1 {
			continue
		}
		size := kinds[b.Type].bytes
		data := make([]byte, min(size*b.Show, 4*b.Words))
		if err := m.Read(data, at[name]); err != nil {
			return err
		}
		fmt.Fprintf(w, "%s:", name)
		for i := 0; i < len(data); i += size {
			fmt.Fprint(w, " "+b.text(b.number(data[i:])))
		}
		fmt.Fprintln(w)
	}
	return nil
}
