package emu

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// work returns PTX of a loop of n iterations that has no effect.
func work(name string, n int) string {
	return fmt.Sprintf("mov.u32 %%r9, 0;\n%s: add.u32 %%r9, %%r9, 1; setp.lt.u32 %%p7, %%r9, %d; @%%p7 bra %s;\n", name, n, name)
}

// enter and leave begin and end a critical section. enter counts the warps inside in the word at
// byte 16 of the buffer, and traps if another warp is inside.
const (
	enter = "atom.global.add.u32 %r5, [%d0+16], 1; setp.ne.u32 %p4, %r5, 0; @%p4 trap;\n"
	leave = "atom.global.add.u32 %r5, [%d0+16], -1;\n"
)

// one returns a kernel in which only lane 0 of each warp executes the code.
func one(code string) string {
	return body(warps + `
	and.b32 %r4, %r3, 31;
	setp.ne.u32 %p2, %r4, 0;
	@%p2 exit;
` + code + "\n	exit;")
}

// explored lists kernels with a mistake that shows in only a few of the orders of their warps.
var explored = []struct {
	name, code string
	warps      int
	kind       FaultKind
}{
	{"a lock that is looked at, then taken", work("a", 1000) + `
	try: ld.acquire.gpu.global.u32 %r6, [%d0];
	setp.ne.u32 %p3, %r6, 0;
	@%p3 bra try;
	st.release.gpu.global.u32 [%d0], 1;
	` + enter + leave + `
	st.release.gpu.global.u32 [%d0], 0;
	` + work("b", 1000), 2, Trap},
	{"two locks, one way and the other", work("a", 1000) + `
	selp.b32 %r10, 0, 4, %p0;
	sub.u32 %r11, 4, %r10;
	cvt.u64.u32 %d1, %r10;
	cvt.u64.u32 %d2, %r11;
	add.u64 %d1, %d0, %d1;
	add.u64 %d2, %d0, %d2;
	first: atom.acquire.gpu.global.cas.b32 %r6, [%d1], 0, 1;
	setp.ne.u32 %p3, %r6, 0;
	@%p3 bra first;
	second: atom.acquire.gpu.global.cas.b32 %r6, [%d2], 0, 1;
	setp.ne.u32 %p3, %r6, 0;
	@%p3 bra second;
	` + enter + leave + `
	atom.release.gpu.global.exch.b32 %r6, [%d2], 0;
	atom.release.gpu.global.exch.b32 %r6, [%d1], 0;
	` + work("b", 1000), 2, Deadlock},
	{"the last warp by two counters", work("a", 1000) + `
	atom.global.add.u32 %r6, [%d0], 1;
	atom.global.add.u32 %r7, [%d0+4], 1;
	setp.ne.u32 %p3, %r6, %r7;
	@%p3 trap;
	` + work("b", 1000), 3, Trap},
}

func (p *program) explore(orders int) (Exploration, error) {
	return p.kernel.Explore(context.Background(), p.mem, p.launch, orders)
}

// TestExplore checks that Explore finds mistakes that 20 random orders do not show, and that the
// choices it returns show them again.
func TestExplore(t *testing.T) {
	for _, x := range explored {
		t.Run(x.name, func(t *testing.T) {
			p := assemble(t, one(x.code), "k")
			p.params(p.u32s(make([]uint32, 16)...), 0)
			p.launch.Block, p.launch.SharedBytes, p.launch.SpinLimit = [3]int{32 * x.warps}, 64, 1<<16
			require.NoError(t, p.kernel.Check(context.Background(), p.mem, p.launch, 20), "20 random orders miss it")
			clear := func() { require.NoError(t, p.mem.Write(p.mem.find(p.mem.next-1).base, make([]byte, 64))) }
			clear()
			e, err := p.explore(2000)
			t.Logf("%v: %v", e, err)
			var found *Findings
			require.True(t, errors.As(err, &found), "%v", err)
			require.Equal(t, x.kind, found.List[0].Kind)
			again := p.launch
			again.Timing, again.Choices = Chosen, found.List[0].Choices
			clear()
			var f *Fault
			require.True(t, errors.As(p.kernel.Launch(context.Background(), p.mem, again), &f))
			require.Equal(t, *found.List[0].Fault, *f, "replayed")
		})
	}
}

// TestExploreFindsAll checks, for random kernels, that Explore runs every order that random choices
// find.
func TestExploreFindsAll(t *testing.T) {
	ops := []string{
		"atom.global.add.u32 %r5, [%d0+W], 1;", "red.global.add.u32 [%d0+W], 1;", "red.global.max.u32 [%d0+W], 3;",
		"ld.relaxed.gpu.global.u32 %r6, [%d0+W];", "st.relaxed.gpu.global.u32 [%d0+W], 2;",
		"mbarrier.arrive.shared::cta.b64 %d5, [%r0];", "mbarrier.test_wait.parity.shared::cta.b64 %p5, [%r0], 0;",
		"atom.shared.exch.b32 %r5, [%r0+W], 5;", "bar.arrive 1, 96;",
	}
	const actors, samples = 3, 60
	different := 0
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		code := `
	@%p1 mbarrier.init.shared::cta.b64 [%r0], 6;
	@%p1 st.shared.u32 [%r0+16], 0;
	@%p1 st.shared.u32 [%r0+20], 0;
	@%p1 fence.mbarrier_init.release.cluster;
	bar.sync 0;
	setp.eq.u32 %p3, %r1, 1;
	@%p3 bra w1;
	setp.eq.u32 %p3, %r1, 2;
	@%p3 bra w2;
`
		arrivals := 0
		for w := range actors {
			code += fmt.Sprintf("w%d:\n", w)
			for range 2 + rng.IntN(3) {
				op := ops[rng.IntN(len(ops))]
				if strings.HasPrefix(op, "bar.") && arrivals > 0 || strings.HasPrefix(op, "mbarrier.arrive") && arrivals > 5 {
					continue
				}
				if !strings.HasPrefix(op, "bar.") {
					op = "@%p2 " + op
				} else {
					arrivals = 9
				}
				code += "\t" + strings.Replace(op, "W", fmt.Sprint(16+4*rng.IntN(2)), 1) + "\n"
			}
			code += "\texit;\n"
		}
		p := assemble(t, body(warps+"and.b32 %r4, %r3, 31;\nsetp.eq.u32 %p2, %r4, 0;\n"+code), "k")
		p.launch.Block, p.launch.SharedBytes = [3]int{32 * actors}, 64
		p.params(p.u32s(make([]uint32, 16)...), 0)
		e := newExploration()
		require.NoError(t, e.run(context.Background(), p.kernel, p.mem, p.launch, 5000), "seed %d: %s", seed, code)
		require.True(t, e.All, "seed %d: %v", seed, e)
		different += e.Different
		found := map[uint64]bool{}
		for range samples {
			var choices []choice
			for at := range 30 {
				choices = append(choices, choice{at, rng.IntN(actors)})
			}
			l := p.launch
			l.Timing = Chosen
			for { // remove the choices that are impossible, one after the other
				s, err := p.kernel.follow(context.Background(), p.mem, l, choices)
				require.NoError(t, err)
				if s.wrong == nil {
					require.True(t, e.marks[s.mark], "seed %d: %q is an order that was not explored, %s", seed, choicesText(s.made), code)
					found[s.mark] = true
					break
				}
				choices = slices.DeleteFunc(choices, func(c choice) bool { return c == *s.wrong })
			}
		}
		t.Logf("seed %d: %v; chance finds %d", seed, e, len(found))
	}
	require.Greater(t, different, 100)
}

// TestWrongChoices checks that invalid choices are errors.
func TestWrongChoices(t *testing.T) {
	p := assemble(t, body("exit;"), "k")
	p.params(p.u32s(0), 0)
	p.launch.Timing = Chosen
	require.NoError(t, p.run())
	for choices, says := range map[string]string{"0": "STEP:ACTOR", "1:0 1:0": "increasing steps", "0:7": "choice 0:7: actor 7 cannot take step 0"} {
		p.launch.Choices = choices
		require.ErrorContains(t, p.run(), says)
	}
	_, err := p.kernel.Explore(context.Background(), nil, p.launch, 1)
	require.ErrorContains(t, err, "memory is nil")
}

// TestExploreOneOrder checks that a kernel that uses only barriers and waits has one order.
func TestExploreOneOrder(t *testing.T) {
	g := gemm{n: 8, stages: 2}
	p := g.build(t)
	out, want, exact := g.arguments(p, 5)
	e, err := p.explore(10)
	require.NoError(t, err)
	require.True(t, e.All, "%v", e)
	require.Equal(t, 1, e.Orders, "%v", e)
	g.check(t, p, out, want, exact)
}

// TestExplorePlanted checks the kernels into which other tests plant mistakes. Without the mistake,
// they must have no finding in any order, and Explore must finish within 30 orders.
func TestExplorePlanted(t *testing.T) {
	all := 0
	for i := range plantedKernels {
		k := &plantedKernels[i]
		p := k.program(t, k.code)
		e, err := p.explore(30)
		require.NoError(t, err, k.name)
		t.Logf("%s: %v", k.name, e)
		if e.All {
			all++
		}
	}
	require.Equal(t, len(plantedKernels), all)
}
