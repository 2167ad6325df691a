package kernel

import (
	"context"
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/outside"
	"sonicmoe/internal/spec"
	"sonicmoe/jit/gemm"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/tiles"
	"sonicmoe/moe/internal/weights"
	"sonicmoe/ptx"
	"sonicmoe/ptx/ptxas"
)

// This file runs ptxas, NVIDIA's assembler, on the registry's kernels.

// All layers take too long for each run of CI. Run the test with -all before a release,
// and after a change of a kernel, of a space of tilings or of jit/gemm.
var assembleAll = flag.Bool("all", false, "TestAssemble: every kernel in every layer at every tiling, "+
	"not in one layer each (two minutes of two cores)")

// assembly is a kernel of a layer to assemble. A product also has a tiling.
type assembly struct {
	layer  string
	kernel registry.Any
	of     registry.Layer
	tiling gemm.Tiling
}

// String names the kernel and its tiling.
func (a assembly) String() string {
	if a.kernel.Product() == nil {
		return a.of.KernelName(a.kernel)
	}
	return fmt.Sprintf("%s %v", a.of.KernelName(a.kernel), a.tiling)
}

// routings lists layers that differ only in their routing, up to the largest number of experts, and
// a layer with shared experts without a gate. The test assembles only those kernels of these layers
// that have no tilings.
var routings = []kt.Layer{
	{Name: "router's bias", Config: spec.Config{NumExperts: 32, TopK: 4, RouterBias: true}},
	{Name: "router's bias, 256", Config: spec.Config{NumExperts: 256, TopK: 8, RouterBias: true, Logits: spec.F32}},
	{Name: "softmax over all", Config: spec.Config{NumExperts: 64, TopK: 8, Score: spec.SoftmaxAll}},
	{Name: "softmax over all 128", Config: spec.Config{NumExperts: 128, TopK: 16, Score: spec.SoftmaxAll, Logits: spec.F32, RouterBias: true}},
	{Name: "softmax over all 256", Config: spec.Config{NumExperts: 256, TopK: 8, Score: spec.SoftmaxAll}},
	{Name: "sigmoid in groups", Config: spec.Config{NumExperts: 256, TopK: 8, Logits: spec.F32, Score: spec.Sigmoid, SelectionBias: true,
		Groups: 8, TopGroups: 4, GroupSumOfTwo: true, Renormalize: spec.RenormSum, NormEpsilon: 1e-20, ScoreScale: 2.5}},
	{Name: "widest", Config: spec.Config{NumExperts: 1024, TopK: 32, Logits: spec.F32, Score: spec.SoftmaxAll, SelectionBias: true, RouterBias: true, ExpertScale: true,
		Groups: 128, TopGroups: 64, GroupSumOfTwo: true, Renormalize: spec.RenormClamp, NormEpsilon: 1e-12}},
	{Name: "odd", Config: spec.Config{NumExperts: 999, TopK: 32, Score: spec.SqrtSoftplus, Renormalize: spec.RenormSum}},
	{Name: "sigmoid, router in FP32", Config: spec.Config{NumExperts: 264, TopK: 8, Logits: spec.F32, RouterF32: true, Score: spec.Sigmoid}},
	{Name: "shared, no gate", Config: spec.Config{NumExperts: 60, TopK: 4, SharedExperts: 2}},
}

// assemblies lists the kernels of every layer and of its shared experts, with every tiling
// that the cost model chooses among and with the layer's own tiling, and the unpacking of every
// format of packed weights.
func assemblies() (list []assembly) {
	for _, l := range kt.Layers {
		list = append(list, assembliesOf(l, func(registry.Any) bool { return true })...)
	}
	for _, l := range routings {
		l.Config.Hidden, l.Config.Intermediate = 2048, 512
		list = append(list, assembliesOf(l, func(k registry.Any) bool { return k.Product() == nil })...)
	}
	for _, p := range spec.Packings {
		l := kt.Layer{Name: p.Name, Config: spec.Config{Hidden: 2048, Intermediate: 512, NumExperts: 8, TopK: 2, Weights: p.Name}}
		list = append(list, assembliesOf(l, func(k registry.Any) bool { return k == UnpackKernel })...)
	}
	return list
}

func assembliesOf(l kt.Layer, wanted func(registry.Any) bool) (list []assembly) {
	for _, k := range Kernels {
		if wanted(k) && k.Suits(l.Config) {
			list = append(list, atTilings(l, k, registry.Layer{Config: l.Config})...)
		}
	}
	if shared, has := l.Config.Shared(); has {
		for _, k := range SharedKernels(shared) {
			if wanted(k) {
				list = append(list, atTilings(l, k, registry.Layer{Config: shared, IsShared: true})...)
			}
		}
	}
	return list
}

func atTilings(l kt.Layer, k registry.Any, of registry.Layer) (list []assembly) {
	p := k.Product()
	if p == nil {
		return []assembly{{layer: l.Name, kernel: k, of: of}}
	}
	tilings := p.Space(driver.H200())
	if own := l.Tiles[p.ID]; own != (gemm.Tiling{}) {
		tilings = append(tilings, own)
	}
	for _, tiling := range tilings {
		of.Tiles = tiles.Choice{}.With(p.ID, tiling)
		list = append(list, assembly{layer: l.Name, kernel: k, of: of, tiling: tiling})
	}
	return list
}

// oneEach keeps one assembly of each name: for the first name its first assembly, for the
// second name its second, and so on.
func oneEach(list []assembly, name func(assembly) string) (part []assembly) {
	of := map[string][]assembly{}
	var names []string
	for _, a := range list {
		if of[name(a)] == nil {
			names = append(names, name(a))
		}
		of[name(a)] = append(of[name(a)], a)
	}
	for i, name := range names {
		part = append(part, of[name][i%len(of[name])])
	}
	return part
}

// spilling lists kernels that may spill registers, and the largest known number of bytes that each
// spills. All spills are outside main loops. A thread has 168 registers (see
// [sonicmoe/jit/pipeline.Run]), and the sums of a tile of 256 columns take 128 of them.
var spilling = []struct {
	kernels string
	columns int // columns of the tiling; 0 for kernels without a tiling
	layers  func(c spec.Config) bool
	bytes   int
}{
	// Selections sort many keys in registers.
	{`router`, 0, func(c spec.Config) bool { return c.TopK > 8 && c.NumExperts >= 256 }, 24},
	{`decode-units-tiny-up`, 0, func(c spec.Config) bool { return c.NumExperts > 512 }, 36},
	{`drouter-extra`, 0, func(c spec.Config) bool { return c.TopK > 16 }, 84},
	// Warps multiply the last block of an odd number while all sums occupy registers.
	{`decode-units-(up|down)`, 0, func(c spec.Config) bool { return c.Weights == "mxfp4" && c.Bias }, 4},
	// The kernel loads the rows of all experts of a token at the same time.
	{`aggregate`, 0, func(c spec.Config) bool { return c.TopK > 16 }, 8},
	{`aggregate-early`, 0, func(c spec.Config) bool { return c.TopK == 16 }, 4},
	// ptxas moves the activation of all neurons of a tile before the tile's second store,
	// where all sums still occupy registers.
	{`up`, 256, func(c spec.Config) bool { return c.Activation == spec.SwiGLUOAI && !weights.InPairs(c) }, 132},
	// The k-tiles of an adapter take one or two more registers, which spill.
	{`up|down`, 256, spec.HasLoRA, 8},
	{`up`, 256, func(c spec.Config) bool { return c.Activation == spec.SwiGLUOAI && weights.InPairs(c) }, 4},
	{`up`, 256, func(c spec.Config) bool { return c.GateUp == spec.Apart && c.Bias }, 48},
	{`up`, 256, func(c spec.Config) bool { return c.InOut && c.Activation == spec.GeGLUTanh }, 16},
	{`up`, 256, func(c spec.Config) bool { return !c.Activation.Gated() }, 8},
	// The gradient of an activation that clamps keeps, in the epilogue, the values and the
	// predicates that tell which values were clamped.
	{`dh`, 128, func(c spec.Config) bool { return c.Activation == spec.SwiGLUOAI }, 76},
	// With scores on the input, the gradient needs H both with and without the score.
	{`dh`, 128, func(c spec.Config) bool { return c.ScoreOnInput }, 40},
	// The gradient is stored transposed, while loads of old values are in flight.
	{`(shared-)?dw1-add(-f32)?`, 256, func(c spec.Config) bool { return !c.InOut }, 128},
	{`dw2-add(-f32)?`, 256, func(c spec.Config) bool { return c.InOut }, 128},
}

// spills returns the number of bytes that a kernel may spill.
func (a assembly) spills() int {
	for _, s := range spilling {
		name := regexp.MustCompile(`^` + s.kernels + `$`)
		if name.MatchString(a.of.KernelName(a.kernel)) && a.tiling.TileN == s.columns && s.layers(a.of.Config) {
			return s.bytes
		}
	}
	return 0
}

// variant returns the part of a kernel's name that distinguishes kernels of one kind:
// whether H is saved, whether gradients are added or written, whether they are FP32, and
// whether CTAs are wide.
var variant = regexp.MustCompile(`-inference|-add|-f32|-wide`)

var spillStores = regexp.MustCompile(`(\d+) bytes spill stores`)

// forLinking makes ptxas assemble like the driver's linker.
const forLinking = "-c"

// TestAssemble assembles every kernel of the registry at every tiling. With -short it
// takes one tiling of each kind of kernel, with -all it takes every layer. A kernel must
// assemble without warnings, without serialised wgmma and with no more spills than the
// listed ones, and it must fit the chip. Its text must not change when it is parsed and
// printed.
func TestAssemble(t *testing.T) {
	outside.Ptxas(t)
	list := assemblies()
	for _, kernels := range []registry.Registry{Kernels, SharedKernels(spec.Config{}), SharedKernels(spec.Config{SharedGate: true})} {
		for _, k := range kernels {
			have := slices.ContainsFunc(list, func(a assembly) bool { return a.kernel == k })
			require.True(t, have, "no layer has %s: add one to kerneltest's or to the routings", k.Name())
		}
	}
	if !*assembleAll {
		list = oneEach(list, assembly.String) // one assembly for each kernel and tiling
	}
	if testing.Short() {
		list = oneEach(list, func(a assembly) string { return variant.ReplaceAllString(a.kernel.Name(), "") })
	}
	for _, a := range list {
		t.Run(fmt.Sprintf("%s: %v", a.layer, a), func(t *testing.T) {
			t.Parallel()
			a.check(t)
		})
	}
}

// check assembles the kernel with ptxas and checks the report.
func (a assembly) check(t *testing.T) {
	b, err := a.kernel.Build(a.of)
	require.NoError(t, err)
	source := b.Source("")
	require.LessOrEqual(t, source.SharedBytes, driver.H200().SharedBytesPerCTA)
	text := source.Module.Print().PTX
	m, err := ptx.Parse(text)
	require.NoError(t, err)
	require.NoError(t, m.Verify())
	require.Equal(t, string(text), string(m.Print().PTX))
	_, report, err := ptxas.Assemble(context.Background(), text, forLinking)
	require.NoError(t, err)
	complaint := ptxas.Complaint(report)
	if m := spillStores.FindStringSubmatch(complaint); m != nil {
		bytes, err := strconv.Atoi(m[1])
		require.NoError(t, err)
		require.LessOrEqual(t, bytes, a.spills(), report)
		complaint = ptxas.Complaint(strings.Replace(report, complaint, "", 1)) // goes on to the report's next complaint
	}
	require.Empty(t, complaint, report)
}
