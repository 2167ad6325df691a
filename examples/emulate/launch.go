package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"

	"sonicmoe/examples/internal/command"
	"sonicmoe/ptx"
	"sonicmoe/ptx/emu"
	"sonicmoe/ptx/emu/layout"
)

// launch is the content of LAUNCH.json.
type launch struct {
	Kernel  string `json:"kernel"`
	Grid    [3]int `json:"grid"`    // number of CTAs in each dimension; 0 counts as one
	Block   [3]int `json:"block"`   // in threads
	Cluster [3]int `json:"cluster"` // number of CTAs in each dimension; all zeros: the shape that the kernel demands
	Shared  int    `json:"shared"`  // dynamic shared memory in bytes
	// Cooperative makes the launch a cooperative launch, whose CTAs may synchronise by grid_group.
	Cooperative bool `json:"cooperative"`
	// Buffers are allocated in global memory, each by its name.
	Buffers map[string]buffer `json:"buffers"`
	// Params are the kernel's parameters in their order.
	Params []param `json:"params"`
}

// buffer is words of 32 bits.
type buffer struct {
	Words int `json:"words"`
	// Fill is "zero", "ramp" (0, 1, 2 …) or "ones", as numbers of Type, "u32" or "f32".
	// Without it all words are 0xffffffff.
	Fill string `json:"fill"`
	Type string `json:"type"`
	// Show is the number of words to print after the run.
	Show int `json:"show"`
}

// param is one parameter of the kernel. Exactly one field must be set.
type param struct {
	Buffer *string    `json:"buffer"`
	U32    *uint32    `json:"u32"`
	U64    *uint64    `json:"u64"`
	F32    *float32   `json:"f32"`
	Map    *tensorMap `json:"map"`
}

// tensorMap is a TMA descriptor. Dimension 0 is contiguous.
type tensorMap struct {
	Buffer  string   `json:"buffer"`
	Type    string   `json:"type"`    // bf16, f16, f32, u8, u16, u32, s32
	Dims    []uint64 `json:"dims"`    // elements
	Strides []uint64 `json:"strides"` // distances in bytes between neighbours in dimensions 1 and up; absent if the tensor is packed
	Box     []uint32 `json:"box"`     // elements
	Swizzle int      `json:"swizzle"` // 0, 32, 64 or 128 bytes
}

func readLaunch(ctx context.Context, file string) (*launch, error) {
	text, err := command.ReadText(ctx, file)
	if err != nil {
		return nil, err
	}
	var l launch
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return &l, nil
}

// allocate allocates and fills the buffers.
func (l *launch) allocate(m *emu.Memory) (map[string]uint64, error) {
	at := map[string]uint64{}
	for name, b := range l.Buffers {
		a, err := m.Alloc(4 * int64(b.Words))
		if err != nil {
			return nil, fmt.Errorf("buffer %s: %w", name, err)
		}
		at[name] = a
		words := make([]byte, 4*b.Words)
		for i := range b.Words {
			v, err := b.value(i)
			if err != nil {
				return nil, fmt.Errorf("buffer %s: %w", name, err)
			}
			binary.LittleEndian.PutUint32(words[4*i:], v)
		}
		if err := m.Write(a, words); err != nil {
			return nil, err
		}
	}
	return at, nil
}

// value returns word i of a new buffer.
func (b buffer) value(i int) (uint32, error) {
	number := map[string]int{"zero": 0, "ramp": i, "ones": 1}
	n, ok := number[b.Fill]
	switch {
	case b.Type != "u32" && b.Type != "f32":
		return 0, fmt.Errorf("type %q, must be u32 or f32", b.Type)
	case b.Fill == "":
		return math.MaxUint32, nil
	case !ok:
		return 0, fmt.Errorf("fill %q, must be zero, ramp, ones or absent", b.Fill)
	case b.Type == "f32":
		return math.Float32bits(float32(n)), nil
	}
	return uint32(n), nil
}

// pack returns the parameters in the kernel's layout.
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
		return le.AppendUint64(nil, a), nil
	case p.U32 != nil:
		return le.AppendUint32(nil, *p.U32), nil
	case p.U64 != nil:
		return le.AppendUint64(nil, *p.U64), nil
	case p.F32 != nil:
		return le.AppendUint32(nil, math.Float32bits(*p.F32)), nil
	case p.Map != nil:
		return p.Map.encode(at)
	}
	return nil, fmt.Errorf("must be one of buffer, u32, u64, f32, map")
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

// show prints the first words of buffers with Show.
func (l *launch) show(w io.Writer, m *emu.Memory, at map[string]uint64) error {
	var names []string
	for name := range l.Buffers {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		b := l.Buffers[name]
		if b.Show < 1 {
			continue
		}
		words := make([]byte, 4*min(b.Show, b.Words))
		if err := m.Read(words, at[name]); err != nil {
			return err
		}
		fmt.Fprintf(w, "%s:", name)
		for i := 0; i < len(words); i += 4 {
			v := binary.LittleEndian.Uint32(words[i:])
			if b.Type == "f32" {
				fmt.Fprintf(w, " %g", math.Float32frombits(v))
			} else {
				fmt.Fprintf(w, " %d", v)
			}
		}
		fmt.Fprintln(w)
	}
	return nil
}
