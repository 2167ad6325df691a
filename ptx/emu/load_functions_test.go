package emu

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// withFunctions returns PTX text of the given functions, followed by a kernel with the given code.
func withFunctions(functions, code string) string {
	return strings.Replace(body(code), ".visible .entry", functions+"\n.visible .entry", 1)
}

// nested is a recursive function. Each call passes the address of its own variable to the inner
// call, which adds 1000 to the variable. The outer call then adds the variable to the sum.
const nested = `
.func (.param .b32 sum) nested(.param .b32 depth, .param .b64 outer)
{
	.local .align 8 .b8 mine[8];
	.reg .b32 %r<8>;
	.reg .b64 %d<4>;
	.reg .pred %p<2>;
	ld.param.u32 %r0, [depth];
	ld.param.u64 %d0, [outer];
	mov.u64 %d1, mine;
	mov.u32 %r3, 1;
	st.local.u32 [%d1], %r0;
	setp.eq.u32 %p0, %r0, 0;
	@%p0 bra end;
	sub.u32 %r1, %r0, 1;
	{
	.param .b32 a;
	.param .b64 b;
	.param .b32 r;
	st.param.b32 [a], %r1;
	st.param.b64 [b], %d1;
	call (r), nested, (a, b);
	ld.param.u32 %r3, [r];
	}
	ld.local.u32 %r4, [%d1];
	add.u32 %r3, %r3, %r4;
end:
	ld.local.u32 %r5, [%d0];
	add.u32 %r5, %r5, 1000;
	st.local.u32 [%d0], %r5;
	st.param.b32 [sum], %r3;
	ret;
}`

// TestCalls checks recursive calls: each thread calls to a different depth, and some lanes of a
// warp do not call at all. The kernel also has a switch by jump table.
func TestCalls(t *testing.T) {
	p := assemble(t, withFunctions(nested, `
	.local .align 8 .b8 root[8];
	ld.param.u64 %d0, [out];
	mov.u32 %r0, %tid.x;
	mul.wide.u32 %d1, %r0, 4;
	add.u64 %d0, %d0, %d1;
	mov.u64 %d2, root;
	st.local.u32 [%d2], 0;
	mov.u32 %r2, 7;
	and.b32 %r1, %r0, 3;
	setp.eq.u32 %p0, %r1, 3;
	@%p0 bra skip;
	{
	.param .b32 a;
	.param .b64 b;
	.param .b32 r;
	st.param.b32 [a], %r0;
	st.param.b64 [b], %d2;
	call.uni (r), nested, (a, b);
	ld.param.u32 %r2, [r];
	}
skip:
	bar.warp.sync 0xffffffff;
ways: .branchtargets one, two, two, three;
	brx.idx %r1, ways;
one: add.u32 %r2, %r2, 100000;
	bra done;
two: add.u32 %r2, %r2, 200000;
	bra done;
three: add.u32 %r2, %r2, 300000;
done:
	shfl.sync.idx.b32 %r3, %r2, 0, 31, 0xffffffff;
	ld.local.u32 %r4, [%d2];
	add.u32 %r2, %r2, %r4;
	st.global.u32 [%d0], %r2;`), "k")
	out := p.u32s(make([]uint32, 32)...)
	p.params(out, 0)
	eachTiming(t, func(t *testing.T, timing Timing, seed uint64) {
		p.launch.Timing, p.launch.Seed = timing, seed
		require.NoError(t, p.run())
		for i, got := range p.read(out, 32) {
			want := uint32(307)
			if i%4 < 3 { // the root's variable is 1000; each call adds its depth and the inner call's 1000
				want = 1 + 1000
				for depth := 1; depth <= i; depth++ {
					want += uint32(depth) + 1000
				}
				want += []uint32{100000, 200000, 200000}[i%4]
			} else {
				want = 7 + 300000
			}
			assert.Equal(t, want, got, "thread %d", i)
		}
	})
}

// TestWrongCalls checks that errors of a call name the function.
func TestWrongCalls(t *testing.T) {
	const outside = `
.global .align 1 .b8 what[6] = {120, 32, 62, 32, 48, 0};
.global .align 1 .b8 where[5] = {97, 46, 99, 117, 0};
.extern .func __assertfail(.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 n, .param .b64 s);
.extern .func elsewhere();
.func forever() { call forever, (); ret; }
.func (.param .b32 r) one(.param .b32 a) { st.param.b32 [r], 1; ret; }
`
	for name, c := range map[string]struct{ code, want string }{
		"assertion": {`.param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;
			mov.u64 %d0, what; cvta.global.u64 %d0, %d0; mov.u64 %d1, where; cvta.global.u64 %d1, %d1;
			st.param.b64 [a], %d0; st.param.b64 [b], %d1; st.param.b32 [c], 12; st.param.b64 [d], %d1; st.param.b64 [e], 1;
			call __assertfail, (a, b, c, d, e);`, "assertion failed: x > 0, at a.cu:12, a.cu"},
		"elsewhere":       {`call elsewhere, ();`, "function elsewhere has no body in the module and is not emulated"},
		"without end":     {`call forever, ();`, "forever calls itself"},
		"no address":      {`mov.u64 %d0, 64; P: .callprototype _ (); call %d0, (), P;`, "call of 0x40, which is not the address of a function"},
		"by wrong type":   {`mov.u64 %d0, one; P: .callprototype _ (); call %d0, (), P;`, "a call of one passes 0 parameters, want 1"},
		"past the labels": {`mov.u32 %r0, 1; T: .branchtargets L; brx.idx %r0, T; L:`, "brx.idx has index 1, want less than 1, the number of labels"},
	} {
		t.Run(name, func(t *testing.T) {
			p := assemble(t, withFunctions(outside, c.code), "k")
			p.params(p.u32s(0), 0)
			require.ErrorContains(t, p.run(), c.want)
		})
	}
	_, err := Load([]byte(withFunctions(outside, `.param .b64 a; .param .b32 b; call (b), one, (a);`)))
	assert.ErrorContains(t, err, "a call of one: item 1 of its parameters has 8 bytes, want 4")
	_, err = Load([]byte(withFunctions(outside, `call two, ();`)))
	assert.ErrorContains(t, err, "no parameter or variable two")
}
