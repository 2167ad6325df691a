package ptx_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/ptx"
)

func numbered(n int, format string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

// TestBudgets checks that the parser refuses a short text that declares too much. The error must
// name the limit, and the memory that the parser has used must be proportional to the length of the
// text.
func TestBudgets(t *testing.T) {
	const top = ".version 8.0\n.target sm_90a\n"
	entry := func(body string) string { return top + ".entry k() {\n" + body + "\nret;\n}\n" }
	for _, c := range []struct{ name, src, want string }{
		{"text", top + strings.Repeat("\n", 32<<20), "bytes of text, at most"},
		{"registers of all kernels", top + numbered(200, ".entry k%d() { .reg .b64 %%r<65536>; ret; }\n"), "more than 262144 registers in all kernels"},
		{"kernels", top + numbered(1000, ".entry k%d() { ret; }\n"), "more than 256 kernels"},
		{"variables", entry(numbered(70000, ".shared .b8 x%d[1];\n")), "more than 65536 variables"},
		{"scopes", entry(strings.Repeat("{", 1<<20)), "more than 256 nested braces"},
		{"jumps out of scopes", entry(strings.Repeat("{", 1<<16) + strings.Repeat("bra out;", 1<<16)), "more than 256 nested braces"},
		{"bytes of a variable", top + ".global .b8 x[67108865];\n", "variable x has 67108865 elements"},
		{"bytes of two extents", top + ".global .b64 x[8192][1025];\n", "variable x has 1025 elements"},
		{"name of registers", entry(".reg .b32 " + strings.Repeat("a", 1<<20) + "<2>;"), "the name of registers has 1048576 bytes, at most 1024"},
		{"opcode", entry("mov" + strings.Repeat(".u32", 250) + " a, b;"), "it has 1003 bytes"},
		{"brackets", entry(".reg .b64 %d;\nld.global.u32 " + strings.Repeat("[%d,", 1<<20)), "coordinates must be in braces"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := ptx.Parse([]byte(c.src))
			runtime.ReadMemStats(&after)
			require.Error(t, err)
			assert.Contains(t, err.Error(), c.want)
			assert.Less(t, len(err.Error()), 1<<10)
			assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<20+128*len(c.src)))
		})
	}
}

// TestVerifierNamesAFewMistakes checks that the verifier reports at most maxErrors mistakes of a
// kernel.
func TestVerifierNamesAFewMistakes(t *testing.T) {
	for _, line := range []string{"bra nowhere;\n", ".shared .b8 x[1];\n"} {
		m, err := ptx.Parse([]byte(".version 8.0\n.target sm_90a\n.entry k() {\n" + strings.Repeat(line, 20000) + "ret;\n}\n"))
		require.NoError(t, err)
		err = m.Verify()
		require.Error(t, err)
		assert.Equal(t, 20, 1+strings.Count(err.Error(), "\n"))
	}
}
