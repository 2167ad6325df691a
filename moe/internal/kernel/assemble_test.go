package kernel

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/jit/gemm"
	"sonicmoe/moe/internal/gradient"
	"sonicmoe/moe/internal/kernel/decode"
	"sonicmoe/moe/internal/kernel/dh"
	"sonicmoe/moe/internal/kernel/drouter"
	"sonicmoe/moe/internal/kernel/dw"
	"sonicmoe/moe/internal/route"
	"sonicmoe/moe/spec"
	"sonicmoe/ptx"
	"sonicmoe/ptx/outside"
	"sonicmoe/ptx/ptxas"
)

// builder emits any kernel.
type builder interface {
	emit() (m *ptx.Module, sharedBytes int, err error)
}

// building is a kernel as a builder.
type building[A any] struct {
	of interface {
		Build() (*jit.Kernel[A], error)
	}
}

func (b building[A]) emit() (*ptx.Module, int, error) {
	k, err := b.of.Build()
	if err != nil {
		return nil, 0, err
	}
	return k.Module, k.SharedBytes, nil
}

// every lists the kernels of a layer at every point of their spaces.
func every(c spec.Config, t driver.Target) map[string]builder {
	m := map[string]builder{
		"router":              building[route.RouterArgs]{route.Router{Hidden: c.Hidden, NumExperts: c.NumExperts, TopK: c.TopK}},
		"router, FP32 logits": building[route.RouterArgs]{route.Router{Hidden: c.Hidden, NumExperts: c.NumExperts, TopK: c.TopK, Logits: spec.LogitsF32}},
		"count":               building[route.CountArgs]{route.Count{NumExperts: c.NumExperts, TopK: c.TopK}},
		"plan":                building[route.PlanArgs]{route.Plan{NumExperts: c.NumExperts, TopK: c.TopK}},
		"plan, pairs":         building[route.PlanArgs]{route.Plan{NumExperts: c.NumExperts, TopK: c.TopK, Pairs: true}},
		"aggregate":           building[AggregateArgs]{Aggregate{Hidden: c.Hidden, TopK: c.TopK}},
		"aggregate, dX":       building[AggregateArgs]{Aggregate{Hidden: c.Hidden, TopK: c.TopK, Unit: true, Extra: true}},
		"dscores":             building[dh.ScoresArgs]{dh.DScores{Intermediate: c.Intermediate, TopK: c.TopK, Scores: true}},
		"dscores, router":     building[dh.ScoresArgs]{dh.DScores{Intermediate: c.Intermediate, TopK: c.TopK, Scores: true, Router: true}},
	}
	m["few logits"] = building[route.FewLogitsArgs]{route.FewLogits{Hidden: c.Hidden, NumExperts: c.NumExperts, Logits: spec.LogitsF32}}
	for _, logits := range []spec.Logits{spec.LogitsBF16, spec.LogitsF32} {
		m["choose by "+logits.String()] = building[route.ChooseArgs]{route.Choose{Router: route.Router{Hidden: c.Hidden, NumExperts: c.NumExperts, TopK: c.TopK, Logits: logits}}}
	}
	for _, save := range []bool{false, true} {
		m[fmt.Sprintf("decode up save=%v", save)] = building[decode.UpArgs]{decode.Up{Config: c, SaveH: save}}
	}
	m["decode down"] = building[decode.DownArgs]{decode.Down{Config: c}}
	for _, of := range []spec.Config{{Bias: true}, {GateUp: spec.Apart, Bias: true}, {WeightOrder: spec.InOut, Bias: true}, {Activation: spec.ReLU2, WeightOrder: spec.InOut}} {
		of.Hidden, of.Intermediate, of.NumExperts, of.TopK = c.Hidden, c.Intermediate, c.NumExperts, c.TopK
		m[fmt.Sprintf("decode up %v %v %v bias=%v", of.Activation, of.GateUp, of.WeightOrder, of.Bias)] = building[decode.UpArgs]{decode.Up{Config: of, SaveH: true}}
		m[fmt.Sprintf("decode down %v bias=%v", of.WeightOrder, of.Bias)] = building[decode.DownArgs]{decode.Down{Config: of}}
	}
	for _, p := range UpProduct.Space(t) {
		for _, save := range []bool{false, true} {
			m[fmt.Sprintf("up %v save=%v", p, save)] = building[UpArgs]{Up{Config: c, SaveH: save, Tiling: p}}
			m[fmt.Sprintf("up in pairs %v save=%v", p, save)] = building[UpArgs]{Up{Config: inPairs(c), SaveH: save, Tiling: p}}
		}
	}
	for _, p := range DownProduct.Space(t) {
		m[fmt.Sprintf("down %v", p)] = building[DownArgs]{Down{Config: c, Tiling: p}}
	}
	for _, p := range dh.Product.Space(t) {
		m[fmt.Sprintf("dh %v", p)] = building[dh.Args]{dh.DH{Config: c, Tiling: p}}
		m[fmt.Sprintf("dh in pairs %v", p)] = building[dh.Args]{dh.DH{Config: inPairs(c), Tiling: p}}
	}
	for _, p := range DXProduct.Space(t) {
		for _, router := range []bool{false, true} {
			m[fmt.Sprintf("dx %v router=%v", p, router)] = building[DXArgs]{DX{Config: c, Router: router, Tiling: p}}
		}
	}
	m["dw plan"] = building[dw.PlanArgs]{dw.Plan{NumExperts: c.NumExperts}}
	stores := gradient.Modes[:]
	if c.Hidden%gemm.TileM == 0 {
		stores = stores[:1] // the sizes that don't divide have all code there is
	}
	for _, p := range dw.W1Product.Space(t) {
		for _, store := range stores {
			for _, d := range []dw.DW{{Of: dw.W2}, {Of: dw.W1}, {Of: dw.W1, Config: spec.Config{GateUp: spec.Interleaved}}} {
				d.Hidden, d.Intermediate, d.Store, d.Tiling = c.Hidden, c.Intermediate, store, p
				m[fmt.Sprintf("dW%d %v %v %+v", d.Of+1, p, d.GateUp, store)] = building[dw.Args]{d}
			}
		}
	}
	for _, gate := range []bool{false, true} {
		m[fmt.Sprintf("every token, gate=%v", gate)] = building[EveryTokenArgs]{EveryToken{Hidden: c.Hidden, Gate: gate}}
		m[fmt.Sprintf("aggregate, shared, gate=%v", gate)] = building[AggregateArgs]{Aggregate{Hidden: c.Hidden, TopK: c.TopK, Shared: true, SharedGate: gate}}
	}
	m["aggregate, dX, shared"] = building[AggregateArgs]{Aggregate{Hidden: c.Hidden, TopK: c.TopK, Unit: true, Extra: true, Shared: true}}
	m["extra rows"] = building[drouter.ExtraRowsArgs]{drouter.ExtraRows{Hidden: c.Hidden, NumExperts: c.NumExperts}}
	for _, extra := range []bool{false, true} {
		m[fmt.Sprintf("drouter extra=%v", extra)] = building[drouter.Args]{drouter.DRouter{Hidden: c.Hidden, NumExperts: c.NumExperts, TopK: c.TopK, Extra: extra}}
	}
	for _, store := range gradient.Modes {
		m[fmt.Sprintf("drouter sum %+v", store)] = building[drouter.SumArgs]{drouter.Sum{Hidden: c.Hidden, NumExperts: c.NumExperts, Store: store}}
	}
	return m
}

// inPairs is a layer with experts like gpt-oss's, gate and up of a neuron side by
// side.
func inPairs(c spec.Config) spec.Config {
	c.WeightOrder, c.GateUp, c.Bias = spec.InOut, spec.Interleaved, true
	c.Activation, c.Alpha, c.Limit = spec.SwiGLUOAI, 1.702, 7
	return c
}

// spills is how many bytes a thread of a kernel is known to spill, outside main
// loops: selections of many keys, and the widest tiles whose sums are stored
// directly in two orders or start from biases in clusters.
func spills(name string, c spec.Config) int {
	switch {
	case name == "router" && c.TopK > 8 && c.NumExperts >= 256:
		return 24
	case strings.HasPrefix(name, "up in pairs 128x256") && strings.HasSuffix(name, "c2 save=true"):
		return 4
	case name == "aggregate" && c.TopK > 16:
		return 8
	case name == "drouter, more" && c.TopK > 16:
		return 84
	case strings.HasPrefix(name, "dW1 128x256") && c.Hidden%gemm.TileM != 0:
		return 392
	}
	return 0
}

var spillStores = regexp.MustCompile(`(\d+) bytes spill stores`)

// forLinking has ptxas assemble as the driver's linker does.
const forLinking = "-c"

// Every kernel at every point assembles with no more spills than known, no warning and no
// serialised wgmma, fits the chip, and prints, parses and prints the same.
func TestAssemble(t *testing.T) {
	outside.Ptxas(t)
	target := driver.H200()
	for _, c := range []spec.Config{
		{Hidden: 1536, Intermediate: 256, NumExperts: 128, TopK: 8},
		{Hidden: 128, Intermediate: 64, NumExperts: 1, TopK: 1},
		{Hidden: 2880, Intermediate: 2880, NumExperts: 32, TopK: 4},
		{Hidden: 2048, Intermediate: 512, NumExperts: 1024, TopK: 16},
	} {
		for name, b := range every(c, target) {
			t.Run(fmt.Sprintf("%v %s", c, name), func(t *testing.T) {
				t.Parallel()
				assembles(t, name, c, b)
			})
		}
	}
}

// everyRouting lists the kernels of a layer that its routing alone decides on.
func everyRouting(c spec.Config) map[string]builder {
	router := route.Router{Hidden: c.Hidden, NumExperts: c.NumExperts, TopK: c.TopK, Logits: c.Logits, Bias: c.RouterBias}
	logits := router
	logits.LogitsOnly = true
	m := map[string]builder{
		"logits":        building[route.RouterArgs]{logits},
		"few logits":    building[route.FewLogitsArgs]{route.FewLogits{Hidden: c.Hidden, NumExperts: c.NumExperts, Logits: c.Logits, Bias: c.RouterBias}},
		"select":        building[route.SelectArgs]{route.Select{Config: c}},
		"dlogits":       building[route.DLogitsArgs]{route.DLogits{Config: c}},
		"expert sums":   building[route.ExpertSumsArgs]{route.ExpertSums{NumExperts: c.NumExperts}},
		"count":         building[route.CountArgs]{route.Count{NumExperts: c.NumExperts, TopK: c.TopK}},
		"plan, pairs":   building[route.PlanArgs]{route.Plan{NumExperts: c.NumExperts, TopK: c.TopK, Pairs: true}},
		"aggregate":     building[AggregateArgs]{Aggregate{Hidden: c.Hidden, TopK: c.TopK}},
		"dscores":       building[dh.ScoresArgs]{dh.DScores{Intermediate: c.Intermediate, TopK: c.TopK, Scores: true, Router: true}},
		"drouter":       building[drouter.Args]{drouter.DRouter{Hidden: c.Hidden, NumExperts: c.NumExperts, TopK: c.TopK}},
		"drouter, more": building[drouter.Args]{drouter.DRouter{Hidden: c.Hidden, NumExperts: c.NumExperts, TopK: c.TopK, Extra: true}},
	}
	if route.InRouter(c) {
		m["router"] = building[route.RouterArgs]{router}
	}
	return m
}

// The same of every kind of routing, up to the widest.
func TestAssembleRouting(t *testing.T) {
	outside.Ptxas(t)
	for _, c := range []spec.Config{
		{NumExperts: 32, TopK: 4, RouterBias: true},
		{NumExperts: 256, TopK: 8, RouterBias: true, Logits: spec.LogitsF32},
		{NumExperts: 64, TopK: 8, Score: spec.SoftmaxAll},
		{NumExperts: 256, TopK: 8, Logits: spec.LogitsF32, Score: spec.Sigmoid, SelectionBias: true,
			Groups: 8, TopGroups: 4, GroupScore: spec.GroupSumOfTwo, Renormalize: spec.RenormSum, NormEpsilon: 1e-20, ScoreScale: 2.5},
		{NumExperts: 1024, TopK: 32, Logits: spec.LogitsF32, Score: spec.SoftmaxAll, SelectionBias: true, RouterBias: true, ExpertScale: true,
			Groups: 128, TopGroups: 64, GroupScore: spec.GroupSumOfTwo, Renormalize: spec.RenormClamp, NormEpsilon: 1e-12},
		{NumExperts: 999, TopK: 32, Score: spec.SqrtSoftplus, Renormalize: spec.RenormSum},
	} {
		c.Hidden, c.Intermediate = 2048, 512
		for name, b := range everyRouting(c) {
			t.Run(fmt.Sprintf("%v %s", c, name), func(t *testing.T) {
				t.Parallel()
				assembles(t, name, c, b)
			})
		}
	}
}

// assembles checks one kernel.
func assembles(t *testing.T, name string, c spec.Config, b builder) {
	module, sharedBytes, err := b.emit()
	require.NoError(t, err)
	require.LessOrEqual(t, sharedBytes, driver.H200().SharedBytesPerCTA)
	text := module.Print().PTX
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
		require.LessOrEqual(t, bytes, spills(name, c), report)
		complaint = ptxas.Complaint(strings.Replace(report, complaint, "", 1)) // the next one
	}
	require.Empty(t, complaint, report)
}
