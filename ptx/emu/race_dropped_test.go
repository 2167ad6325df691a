package emu

import (
	"context"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// synchronises lists how instructions begin that order other instructions.
var synchronises = []string{"bar.sync", "barrier.sync", "cp.async.wait", "cp.async.bulk.wait", "cp.async.commit", "cp.async.bulk.commit",
	"fence.proxy", "fence.mbarrier_init", "mbarrier.init", "mbarrier.arrive", "wgmma.fence", "wgmma.commit", "wgmma.wait", "barrier.cluster.arrive", "barrier.cluster.wait"}

// dropped carries the result of checking a kernel without one of its lines. checkDropped panics
// with it, and checkTwin recovers it.
type dropped struct{ err error }

// passing is, for each kernel, the number of lines that may be dropped without a finding. They are
// redundant at the tested sizes: a second fence, a commit before wait_all, barriers between atomics
// or between accesses of one thread, barriers of one warpgroup after its wait_group.
var passing = map[string]int{"asynccopy asynccopy": 1, "bulk bulk": 2, "counting counting": 2, "reduce reduce": 1, "triton_count count": 2, "triton_matmul matmul": 2}

// TestDroppedLines drops each ordering line of the foreign kernels in turn, and checks that Check
// then has a finding. The table passing has the number of redundant lines of each kernel.
func TestDroppedLines(t *testing.T) {
	total, passed := 0, map[string]int{}
	for _, name := range slices.Sorted(maps.Keys(foreignTwins)) {
		file, entry, _ := strings.Cut(name, " ")
		text, err := os.ReadFile("../testdata/foreign/" + file + ".ptx")
		require.NoError(t, err)
		lines, other := strings.Split(string(text), "\n"), false // other: the line belongs to another kernel of the file
		for i, line := range lines {
			if _, begins, ok := strings.Cut(line, ".entry "); ok {
				other = !strings.HasPrefix(begins, entry+"(")
			}
			op := strings.TrimSpace(line)
			if strings.HasPrefix(op, "@") {
				_, op, _ = strings.Cut(op, " ")
				op = strings.TrimSpace(op)
			}
			if other || !slices.ContainsFunc(synchronises, func(s string) bool { return strings.HasPrefix(op, s) }) || strings.Count(op, ";") != 1 {
				continue
			}
			without := slices.Clone(lines)
			without[i] = ""
			m, err := Load([]byte(strings.Join(without, "\n")))
			if err != nil {
				continue // the text does not load without the line, because another instruction needs its result
			}
			k, err := m.Kernel(entry)
			require.NoError(t, err)
			total++
			if checkTwin(t, k, name) == nil {
				passed[name]++
				t.Logf("%s, line %d: without %s", name, i+1, op)
			}
		}
	}
	assert.Equal(t, passing, passed)
	assert.GreaterOrEqual(t, total, 90)
}

// checkTwin runs an entry's twin with kernel k, and returns the first finding.
func checkTwin(t *testing.T, k *Kernel, name string) (err error) {
	defer func() {
		if d, ok := recover().(dropped); ok {
			err = d.err
		}
	}()
	p := &program{t: t, kernel: k, mem: NewMemory(1 << 24)}
	p.launch.SpinLimit, p.launch.GoOn = 1<<14, never
	foreignTwins[name](t, &foreignRun{program: p, rng: rand.New(rand.NewPCG(7, uint64(len(name)))), dropped: true})
	return nil
}

// checkDropped checks the launch of a kernel without one of its lines, and ends the twin.
func (r *foreignRun) checkDropped() {
	panic(dropped{r.kernel.Check(context.Background(), r.mem, r.launch, 2)})
}
