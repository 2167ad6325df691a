package sweeps_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/driver/open"
	"sonicmoe/internal/drivertest"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
	"sonicmoe/moe/tools"
	"sonicmoe/ptx"
	"sonicmoe/ptx/emu"
	"sonicmoe/ptx/isa"
)

func TestMain(m *testing.M) { os.Exit(drivertest.Main(m, open.Device)) }

// trialOn creates a layer on a device, without a cache, with the tensors of its passes.
func trialOn(t *testing.T, dev driver.Device, c moe.Config, tokens int, opts ...moe.Option) *trial.Trial {
	l, err := moe.New(context.Background(), dev, c, append([]moe.Option{moe.WithoutCache()}, opts...)...)
	require.NoError(t, err)
	tr, err := trial.New(dev, l, tokens, 1, 6)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	return tr
}

// orders has the prefixes of instructions that order other instructions.
var orders = []string{"bar.", "cp.async.wait", "cp.async.bulk.wait", "cp.async.mbarrier", "cp.async.commit", "cp.async.bulk.commit", "fence.", "mbarrier.init", "mbarrier.arrive",
	"mbarrier.try_wait", "wgmma.fence", "wgmma.commit", "wgmma.wait", "barrier.cluster", "griddepcontrol.wait"}

// weaker returns the instructions that an author could write by mistake in place of the instruction
// `in`. If `in` only orders other instructions, the result is empty, because the author may forget
// it. If `in` is a load or store with a memory order, the result is its relaxed form. ok is false
// if `in` orders nothing.
func weaker(in *ptx.Inst) (others []ptx.Inst, ok bool) {
	if in.Form == nil {
		return nil, false
	}
	if slices.ContainsFunc(orders, func(s string) bool { return strings.HasPrefix(in.Form.Op, s) }) {
		return nil, true
	}
	if i := in.Form.ModIndex("sem"); i >= 0 && in.Mods[i] > 0 {
		if relaxed := slices.Index(in.Form.Mods[i].Alts, ".relaxed") + 1; relaxed > 0 && int(in.Mods[i]) != relaxed {
			other := *in
			other.Mods[i] = uint8(relaxed)
			return []ptx.Inst{other}, true
		}
	}
	return nil, false
}

// sweep checks each launched kernel without its ordering instructions, one instruction at a time.
// An instruction is called a line here.
type sweep struct {
	t       *testing.T
	modules map[string]*ptx.Module
	every   int // check one of `every` lines
	lines   int
	found   map[droppedLine]string // for each line, the kind of the fault, or isMissed or isUnreached
	// again, unless nil, restricts this layer to some places: those whose lines were removed in
	// earlier layers without a fault. Its values are the results of this layer.
	again map[place]string
}

// place is the position of a line in the Go code. Several texts of a kernel have lines of the same
// place.
type place struct{ kernel, what string }

func (l droppedLine) place() place { return place{l.kernel, l.what} }

// passed returns the places of the lines for which no check has found a fault.
func (s *sweep) passed() map[place]string {
	places := map[place]string{}
	for line, kind := range s.found {
		if kind == isMissed {
			places[line.place()] = ""
		}
	}
	return places
}

// name updates the lines for which earlier layers found no fault: each gets the result that this
// layer has for the line's place.
func (s *sweep) name() {
	for line, was := range s.found {
		if kind := s.again[line.place()]; was == isMissed && kind != "" {
			s.found[line] = kind
		}
	}
}

// droppedLine is an instruction that was dropped from a kernel. The field `at` is the instruction's
// index in the kernel, and the field `what` is its position in the Go code.
type droppedLine struct {
	kernel, text string // the kernel's name and its PTX
	at           int
	what         string
}

const (
	isMissed    = "passes"
	isUnreached = "unreached" // no warp executes the instruction
)

func (s *sweep) launching(k *emu.Kernel, mem *emu.Memory, l emu.Launch) {
	m := s.modules[k.Name()]
	if m == nil {
		return
	}
	l.SpinLimit, l.StrictProxy = 1<<14, true
	e := m.Entry(k.Name())
	whole, text := e.Body, string(m.Print().PTX)
	defer func() { e.Body = whole }()
	// check runs the kernel with the instructions `others` in place of instruction number at.
	check := func(at int, others ...ptx.Inst) error {
		e.Body = slices.Insert(slices.Delete(slices.Clone(whole), at, at+1), at, others...)
		code, err := emu.Load(m.Print().PTX)
		require.NoError(s.t, err)
		without, err := code.Kernel(k.Name())
		require.NoError(s.t, err)
		once := l
		once.Stream = l.Stream.Clone() // the next check must not be ordered after this launch
		return without.Check(context.Background(), mem.Clone(), once, 1)
	}
	for i := range whole {
		in := &whole[i]
		others, ok := weaker(in)
		if !ok {
			continue
		}
		line := droppedLine{k.Name(), text, i, fmt.Sprintf("%v without %s", in.Pos(), in.Form.Op)}
		if s.again != nil {
			was, here := s.again[line.place()]
			var f *emu.Fault
			switch {
			case !here || was == isMissed:
			case errors.As(check(i, others...), &f):
				s.again[line.place()] = f.Kind.String()
			default:
				s.again[line.place()] = isMissed
			}
			continue
		}
		was, again := s.found[line]
		if !again {
			if s.lines++; s.lines%s.every != 0 {
				continue
			}
		} else if was != isMissed && was != isUnreached {
			continue
		}
		var f *emu.Fault
		if err := check(i, others...); errors.As(err, &f) {
			s.found[line] = f.Kind.String()
			continue
		} else {
			require.NoError(s.t, err)
		}
		trap := ptx.Inst{Form: &isa.Table[isa.Trap], Guard: in.Guard, GuardNot: in.GuardNot}
		if err := check(i, trap, *in); err != nil {
			s.found[line] = isMissed
		} else if !again {
			s.found[line] = isUnreached
		}
	}
}

// TestDroppedLines removes each ordering instruction of the kernels in turn, while a small layer
// runs, and checks that the emulator reports a fault. Some faults only show at sizes where a ring
// wraps around, a CTA has several tiles, or a warp has several steps. The table needlessLines has
// the instructions that are not needed. Without SONICMOE_LONG the test tries one of 40
// instructions.
func TestDroppedLines(t *testing.T) {
	if drivertest.Name() != "emulated" {
		t.Skip("a GPU would hang")
	}
	if testing.Short() {
		t.Skip("checks of kernels: not with -short")
	}
	s := &sweep{t: t, every: 40, found: map[droppedLine]string{}}
	if kt.Long() {
		s.every = 1
	}
	layer := func(hidden, intermediate, experts, topK int) moe.Config {
		return moe.Config{Hidden: hidden, Intermediate: intermediate, NumExperts: experts, TopK: topK}
	}
	small := layer(640, 320, 6, 2)
	for _, of := range []struct {
		name     string
		config   moe.Config
		tokens   int
		backward bool
		sms      int
		again    []string // names of kernels whose lines are tried again here if their removal has shown no fault so far
	}{
		{"large batch", small, 400, true, 4, nil},
		{"20 tokens", small, 20, false, 4, nil},
		{"60 tokens", small, 60, false, 4, nil},
		{"5 tokens", small, 5, false, 4, nil},
		{"single token", small, 1, false, 4, nil},
		{"several tiles per CTA", small, 400, true, 2, []string{"moe_dh", "moe_dw1", "moe_dw2", "moe_up"}},
		{"a queue that wraps around", layer(192, 192, 6, 2), 2500, true, 2, []string{"moe_up", "moe_down", "moe_dh", "moe_dx"}},
		{"few rows per expert", small, 100, true, 2, []string{"moe_dw1", "moe_dw2"}},
		{"many experts", layer(128, 64, 48, 10), 600, true, 4, []string{"moe_plan", "moe_plan_pairs"}},
		{"many experts, small batch", layer(128, 64, 48, 10), 60, false, 4, []string{"moe_choose"}},
		{"deep sums", layer(8192, 64, 6, 2), 1280, true, 4, []string{"moe_dwr", "moe_router"}},
		{"deep sums, small batch", layer(8192, 64, 6, 2), 10, false, 4, []string{"moe_small_batch_logits"}},
		{"deep sums of the down-projection, small batch", layer(128, 4096, 6, 2), 10, false, 4, []string{"moe_decode_down"}},
		{"turns of one step, 60 tokens", layer(64, 64, 32, 8), 60, false, 2, []string{"moe_decode_up", "moe_decode_down"}},
		{"turns of one step, 5 tokens", layer(64, 64, 32, 8), 5, false, 2, []string{"moe_decode_tiny_up", "moe_decode_tiny_down"}},
	} {
		s.again = nil
		if of.again != nil {
			s.again = s.passed()
			maps.DeleteFunc(s.again, func(p place, _ string) bool { return !slices.Contains(of.again, p.kernel) })
			if len(s.again) == 0 {
				continue
			}
		}
		t.Run(of.name, func(t *testing.T) {
			s.t = t
			target := emulated.Target()
			target.SMs = of.sms
			// With Races, the device also finds faults between a launch and the next launch, which
			// may start before the first one ends.
			dev, err := emulated.New(emulated.Options{Target: target, Races: of.again == nil, Launching: s.launching})
			require.NoError(t, err)
			var options []moe.Option
			if !of.backward {
				options = append(options, moe.WithoutBackward())
			}
			sources, err := tools.Sources(dev.Target(), of.config, options...)
			require.NoError(t, err)
			s.modules = map[string]*ptx.Module{}
			for _, src := range sources {
				for _, e := range src.Module.Entries {
					s.modules[e.Name] = src.Module
				}
			}
			tr := trialOn(t, dev, of.config, of.tokens, options...)
			require.NoError(t, tr.Run(context.Background(), tr.Args)) // the checks run here and take most of the test's time
			if of.backward {
				require.NoError(t, tr.PrepareBackward(17, moe.BF16))
				require.NoError(t, tr.RunBackward(context.Background(), tr.Back))
			}
		})
		s.name()
	}
	kinds, passed := map[string]int{}, map[place]int{}
	for line, kind := range s.found {
		if kinds[kind]++; kind == isMissed {
			passed[place{line.kernel, lineNumbers.ReplaceAllString(line.what, "")}]++
			t.Logf("%s passes, %s", line.what, line.kernel)
		}
	}
	for p, n := range passed {
		i := slices.IndexFunc(needless, func(x needlessLine) bool {
			return x.what == p.what && slices.Contains(strings.Fields(x.kernels), p.kernel)
		})
		if i < 0 {
			t.Errorf("%s: %d of %s pass, and the table has no reason", p.kernel, n, p.what)
			continue
		}
		assert.LessOrEqual(t, n, needless[i].most, "%s: %s", p.kernel, p.what)
	}
	named := len(s.found) - kinds[isMissed] - kinds[isUnreached]
	t.Logf("%d lines: %d found, %v", s.lines, named, kinds)
	share := 90 // percentage of all lines for which a fault must be found
	if s.every > 1 {
		share = 80 // lower for a small sample
	}
	assert.GreaterOrEqual(t, 100*named, share*(named+kinds[isMissed]))
}

var lineNumbers = regexp.MustCompile(`:\d+`)

// Reasons why a kernel shows no fault without griddepcontrol.wait.
const (
	firstOfPass   = "the first kernel of the pass has no predecessor in it"
	forSuccessors = "the one launch that may still run touches no memory of this kernel; successors need the wait, as they rely on it for all launches before"
)

// readByNextLaunch is the reason why the removal of a release shows no fault if the reader is in
// the next launch.
const readByNextLaunch = "the down-projection reads the table, and a check launches one kernel"

// needlessLine describes instructions whose removal a check of a single launch cannot find. The
// field `what` is their position in the Go code, `most` is the largest number of such instructions
// in one kernel, and `why` is the reason.
type needlessLine struct {
	kernels string
	most    int
	what    string
	why     string
}

var needless = []needlessLine{
	{"moe_up moe_down moe_dh moe_dx moe_dw1 moe_dw2", 1, "pipeline/cta.go < gemm/math.go < gemm/math.go without bar.sync",
		"the stagger of the two warpgroups is for speed"},
	{"moe_up moe_dh", 1, "schedule/queue.go < gemm/load.go < gemm/product.go < pipeline/role.go without bar.warp.sync",
		"as the next line; a CTA's first item is not read ahead, and at these sizes the rings order it"},
	{"moe_up moe_dh", 1, "schedule/queue.go < gemm/load.go < gemm/load.go < gemm/product.go without bar.warp.sync",
		"an item is read one tile ahead, before that tile's stages arrive, and math waits for these before it releases the item"},
	{"moe_up", 2, "pipeline/barrier.go < gemm/product.go < gemm/product.go < pipeline/role.go without barrier.cluster.wait",
		"both roles wait at the end, and each alone keeps the CTA there until the other has arrived"},
	{"moe_up", 1, "pipeline/cta.go < pipeline/cta.go < gemm/product.go without fence.mbarrier_init.release.cluster",
		"the publisher of tiles fences its proxies before the first copy, and all other copies follow a tile"},
	{"moe_up", 1, "pipeline/cta.go < gemm/product.go < gemm/product.go < kernel/up.go without bar.sync",
		"the barrier of the cluster follows at once"},
	{"moe_dh", 6, "dh/epilogue.go < dh/epilogue.go < dh/epilogue.go without bar.warp.sync",
		"ldmatrix and stmatrix each run for the whole warp at once, and after a tile's last parts the queue's readers meet"},
	{"moe_dh", 2, "dh/epilogue.go < dh/epilogue.go < dh/epilogue.go without fence.proxy.async",
		"after a tile's last parts the main loop fences each k-tile before it loads H again"},
	{"moe_dw1 moe_dw2", 1, "dw/math.go without wgmma.wait_group.sync.aligned",
		"the wait after the last step waits for the same products"},
	{"moe_dw1 moe_dw2", 1, "gemm/math.go < dw/math.go < dw/math.go without wgmma.wait_group.sync.aligned",
		"the wait of each step waits for the same products, and the wait after the last step for those of that step"},
	{"moe_dw2", 1, "gemm/math.go < gemm/math.go < dw/math.go without cp.async.bulk.wait_group",
		"the first of an odd number of sub-tiles has waited for both slots"},
	{"moe_dw2", 1, "pipeline/cta.go < gemm/math.go < gemm/math.go < dw/math.go without bar.sync",
		"the first of an odd number of sub-tiles has waited for both slots, and all warps met after it"},
	{"moe_dwplan", 1, "dw/plan.go < dw/plan.go < dw/plan.go without bar.warp.sync",
		"the redux.sync after it waits for the same lanes, and no lane reads another's memory"},
	{"moe_dwr", 1, "pipeline/ring.go < pipeline/ring.go < pipeline/ring.go < gemm/math.go without mbarrier.arrive.shared::cta.b64",
		"no load fills a CTA's last stage again"},
	{"moe_small_batch_logits moe_chain_logits", 3, "pipeline/ring.go < pipeline/ring.go < pipeline/ring.go < choose/chains.go without mbarrier.arrive.shared::cta.b64",
		"no load fills the last stages of a chain again, or any stage if the ring has them all"},
	{"moe_choose", 1, "order/plan.go < order/plan.go < choose/choose.go < choose/choose.go without bar.sync",
		"all warps meet again after the choice, before they count in the cleared words"},
	{"moe_small_batch_logits moe_chain_logits", 1, "choose/smallbatch.go < choose/smallbatch.go < registry/registry.go < recent/recent.go without griddepcontrol.wait", firstOfPass},
	{"moe_router", 1, "choose/router.go < choose/router.go < registry/registry.go < recent/recent.go without griddepcontrol.wait", firstOfPass},
	{"moe_count", 1, "order/count.go < order/count.go < registry/registry.go < recent/recent.go without griddepcontrol.wait", firstOfPass},
	{"moe_dwplan", 1, "dw/plan.go < dw/plan.go < registry/registry.go < recent/recent.go without griddepcontrol.wait", forSuccessors},
	{"moe_dw1", 1, "dw/dw.go < dw/dw.go < gradient/gradient.go < registry/registry.go without griddepcontrol.wait", forSuccessors},
	{"moe_dx", 1, "gemm/product.go < gemm/product.go < kernel/dx.go < kernel/dx.go without griddepcontrol.wait", forSuccessors},
	{"moe_dwr", 1, "gemm/twoterm.go < drouter/drouter.go < drouter/drouter.go < registry/registry.go without griddepcontrol.wait", forSuccessors},
	{"moe_decode_tiny_up moe_decode_tiny_down", 1, "pipeline/ring.go < pipeline/ring.go < pipeline/ring.go < gemm/math.go without mbarrier.arrive.shared::cta.b64",
		"at these sizes the ring has more stages than a CTA loads: none is filled again"},
	{"moe_decode_tiny_up", 1, "decode/choice.go < decode/choice.go without bar.warp.sync", readByNextLaunch},
	{"moe_decode_tiny_up", 1, "decode/choice.go < decode/choice.go without st", readByNextLaunch},
	{"moe_aggregate_early", 1, "kernel/aggregate.go < kernel/aggregate.go < kernel/aggregate.go without ld",
		"as the next line"},
	{"moe_decode_down", 1, "decode/scheduler.go < decode/scheduler.go < decode/scheduler.go without ld",
		"the kernel that wrote the word has ended; on a GPU the acquire avoids stale caches, which the emulator does not have"},
	{"moe_single_down", 2, "decode/singledown.go < decode/singledown.go without ld",
		"before griddepcontrol.wait, the word is all that is read of the predecessor's output"},
	{"moe_single_down", 1, "decode/singledown.go < decode/singledown.go < decode/single.go < decode/single.go without bar.warp.sync",
		"lane 0 waits for the best time to load, not for data"},
	{"moe_single_down", 1, "decode/singledown.go < decode/singledown.go < decode/single.go without bar.warp.sync",
		"the multiplying warps meet at y's barrier before any reads the scores"},
	{"moe_single_up moe_single_down", 1, "decode/single.go < decode/single.go without bar.warp.sync",
		"bytes may arrive before they are expected: the phase does not end before lane 0, which expects them, arrives"},
	{"moe_single_down", 1, "pipeline/cta.go < decode/single.go < decode/singledown.go < decode/singledown.go without bar.sync",
		"all warps meet again when the experts are known, before any uses an mbarrier"},
	{"moe_single_up", 1, "pipeline/cta.go < decode/single.go < decode/singleup.go < decode/singleup.go without bar.sync",
		"all warps meet again after the choice, before any uses an mbarrier"},
}

// TestNeedlessLines checks that each place in the table is a place in one of its kernels.
func TestNeedlessLines(t *testing.T) {
	if testing.Short() {
		t.Skip("emits every kernel of every layer: not with -short")
	}
	lines := map[place]bool{}
	for _, l := range kt.Layers {
		sources, err := tools.Sources(driver.H200(), l.Config, moe.WithTilings(l.Tiles.Text()))
		require.NoError(t, err)
		for _, s := range sources {
			body := s.Module.Entry(s.Name).Body
			for i := range body {
				if in := &body[i]; in.Form != nil {
					lines[place{s.Name, lineNumbers.ReplaceAllString(fmt.Sprintf("%v without %s", in.Pos(), in.Form.Op), "")}] = true
				}
			}
		}
	}
	for _, x := range needless {
		for _, k := range strings.Fields(x.kernels) {
			assert.True(t, lines[place{k, x.what}], "%s has no %s", k, x.what)
		}
	}
}
