package emu

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLastByte checks that an access of any width may reach the last byte of shared and of global
// memory, and not one byte further.
func TestLastByte(t *testing.T) {
	for _, c := range []struct {
		width     int
		form, reg string
	}{{1, "u8", "%h0"}, {2, "u16", "%h0"}, {4, "u32", "%r1"}, {8, "u64", "%d1"}, {16, "v4.u32", "{%r1, %r2, %r3, %r4}"}} {
		const shared, words = 256, 16
		for _, op := range []string{"ld", "st"} {
			for space, size := range map[string]int{"shared": shared, "global": 4 * words} {
				base := map[string]string{"shared": "%r0", "global": "%d0"}[space]
				for past := range 2 {
					at := size - c.width + past*c.width
					if c.width == 1 {
						at = size - 1 + past
					}
					access := fmt.Sprintf("%s.%s.%s %s, [%s+%d]; // here", op, space, c.form, c.reg, base, at)
					if op == "st" {
						access = fmt.Sprintf("%s.%s.%s [%s+%d], %s; // here", op, space, c.form, base, at, c.reg)
					}
					t.Run(access, func(t *testing.T) {
						fill := ""
						for i := range shared / 8 {
							fill += fmt.Sprintf("\tst.shared.u64 [%%r0+%d], 0;\n", 8*i)
						}
						text := body(`	mov.u32 %r0, smem;
	ld.param.u64 %d0, [out];
	mov.u32 %r1, 1; mov.u32 %r2, 1; mov.u32 %r3, 1; mov.u32 %r4, 1;
	mov.u64 %d1, 1;
	mov.b16 %h0, 1;
` + fill + access)
						p := assemble(t, text, "k")
						p.params(p.u32s(make([]uint32, words)...), 0)
						p.launch.SharedBytes, p.launch.Block = shared, [3]int{1}
						if past == 0 {
							require.NoError(t, p.run())
							return
						}
						requireFault(t, p.run(), OutOfBounds, text, "// here")
					})
				}
			}
		}
	}
}
