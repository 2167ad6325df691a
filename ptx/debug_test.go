package ptx_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/ptx"
)

const compiled = `.version 8.0
.target sm_90a
.address_size 64
.file 1 "/src/add.cu", 1700000000, 99
.visible .entry k(
	.param .u64 .ptr .global .align 16 out
)
{
	.reg .b32 %r<4>;
	.reg .b64 %d<2>;
	.pragma "nounroll";
	.loc 1 7 3
	ld.param.u64 %d0, [out];
	.loc 1 8 3, function_name $info, inlined_at 1 2 3
	mov.u32 %r0, %tid.x;
	st.global.u32 [%d0], %r0;
	ret;
}
.section .debug_str { $info: .b8 1, 2 }
`

// TestDebugDirectives checks that the parser reads debugging directives, and that they do not
// change the instructions.
func TestDebugDirectives(t *testing.T) {
	m, err := ptx.Parse([]byte(compiled))
	require.NoError(t, err)
	require.NoError(t, m.Verify())
	e := m.Entries[0]
	for text, want := range map[string]int{"ld.param": 7, "mov.u32": 8, "st.global": 8} {
		line := strings.Count(compiled[:strings.Index(compiled, text)], "\n") + 1
		file, n := m.Source(e, line)
		assert.Equal(t, "/src/add.cu", file, text)
		assert.Equal(t, want, n, text)
	}
	_, n := m.Source(e, 2)
	assert.Zero(t, n)
	again, err := ptx.Parse(m.Print().PTX)
	require.NoError(t, err)
	assert.Equal(t, string(m.Print().PTX), string(again.Print().PTX))
}

// TestAllErrorsAtOnce checks that one Parse reports every wrong statement, each with its line.
func TestAllErrorsAtOnce(t *testing.T) {
	wrong := strings.NewReplacer("mov.u32 %r0, %tid.x;", "frob.u32 %r0;\n\tmov.u32 {%r0, %r1}, %tid.x;", "%d0], %r0", "%d0], %r9").Replace(compiled)
	_, err := ptx.Parse([]byte(wrong))
	require.Error(t, err)
	assert.Len(t, strings.Split(err.Error(), "\n"), 3, err.Error())
	for _, says := range []string{"line 15", "frob.u32", "line 16", "line 17"} {
		assert.ErrorContains(t, err, says)
	}
	for _, text := range []string{`.file 1 add.cu`, `.file x "y"`, ".loc 1", `.file 1 "open`, ".section .debug {", "{ .pragma"} {
		_, err := ptx.Parse([]byte(".version 8.0\n.target sm_90\n" + text))
		if !strings.HasPrefix(text, ".section") {
			assert.Error(t, err, text)
		}
	}
}
