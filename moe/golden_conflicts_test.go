package moe_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver/emulated"
	"sonicmoe/internal/drivertest"
	"sonicmoe/moe"
	"sonicmoe/ptx/emu"
)

// conflicts lists the instructions that need more accesses to shared memory than without conflicts,
// with the reason.
var conflicts = map[string]string{
	"moe_router red.shared":        "lanes whose tokens chose the same expert count on one word, once a token",
	"moe_count red.shared":         "as the router's",
	"moe_plan red.shared":          "as the router's, by experts",
	"moe_plan_pairs red.shared":    "as the router's, by experts",
	"moe_choose red.shared":        "as the router's, by experts",
	"moe_choose_ranges red.shared": "as the router's",
	"moe_dwr st.shared":            "a token's few scores, once a row of 64 experts",
}

// TestCountsOfKernels checks that no instruction outside conflicts has bank conflicts, and that the
// timeline of a kernel names the roles of the warps and the rings for which they wait.
func TestCountsOfKernels(t *testing.T) {
	if drivertest.Name() != "emulated" {
		t.Skip("counts are the emulator's")
	}
	if testing.Short() {
		t.Skip("layers forward and backward: not with -short")
	}
	config := moe.Config{Hidden: 640, Intermediate: 320, NumExperts: 6, TopK: 2}
	seen, waits := map[string]bool{}, map[string]bool{}
	dev, err := emulated.New(emulated.Options{Launching: func(k *emu.Kernel, mem *emu.Memory, l emu.Launch) {
		l.Report = &emu.Report{}
		require.NoError(t, k.Launch(context.Background(), mem.Clone(), l))
		seen[k.Name()] = true
		for _, c := range l.Report.Instructions {
			if conflicts[k.Name()+" "+c.Op] == "" {
				assert.Equal(t, c.LeastWavefronts, c.Wavefronts, "%s, line %d: %s", k.Name(), c.Line, c.Op)
			}
		}
		for _, w := range l.Report.Timeline.Warps {
			for _, s := range w.Spans {
				if what, ring, ok := strings.Cut(s.Waits, " of ring "); ok {
					name, _, _ := strings.Cut(ring, " ")
					what = strings.TrimPrefix(what[:strings.Index(what, "[")], "mbarrier ")
					waits[fmt.Sprint(k.Name(), " ", s.Role, " ", what, " ", name)] = true
				}
			}
		}
	}})
	require.NoError(t, err)
	for _, tokens := range []int{1, 5, 40, 70, 300} {
		tr := trialOn(t, dev, config, tokens, moe.WithoutCache(), moe.WithDecode(70)) // the last pass, over 300 tokens, is then a large batch
		require.NoError(t, tr.Run(context.Background(), tr.Args))
		if tokens == 300 {
			require.NoError(t, tr.PrepareBackward(17, moe.BF16))
			require.NoError(t, tr.RunBackward(context.Background(), tr.Back))
		}
	}
	for _, name := range []string{"moe_single_up", "moe_decode_tiny_up", "moe_decode_up", "moe_up", "moe_down", "moe_dh", "moe_dw1", "moe_dx", "moe_dwr"} {
		assert.True(t, seen[name], name)
	}
	for _, w := range []string{"moe_up load empty ab", "moe_up math full ab", "moe_down load empty ab"} {
		assert.True(t, waits[w], "%s: of %v", w, waits)
	}
}
