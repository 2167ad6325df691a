package ptx_test

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/outside"
	"sonicmoe/ptx"
	"sonicmoe/ptx/ptxas"
)

// checkParse parses any input. If parsing succeeds, the module must print as a text that parses and
// prints as the same text. Verify must not panic for the module.
func checkParse(t *testing.T, src []byte) (parsed bool) {
	t.Helper()
	m, err := ptx.Parse(src)
	if err != nil {
		return false
	}
	_ = m.Verify()
	first := m.Print().PTX
	again, err := ptx.Parse(first)
	require.NoError(t, err, "the print of\n%s\nis\n%s", src, first)
	require.Equal(t, string(first), string(again.Print().PTX), "from\n%s", src)
	return true
}

func corpus() [][]byte {
	all := [][]byte{[]byte(handWritten)}
	for seed := range uint64(8) {
		all = append(all, randomModule(seed).Print().PTX)
	}
	return all
}

// handWritten uses syntax that the parser accepts and that the printer never writes.
const handWritten = `// a comment
.version 8.0 .target sm_90a
.address_size 64
.shared .b32 word; /* one
word */
.visible .entry k(.param .u64 a, .param .align 32 .u32 b, .param .f32 list[3])
.maxntid 32, 2, 1
{
	.reg .b32 %r<4>, %x;
	.reg .pred %p;
	.reg .b64 %d<2>;
again:
	ld.param.u64 %d0, [a];
	ld.param.f32 %r1, [list+8];
	ld.global.v2.u32 {%r0, %r1}, [%d0+-4];
	@!%p add.s32 %x, %r0, -0x10;
	mov.u32 %r2, %tid.x;
	elect.sync _|%p, 0xffffffff;
	@%p bra again;
	ret;
}
`

func FuzzParse(f *testing.F) {
	for _, c := range corpus() {
		f.Add(c)
	}
	f.Fuzz(func(t *testing.T, src []byte) { checkParse(t, src) })
}

func TestMutatedTextNeverBreaksTheParser(t *testing.T) {
	seeds := corpus()
	for _, c := range seeds {
		require.True(t, checkParse(t, c), "%s", c)
	}
	rng := rand.New(rand.NewPCG(3, 5))
	parsed, texts := 0, 20000
	if testing.Short() {
		texts = 3000
	}
	for range texts {
		if checkParse(t, mutate(rng, seeds)) {
			parsed++
		}
	}
	assert.Greater(t, parsed, texts/20, "too few inputs parse to test printing")
}

// mutate picks one of the texts in seeds, and changes tokens or bytes in a few of its lines.
func mutate(rng *rand.Rand, seeds [][]byte) []byte {
	lines := bytes.SplitAfter(seeds[rng.IntN(len(seeds))], []byte("\n"))
	if len(lines) > 40 { // keep the directives and some lines of the body
		at := 25 + rng.IntN(len(lines)-35)
		lines = append(append([][]byte{}, lines[:25]...), lines[at:at+4]...)
		lines = append(lines, []byte("}\n"))
	}
	src := bytes.Join(lines, nil)
	for range rng.IntN(3) {
		i := rng.IntN(len(src))
		switch rng.IntN(4) {
		case 0:
			src = append(src[:i:i], src[i+1:]...)
		case 1:
			const bytesOfPTX = "{}[](),;<>@!|+-_.:%$0129afx \n\t*/\x00\xff"
			src = append(src[:i:i], append([]byte{bytesOfPTX[rng.IntN(len(bytesOfPTX))]}, src[i:]...)...)
		case 2: // insert a piece from elsewhere
			j := rng.IntN(len(src))
			piece := bytes.Clone(src[j:min(len(src), j+1+rng.IntN(12))])
			src = append(src[:i:i], append(piece, src[i:]...)...)
		default:
			src = src[:i:i]
		}
		if len(src) == 0 {
			break
		}
	}
	return src
}

func TestParseErrorsNameTheLine(t *testing.T) {
	body := func(s string) string {
		return ".version 8.0\n.target sm_90a\n.entry k() {\n.reg .b32 %r<4>; .reg .pred %p<2>; .reg .b64 %d<2>; .reg .b16 %h;\n" + s + "\nret;\n}\n"
	}
	for _, c := range []struct{ src, want string }{
		{".version 8\n", ".version must be like 8.0"},
		{"// nothing\n", "no .version"},
		{".version 8.0\n.target sm_12\n", `line 2: unknown target "sm_12"`},
		{".version 8.0\n.alias f, g;", `unknown directive ".alias"`},
		{".version 8.0 /* open", "comment is not closed"},
		{body("foo.u32 %r0, %r1;"), "line 5: unknown form foo.u32"},
		{body("add.u8 %h, %h, %h;"), `modifier ".u8" does not fit add`},
		{body("add.u32 %r0, %r1;"), "add takes 3 operands"},
		{body("add.u32 %r0, %r1, %d0;"), "operand 3 (b) does not fit add"},
		{body("add.u32 %r0, %r1, %q;"), "%q is not a register that the kernel declares"},
		{body("add.u32 %r0, %r1, q;"), "operand 3 (b) does not fit add"},
		{body("@%r0 add.u32 %r0, %r1, 1;"), `guard "%r0" is not a predicate register`},
		{body("elect.sync %p0, -1;"), "_|p"},
		{body("vote.sync.any.pred _|%p0, %p1, -1;"), "_|p"},
		{body("add.u32 %r0, %r1, 0f12;"), "is not a float"},
		{body("{ .reg .b32 %in; } mov.u32 %in, 1;"), "%in is not a register that the kernel declares"},
		{body("{ .reg .b32 %in; .reg .b32 %in; }"), "register %in is declared twice"},
		{body("{"), "not closed by }"},
		{body(".reg .b32 %r1;"), "register %r1 is declared twice"},
		{body(".reg .b32 %z<70000>;"), "70000 registers"},
		{body(".shared .align 3 .b8 x[4];"), "alignment 3 is not a power of two"},
		{".version 8.0\n.entry k() .maxntid 65536,65536,65536,65536 {}", "threads or CTAs"},
		{".version 8.0\n.entry k(.param .b8 x[40000]) {}", "40000 elements"},
		{".version 8.0\n.entry k() { ret;", "not closed by }"},
	} {
		_, err := ptx.Parse([]byte(c.src))
		if assert.Error(t, err, c.src) {
			assert.Contains(t, err.Error(), c.want)
		}
	}
}

// TestParseOptionalModifiersAnywhere checks that optional modifiers may be at any place, as for the
// assembler, and that mandatory modifiers must be in order.
func TestParseOptionalModifiersAnywhere(t *testing.T) {
	const registers = "{%r0, %r1, %r2, %r3}"
	for _, c := range []struct{ written, printed string }{
		{"mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32.satfinite " + registers + ", {%r0, %r1}, {%r0}, " + registers + ";",
			"mma.sync.aligned.m16n8k16.row.col.satfinite.s32.u8.s8.s32 " + registers},
		{"wgmma.mma_async.sp.sync.aligned.m64n8k64.s32.s8.u8.satfinite " + registers + ", %d0, %d1, %r0, 0, 1;",
			"wgmma.mma_async.sp.sync.aligned.m64n8k64.satfinite.s32.s8.u8 " + registers},
		{"add.rn.f32.ftz %r0, %r1, %r2;", "add.rn.ftz.f32 %r0, %r1, %r2;"},
		{"mma.sync.aligned.m16n8k16.row.col.satfinite.s32.s8.s8.s32.satfinite " + registers + ", {%r0, %r1}, {%r0}, " + registers + ";", ""},
		{"mma.sync.aligned.m16n8k16.col.row.s32.s8.s8.s32 " + registers + ", {%r0, %r1}, {%r0}, " + registers + ";", ""},
	} {
		m, err := ptx.Parse([]byte(".version 8.4\n.target sm_90a\n.entry k() {\n.reg .b32 %r<4>; .reg .b64 %d<2>;\n" + c.written + "\nret;\n}\n"))
		if c.printed == "" {
			assert.ErrorContains(t, err, "unknown form", c.written)
			continue
		}
		require.NoError(t, err, c.written)
		assert.NoError(t, m.Verify())
		assert.Contains(t, string(m.Print().PTX), c.printed)
	}
}

func TestParseDeepInputDoesNotRecurse(t *testing.T) {
	depth := 1 << 20
	if testing.Short() {
		depth = 1 << 17
	}
	for _, part := range []string{"_|", "{", "[", "!", "@", "-"} {
		src := ".version 8.0\n.entry k() {\nadd.u32 " + strings.Repeat(part, depth)
		_, err := ptx.Parse([]byte(src))
		assert.Error(t, err)
	}
}

// TestUnknownFormsAreCounted checks that there is one error for each unknown form, with the number
// of its instructions, however long the text is.
func TestUnknownFormsAreCounted(t *testing.T) {
	src := ".version 8.0\n.target sm_90a\n.entry k() {\n.reg .b32 %r<2>;\n" + strings.Repeat("foo.u32 %r0, %r1;\nbar.f32 %r0;\n", 200) + "ret;\n}\n"
	_, err := ptx.Parse([]byte(src))
	assert.EqualError(t, err, "ptx: line 5 and 199 more: unknown form foo.u32\nptx: line 6 and 199 more: unknown form bar.f32")
}

// TestTextOfOtherCompilers checks that the parser accepts very long names, and setmaxnreg without
// launch bounds, which assemblers ignore.
func TestTextOfOtherCompilers(t *testing.T) {
	name := "_ZN" + strings.Repeat("7cutlass", 2000)
	m, err := ptx.Parse([]byte(".version 8.0\n.target sm_90a\n.entry " + name + "(.param .u64 " + name + "_param_0) {\nsetmaxnreg.dec.sync.aligned.u32 40;\nret;\n}\n"))
	require.NoError(t, err)
	assert.Equal(t, name, m.Entries[0].Name)
	assert.NoError(t, m.Verify())
	outside.Ptxas(t)
	_, _, err = ptxas.Assemble(t.Context(), m.Print().PTX)
	assert.NoError(t, err)
}
