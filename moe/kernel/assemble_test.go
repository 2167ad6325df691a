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
	"sonicmoe/moe/spec"
	"sonicmoe/ptx"
	"sonicmoe/ptx/ptxas"
)

// builder is any kernel of this package.
type builder interface{ Build() (Kernel, error) }

// every lists the kernels of a layer at every point of their spaces.
func every(c spec.Config, t driver.Target) map[string]builder {
	m := map[string]builder{
		"router":              Router{Hidden: c.Hidden, Experts: c.Experts, TopK: c.TopK},
		"router, FP32 logits": Router{Hidden: c.Hidden, Experts: c.Experts, TopK: c.TopK, Logits: spec.LogitsF32},
		"count":               Count{Experts: c.Experts, TopK: c.TopK},
		"plan":                Plan{Experts: c.Experts, TopK: c.TopK},
		"plan, pairs":         Plan{Experts: c.Experts, TopK: c.TopK, Pairs: true},
		"aggregate":           Aggregate{Hidden: c.Hidden, TopK: c.TopK},
		"aggregate, dX":       Aggregate{Hidden: c.Hidden, TopK: c.TopK, Unit: true, Extra: true},
		"dscores":             DScores{Intermediate: c.Intermediate, TopK: c.TopK, Scores: true},
		"dscores, router":     DScores{Intermediate: c.Intermediate, TopK: c.TopK, Scores: true, Router: true},
	}
	for _, p := range UpSpace(t) {
		for _, save := range []bool{false, true} {
			m[fmt.Sprintf("up %v save=%v", p, save)] = Up{Hidden: c.Hidden, Intermediate: c.Intermediate, SaveH: save, Point: p}
		}
	}
	for _, p := range DownSpace(t) {
		m[fmt.Sprintf("down %v", p)] = Down{Hidden: c.Hidden, Intermediate: c.Intermediate, Point: p}
	}
	for _, p := range DHSpace(t) {
		m[fmt.Sprintf("dh %v", p)] = DH{Hidden: c.Hidden, Intermediate: c.Intermediate, Point: p}
	}
	for _, p := range DXSpace(t) {
		for _, router := range []bool{false, true} {
			m[fmt.Sprintf("dx %v router=%v", p, router)] = DX{Hidden: c.Hidden, Intermediate: c.Intermediate, Router: router, Point: p}
		}
	}
	m["dw plan"] = DWPlan{Experts: c.Experts}
	stores := gradients
	if c.Hidden%BlockRows == 0 {
		stores = stores[:1] // the sizes that don't divide have all code there is
	}
	for _, p := range DWSpace(t) {
		for _, store := range stores {
			for _, dw := range []DW{{Of: W2}, {Of: W1}, {Of: W1, Layout: spec.Interleaved}} {
				dw.Hidden, dw.Intermediate, dw.Store, dw.Point = c.Hidden, c.Intermediate, store, p
				m[fmt.Sprintf("dW%d %v %v %+v", dw.Of+1, p, dw.Layout, store)] = dw
			}
		}
	}
	m["extra rows"] = ExtraRows{Hidden: c.Hidden, Experts: c.Experts}
	for _, extra := range []bool{false, true} {
		m[fmt.Sprintf("drouter extra=%v", extra)] = DRouter{Hidden: c.Hidden, Experts: c.Experts, TopK: c.TopK, Extra: extra}
	}
	for _, store := range gradients {
		m[fmt.Sprintf("drouter sum %+v", store)] = DRouterSum{Hidden: c.Hidden, Experts: c.Experts, Store: store}
	}
	return m
}

// spills is how many bytes a thread of a kernel is known to spill, outside main
// loops: selections of many keys, and the widest tiles whose sums are stored
// directly in two orders.
func spills(name string, c spec.Config) int {
	switch {
	case name == "router" && c.TopK > 8 && c.Experts >= 256:
		return 28
	case strings.HasPrefix(name, "dW1 128x256") && c.Hidden%BlockRows != 0:
		return 428
	}
	return 0
}

var spillStores = regexp.MustCompile(`(\d+) bytes spill stores`)

// forLinking has ptxas assemble as the driver's linker does.
const forLinking = "-c"

// Every kernel at every point assembles with no more spills than known, no warning and no
// serialised wgmma, fits the chip, and prints, parses and prints the same.
func TestAssemble(t *testing.T) {
	if _, err := ptxas.Find(); err != nil {
		t.Skip(err)
	}
	target := driver.H200()
	for _, c := range []spec.Config{
		{Hidden: 1536, Intermediate: 256, Experts: 128, TopK: 8},
		{Hidden: 128, Intermediate: 64, Experts: 1, TopK: 1},
		{Hidden: 2880, Intermediate: 2880, Experts: 32, TopK: 4},
		{Hidden: 2048, Intermediate: 512, Experts: 1024, TopK: 16},
	} {
		for name, b := range every(c, target) {
			t.Run(fmt.Sprintf("%v %s", c, name), func(t *testing.T) {
				t.Parallel()
				k, err := b.Build()
				require.NoError(t, err)
				require.LessOrEqual(t, k.SharedBytes, target.SharedBytesPerCTA)
				text := k.Module.Print().PTX
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
					return
				}
				require.Empty(t, complaint, report)
			})
		}
	}
}
