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
	.loc 2 8 3, function_name $info, inlined_at 1 7 3
	mov.u32 %r0, %tid.x;
	.loc 2 9 1, function_name $info+4, inlined_at 2 8 3
	st.global.u32 [%d0], %r0;
	.loc 2 9 1, function_name $info, inlined_at 1 2 3
	add.u32 %r0, %r0, 1;
	ret;
}
.file 2 "/src/half.h"
.section .debug_str { $info: .b8 1, 2 }
`

// TestDebugDirectives checks that the parser reads debugging directives, and that they do not
// change the instructions.
func TestDebugDirectives(t *testing.T) {
	m, err := ptx.Parse([]byte(compiled))
	require.NoError(t, err)
	require.NoError(t, m.Verify())
	e := m.Entries[0]
	add, half := ptx.Position{File: "/src/add.cu", Line: 7}, ptx.Position{File: "/src/half.h", Line: 8}
	for text, want := range map[string][]ptx.Position{
		"ld.param":  {add},
		"mov.u32":   {half, add},                                                      // the call's position has a .loc
		"st.global": {{File: "/src/half.h", Line: 9}, half, add},                      // the call was inlined itself
		"add.u32":   {{File: "/src/half.h", Line: 9}, {File: "/src/add.cu", Line: 2}}, // the call's position has no .loc
	} {
		line := strings.Count(compiled[:strings.Index(compiled, text)], "\n") + 1
		assert.Equal(t, want, m.Source(e, line), text)
	}
	assert.Empty(t, m.Source(e, 2))
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
	for _, says := range []string{"line 15", "frob.u32", "line 16", "line 18"} {
		assert.ErrorContains(t, err, says)
	}
	for _, text := range []string{`.file 1 add.cu`, `.file x "y"`, ".loc 1", `.file 1 "open`, ".section .debug {", "{ .pragma"} {
		_, err := ptx.Parse([]byte(".version 8.0\n.target sm_90\n" + text))
		if !strings.HasPrefix(text, ".section") {
			assert.Error(t, err, text)
		}
	}
}
