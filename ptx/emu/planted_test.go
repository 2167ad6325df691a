package emu

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// whole is a correct kernel, with the mistakes that the test plants in it one by one.
type whole struct {
	name                 string
	grid, block, cluster int
	code                 string
	bugs                 []bug
}

// bug is a mistake. edit has pairs of text: a part of the kernel, and its replacement.
type bug struct {
	class, name string
	edit        []string
}

// The classes of mistakes.
const (
	classMbarrier  = "mbarrier"
	classDeadlock  = "deadlock and divergence"
	classWgmma     = "wgmma"
	classWaits     = "waits for copies"
	classBounds    = "bounds, alignment, uninitialised"
	classLayout    = "descriptors, coordinates"
	classProxy     = "proxy fences"
	classShared    = "shared memory without order"
	classGlobal    = "between CTAs"
	classVotes     = "votes, shuffles, sums of a warp"
	classMatrix    = "ldmatrix, stmatrix"
	classRegisters = "setmaxnreg"
)

// plantedMode is a way to run a kernel: it says when asynchronous work completes, and whether
// Launch.StrictProxy is set.
type plantedMode struct {
	name   string
	timing Timing
	seed   uint64
	strict bool
}

func plantedModes() []plantedMode {
	return []plantedMode{{"early", Early, 0, false}, {"late", Late, 0, false}, {"random", Random, 1, false}, {"random again", Random, 7, false}, {"strict", Early, 0, true}}
}

func (k *whole) run(t *testing.T, code string, m plantedMode) error {
	p := k.program(t, code)
	p.launch.Timing, p.launch.Seed, p.launch.Races, p.launch.StrictProxy = m.timing, m.seed, true, m.strict
	return p.run()
}

func (k *whole) program(t *testing.T, code string) *program {
	p := assemble(t, body(code), "k")
	words := make([]uint32, 1024)
	for i := 32; i < len(words); i++ { // the first 32 words are flags and counters, which start at 0
		words[i] = uint32(i)
	}
	p.params(p.u32s(words...), 0)
	p.launch.Grid, p.launch.Block, p.launch.Cluster = [3]int{max(k.grid, 1)}, [3]int{k.block}, [3]int{max(k.cluster, 1)}
	p.launch.SharedBytes, p.launch.SpinLimit, p.launch.Parallel = 16384, 1<<14, 1
	return p
}

// sided lists the kinds of findings that name both accesses. A finding of another kind names only
// the line with the mistake.
var sided = []FaultKind{Race, ProxyRace}

// TestPlanted plants mistakes of all classes in correct kernels. Each mistake must be found in at
// least one order, and nearly each in every order. A finding of a kind in sided must name both
// accesses. The correct kernels must have no findings.
func TestPlanted(t *testing.T) {
	modes := plantedModes()
	total, named, missed := 0, make([]int, len(modes)), []string{}
	classes := map[string]int{}
	kernels := slices.Concat(plantedKernels, plantedLives, plantedWarps)
	for i := range kernels {
		k := &kernels[i]
		t.Run(k.name, func(t *testing.T) {
			for seed := range uint64(max(5, seedsOfTwins())) {
				require.NoError(t, k.run(t, k.code, plantedMode{timing: Random, seed: seed}), "seed %d", seed)
			}
			for _, m := range modes {
				require.NoError(t, k.run(t, k.code, m), m.name)
			}
			for _, b := range k.bugs {
				code := k.code
				for i := 0; i < len(b.edit); i += 2 {
					require.Contains(t, code, b.edit[i], b.name)
					code = strings.Replace(code, b.edit[i], b.edit[i+1], 1)
				}
				total++
				classes[b.class]++
				found := false
				for i, m := range modes {
					err := k.run(t, code, m)
					var f *Fault
					if !errors.As(err, &f) {
						require.NoError(t, err, b.name)
						missed = append(missed, fmt.Sprintf("%s: %s, %s", k.name, b.name, m.name))
						continue
					}
					found = true
					named[i]++
					if slices.Contains(sided, f.Kind) {
						assert.Regexp(t, `\(line \d+|after mbarrier.init`, f.Text, b.name)
					}
				}
				assert.True(t, found, "%s passes in all orders", b.name)
			}
		})
	}
	t.Logf("%d mistakes %v; not named: %s", total, classes, strings.Join(missed, "; "))
	for i, m := range modes {
		t.Logf("%s: %d of %d named", m.name, named[i], total)
		assert.GreaterOrEqual(t, 10*named[i], 9*total, m.name)
	}
	assert.Len(t, classes, 12)
}
