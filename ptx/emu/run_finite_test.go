package emu

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestNaNs checks that the first NaN or infinity is noted at the instruction that makes it or the
// load that reads it, and not at later instructions that use it.
func TestNaNs(t *testing.T) {
	const numbers = "mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0fFF7FFFFF; mov.f32 %f0, 0f00000000;\n"
	big, nan, inf := uint32(0x7f7fffff), uint32(0x7fc00000), math.Float32bits(float32(math.Inf(1)))
	for name, c := range map[string]struct {
		code string
		in   uint32
		says string // text of the note; "" means that there is none
	}{
		"finite":                 {numbers + "fma.rn.f32 %f3, %f1, %f2, %f0;", 0, ""},
		"division by zero":       {numbers + "div.rn.f32 %f3, %f1, %f0; // here\n mul.rn.f32 %f3, %f3, %f0;", 0, `div.*makes \+Inf`},
		"overflow":               {numbers + "mul.rn.f32 %f3, %f2, %f2; // here\n sub.rn.f32 %f3, %f3, %f3;", 0, `mul.*makes \+Inf`},
		"a NaN in place":         {numbers + "sqrt.rn.f32 %f2, %f2; // here\n add.rn.f32 %f2, %f2, %f1;", 0, `sqrt.*makes NaN`},
		"an infinity on purpose": {numbers + "mov.f32 %f3, 0fFF800000; max.f32 %f3, %f3, %f1; add.rn.f32 %f3, %f3, %f1;", 0, ""},
		"a loaded NaN":           {"ld.param.u64 %d0, [out]; ld.global.f32 %f0, [%d0]; // here\n add.rn.f32 %f0, %f0, %f0;", nan, "ld.*reads NaN"},
		"a loaded infinity":      {"ld.param.u64 %d0, [out]; ld.global.f32 %f0, [%d0]; add.rn.f32 %f0, %f0, %f0;", inf, ""},
		"untyped":                {"ld.param.u64 %d0, [out]; ld.global.b32 %r0, [%d0];", nan, ""},
		"halves":                 {"mov.b32 %r0, 0x7bff0000; add.rn.f16x2 %r1, %r0, %r0; // here", 0, `add.*makes \+Inf`},
		"a conversion":           {"ld.param.u64 %d0, [out]; ld.global.f32 %f0, [%d0]; cvt.rn.f16.f32 %h0, %f0; // here", big, `cvt.*makes \+Inf`},
		"some lanes":             {numbers + "mov.u32 %r0, %laneid; setp.eq.u32 %p0, %r0, 5; selp.f32 %f4, %f0, %f1, %p0; rcp.rn.f32 %f3, %f4; // here", 0, `rcp.*makes \+Inf`},
	} {
		t.Run(name, func(t *testing.T) {
			text := body(c.code)
			p := assemble(t, text, "k")
			p.params(p.u32s(c.in), 0)
			var notes []*Fault
			p.launch.NaNs, p.launch.GoOn = true, func(f *Fault) bool { notes = append(notes, f); return true }
			require.NoError(t, p.run())
			if c.says == "" {
				require.Empty(t, notes)
				return
			}
			require.Len(t, notes, 1)
			requireFault(t, notes[0], NotFinite, text, "// here")
			assert.Equal(t, Note, notes[0].Severity)
			assert.Regexp(t, c.says, notes[0].Text)
			if name == "some lanes" {
				assert.Equal(t, uint32(1<<5), notes[0].Lanes)
			}
			p.launch.NaNs = false
			require.NoError(t, p.run())
			assert.Len(t, notes, 1, "not looked for")
		})
	}
}

// TestNaNsOfProducts checks that a NaN that an operand of wgmma brings into the sums is noted at
// the line of the wgmma.
func TestNaNsOfProducts(t *testing.T) {
	for _, bad := range []bool{false, true} {
		g := gemm{n: 64, stages: 2}
		p := g.build(t)
		g.arguments(p, 4)
		if bad {
			require.NoError(t, p.mem.Write((*p.mem.allocs.Load())[0].base+300, []byte{0xc0, 0x7f}))
		}
		var notes []*Fault
		p.launch.NaNs, p.launch.GoOn = true, func(f *Fault) bool { notes = append(notes, f); return true }
		require.NoError(t, p.run())
		if !bad {
			require.Empty(t, notes)
			continue
		}
		require.Len(t, notes, 1)
		assert.Regexp(t, "wgmma.*reads in A or B, NaN", notes[0].Text)
	}
}
