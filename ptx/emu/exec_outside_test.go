package emu

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestFormatC compares formatC with what C's printf prints.
func TestFormatC(t *testing.T) {
	for _, c := range []struct {
		format string
		args   []uint64
		want   string
	}{
		{"no argument, 100%%\n", nil, "no argument, 100%\n"},
		{"%d|%5d|%-5d|%05d|%+d", []uint64{0xffffffff, 42, 42, 42, 42}, "-1|   42|42   |00042|+42"},
		{"%u|%x|%X|%o|%#x|%#x", []uint64{0xffffffff, 255, 255, 8, 255, 0}, "4294967295|ff|FF|10|0xff|0"},
		{"%lld|%llu|%ld|%zu", []uint64{1 << 63, 1 << 63, math.MaxUint64, 7}, "-9223372036854775808|9223372036854775808|-1|7"},
		{"%hd|%hhu", []uint64{0x18000, 0x1ff}, "-32768|255"},
		{"%f|%.2f|%8.3f|%-8.1f|", []uint64{math.Float64bits(1.5), math.Float64bits(-2.25), math.Float64bits(math.Pi), math.Float64bits(0.5)}, "1.500000|-2.25|   3.142|0.5     |"},
		{"%e|%g|%g|%g|%G", []uint64{math.Float64bits(12345.678), math.Float64bits(100000), math.Float64bits(1e6), math.Float64bits(0.0001), math.Float64bits(1e-5)}, "1.234568e+04|100000|1e+06|0.0001|1E-05"},
		{"%f|%5f|%F|%a", []uint64{math.Float64bits(math.Inf(1)), math.Float64bits(math.Inf(-1)), math.Float64bits(math.NaN()), math.Float64bits(1)}, "inf| -inf|NAN|0x1p+0"},
		{"%c%3c|%s|%6s|%-6s|%.1s|%p", []uint64{'a', 'b', 16, 16, 16, 16, 16}, "a  b|two|   two|two   |t|0x10"},
		{"%*d|%-*d|%.*f", []uint64{5, 1, 4, 2, 1, math.Float64bits(0.25)}, "    1|2   |0.2"},
		{"ends %", nil, "ends %"},
	} {
		args := c.args
		next := func(uint64) (v uint64) {
			v, args = args[0], args[1:]
			return v
		}
		assert.Equal(t, c.want, formatC(c.format, next, func(at uint64) string { return map[uint64]string{16: "two"}[at] }), c.format)
		assert.Empty(t, args, c.format)
	}
}

// printing is a kernel whose threads below %r1 print "NUMBER: HALF TEXT" and store what printf
// returns.
var printing = strings.Replace(body(`
	.local .align 8 .b8 list[24];
	ld.param.u64 %d0, [out];
	mov.u32 %r0, %tid.x;
	mul.wide.u32 %d1, %r0, 4;
	add.u64 %d0, %d0, %d1;
	ld.param.u32 %r1, [n];
	setp.ge.u32 %p0, %r0, %r1;
	@%p0 bra end;
	mov.u64 %d2, list;
	st.local.u32 [%d2], %r0;
	cvt.rn.f64.u32 %d3, %r0;
	mul.f64 %d3, %d3, 0d3FE0000000000000;
	st.local.f64 [%d2+8], %d3;
	mov.u64 %d4, word;
	cvta.global.u64 %d4, %d4;
	st.local.u64 [%d2+16], %d4;
	cvta.local.u64 %d2, %d2;
	mov.u64 %d5, format;
	cvta.global.u64 %d5, %d5;
	{
	.param .b64 a;
	.param .b64 b;
	.param .b32 r;
	st.param.b64 [a], %d5;
	st.param.b64 [b], %d2;
	call.uni (r), vprintf, (a, b);
	ld.param.u32 %r2, [r];
	}
	st.global.u32 [%d0], %r2;
end:`), ".visible .entry", `
.global .align 1 .b8 format[12] = {37, 100, 58, 32, 37, 103, 32, 37, 115, 10, 0, 0};
.global .align 1 .b8 word[4] = {121, 101, 115, 0};
.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);
.visible .entry`, 1)

// TestPrintf checks that threads print in the order of the lanes, and that a launch with several
// runs prints once.
func TestPrintf(t *testing.T) {
	for name, run := range map[string]func(p *program) error{
		"launch":  (*program).run,
		"check":   func(p *program) error { return p.kernel.Check(t.Context(), p.mem, p.launch, 2) },
		"explore": func(p *program) error { _, err := p.kernel.Explore(t.Context(), p.mem, p.launch, 3); return err },
	} {
		t.Run(name, func(t *testing.T) {
			p := assemble(t, printing, "k")
			var got strings.Builder
			p.launch.Print = func(text string) { got.WriteString(text) }
			out := p.u32s(make([]uint32, 4)...)
			p.params(out, 3)
			require.NoError(t, run(p))
			assert.Equal(t, "0: 0 yes\n1: 0.5 yes\n2: 1 yes\n", got.String())
			assert.Equal(t, []uint32{3, 3, 3, 0}, p.read(out, 4))
		})
	}
}

// TestDeviceMalloc checks that a kernel can allocate, use and free memory.
func TestDeviceMalloc(t *testing.T) {
	text := func(second string) string {
		return strings.Replace(body(fmt.Sprintf(`
	.param .b64 size;
	.param .b64 at;
	.param .b64 old;
	st.param.b64 [size], 40;
	call.uni (at), malloc, (size);
	ld.param.u64 %%d1, [at];
	mov.u32 %%r0, %%tid.x;
	st.u32 [%%d1+36], %%r0;
	ld.u32 %%r1, [%%d1+36];
	st.param.b64 [old], %%d1;
	call.uni free, (old);
	%s
	ld.param.u64 %%d0, [out];
	mad.wide.u32 %%d0, %%r0, 4, %%d0;
	st.global.u32 [%%d0], %%r1;`, second)), ".visible .entry", `
.extern .func (.param .b64 r) malloc(.param .b64 n);
.extern .func free(.param .b64 n);
.visible .entry`, 1)
	}
	p := assemble(t, text(""), "k")
	out := p.u32s(make([]uint32, 32)...)
	p.params(out, 0)
	used := p.mem.Used()
	require.NoError(t, p.run())
	assert.Equal(t, used, p.mem.Used())
	for i, v := range p.read(out, 32) {
		assert.Equal(t, uint32(i), v)
	}
	p = assemble(t, text("call.uni free, (old);"), "k")
	p.params(p.u32s(0), 0)
	require.ErrorContains(t, p.run(), "it was freed before")
}

// TestDeviceMallocRepeated checks that each run of Check allocates and frees anew, and that the
// launch then leaves the allocations of one run: a later launch uses and frees them.
func TestDeviceMallocRepeated(t *testing.T) {
	launch := func(mem *Memory, out uint64, code string) {
		p := assemble(t, strings.Replace(body(`
	.param .b64 number;
	.param .b64 at;
	ld.param.u64 %d0, [out];
	mov.u32 %r0, %tid.x;
	setp.ne.u32 %p0, %r0, 0;
	@%p0 bra end;
	`+code+`
end:`), ".visible .entry", `
.extern .func (.param .b64 r) malloc(.param .b64 n);
.extern .func free(.param .b64 n);
.visible .entry`, 1), "k")
		p.params(out, 0)
		require.NoError(t, p.kernel.Check(t.Context(), mem, p.launch, 2))
	}
	mem := NewMemory(1 << 20)
	out, err := mem.Alloc(64)
	require.NoError(t, err)
	used := mem.Used()
	launch(mem, out, "st.param.b64 [number], 40; call.uni (at), malloc, (number); ld.param.u64 %d1, [at]; st.u32 [%d1+36], 7; st.global.u64 [%d0], %d1;")
	assert.Equal(t, used+40, mem.Used())
	launch(mem, out, "ld.global.u64 %d1, [%d0]; ld.u32 %r1, [%d1+36]; st.global.u32 [%d0+8], %r1; st.param.b64 [number], %d1; call.uni free, (number);")
	assert.Equal(t, used, mem.Used())
	b := make([]byte, 4)
	require.NoError(t, mem.Read(b, out+8))
	assert.Equal(t, []byte{7, 0, 0, 0}, b)
}
