package emu

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// someLanes gives lanes 0 to 3 a value in %r1, and %r3 an address of their own to all lanes.
const someLanes = `
	mov.u32 %r0, %laneid;
	setp.lt.u32 %p0, %r0, 4;
	mov.u32 %r3, smem;
	mad.lo.u32 %r3, %r0, 4, %r3;
	@%p0 mov.u32 %r1, %r0;
`

// TestUnknownValues checks that a computation with a register that a lane has not written is no
// fault, and that the first use of its result is one.
func TestUnknownValues(t *testing.T) {
	for name, c := range map[string]struct{ code, want string }{
		"a reduction as Triton writes it": {"shfl.sync.bfly.b32 %r4, %r1, 2, 31, -1;\nadd.u32 %r5, %r1, %r4;\nshfl.sync.bfly.b32 %r6, %r5, 1, 31, -1;\nadd.u32 %r7, %r5, %r6;\n@%p0 st.shared.u32 [%r3], %r7;", ""},
		"a store":                         {"add.u32 %r4, %r1, 1;\nst.shared.u32 [%r3], %r4;", "lanes 4-31: uninitialized register: register %r4 is read by st.shared, but depends on register %r1, which add (line"},
		"two steps":                       {"add.u32 %r4, %r1, 1;\nmul.lo.u32 %r5, %r4, %r4;\nst.shared.u32 [%r3], %r5;", "register %r5 is read by st.shared, but depends on register %r1, which add (line"},
		"an address":                      {"add.u32 %r4, %r1, %r3;\nld.shared.u32 %r5, [%r4];", "register %r4 is read by ld.shared"},
		"a guard":                         {"setp.eq.u32 %p1, %r1, 0;\n@%p1 mov.u32 %r5, 1;", "guard register %p1 is read, but depends on register %r1, which setp (line"},
		"a branch":                        {"setp.eq.u32 %p1, %r1, 0;\n@%p1 bra far;\nfar:", "guard register %p1 is read, but depends on"},
		"a shuffle from such a lane":      {"shfl.sync.idx.b32 %r4, %r1, 5, 31, -1;\n@%p0 st.shared.u32 [%r3], %r4;", "lanes 0-3: uninitialized register: register %r4 is read by st.shared, but depends on register %r1, which shfl.sync (line"},
		"a shuffle from a written lane":   {"shfl.sync.idx.b32 %r4, %r1, 3, 31, -1;\nst.shared.u32 [%r3], %r4;", ""},
		"a shuffle's lane":                {"shfl.sync.idx.b32 %r4, %r0, %r1, 31, -1;", "register %r1 is read by shfl.sync but was never written"},
		"a vote":                          {"setp.eq.u32 %p1, %r1, 0;\nvote.sync.ballot.b32 %r4, %p1, -1;", "is read by vote.sync"},
		"a written register lost":         {"mov.u32 %r4, 7;\nmov.u32 %r4, %r1;\nst.shared.u32 [%r3], %r4;", "lanes 4-31: uninitialized register: register %r4"},
		"a value regained":                {"mov.u32 %r4, %r1;\nmov.u32 %r4, 7;\nst.shared.u32 [%r3], %r4;", ""},
		"a register that nothing writes":  {"add.u32 %r4, %r9, 1;", "register %r9 is read by add but was never written"},
		"around a loop":                   {"mov.u32 %r5, 0;\nagain:\n@%p0 add.u32 %r5, %r5, %r1;\nadd.u32 %r8, %r5, 0;\nsetp.lt.u32 %p2, %r8, 0;\n@%p2 bra again;\nst.shared.u32 [%r3], %r5;", ""},
		"a loop that unlearns":            {"mov.u32 %r5, 0;\nmov.u32 %r8, 0;\nagain:\nst.shared.u32 [%r3], %r5;\nadd.u32 %r5, %r5, %r1;\nadd.u32 %r8, %r8, 1;\nsetp.lt.u32 %p2, %r8, 2;\n@%p2 bra again;", "register %r5 is read by st.shared, but depends on register %r1"},
	} {
		t.Run(name, func(t *testing.T) {
			p := assemble(t, body(someLanes+c.code+"\nret;"), "k")
			p.params(p.u32s(0), 0)
			p.launch.SharedBytes = 1024
			err := p.run()
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.want)
		})
	}
}

// TestIdleLane checks that a launch can go on after a shuffle from a lane that takes no part.
func TestIdleLane(t *testing.T) {
	p := assemble(t, body(someLanes+"@%p0 shfl.sync.down.b32 %r4, %r1, 2, 31, 15;\n@%p0 st.shared.u32 [%r3], %r4;\nret;"), "k")
	p.params(p.u32s(0), 0)
	p.launch.SharedBytes = 1024
	require.ErrorContains(t, p.run(), "lane 2: shuffle from an idle lane: shfl.sync reads lane 4")
	var texts []string
	p.launch.GoOn = func(f *Fault) bool { texts = append(texts, f.Text); return true }
	var found *Findings
	require.ErrorAs(t, p.kernel.Once(t.Context(), p.mem, p.launch), &found)
	assert.Len(t, texts, 2)
}
