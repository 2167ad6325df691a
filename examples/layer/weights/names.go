package weights

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// part is one tensor of a checkpoint: what it is of which of the layer's.
type part struct {
	name string // in the files
	// expert is -1 for a tensor of all experts.
	expert int
	role
}

// role is what a tensor of a checkpoint is to the layer's.
type role struct {
	// tensor is the layer's, by its name in spec.Shapes.
	tensor string
	// piece is what of it this is.
	piece piece
}

type piece int

const (
	whole   piece = iota
	gate          // the rows of W1 that are gate
	up            // those that are up; all of W1 where there is no gate
	blocks        // MXFP4 numbers, 32 in 16 bytes
	scales        // their scales, one for 32
	stacked       // the experts' matrices one below another, in one matrix
	turned        // the same, each transposed
)

// rules tell roles by what follows the layer's number. The first capture, where
// there is one, is the expert.
var rules = []struct {
	pattern *regexp.Regexp
	role
}{
	{regexp.MustCompile(`(?:^|\.)(?:gate|router)(?:\.(?:wg|layer|proj))?\.weight$`), role{"Router", whole}},
	{regexp.MustCompile(`(?:^|\.)router(?:\.layer)?\.bias$`), role{"RouterBias", whole}},
	{regexp.MustCompile(`e_score_correction_bias$`), role{"SelectionBias", whole}},
	{regexp.MustCompile(`router\.per_expert_scale$`), role{"ExpertScale", whole}},
	{regexp.MustCompile(`experts\.(\d+)\.(?:gate_proj|w1)\.weight$`), role{"W1", gate}},
	{regexp.MustCompile(`experts\.(\d+)\.(?:up_proj|w3)\.weight$`), role{"W1", up}},
	{regexp.MustCompile(`experts\.(\d+)\.(?:down_proj|w2)\.weight$`), role{"W2", whole}},
	{regexp.MustCompile(`(?:experts\.(?:gate_up_proj|up_proj)|input_linear\.weight)$`), role{"W1", whole}},
	{regexp.MustCompile(`(?:experts\.down_proj|output_linear\.weight)$`), role{"W2", whole}},
	{regexp.MustCompile(`experts\.mlp\.w1$`), role{"W1", stacked}},
	{regexp.MustCompile(`experts\.mlp\.v1$`), role{"W3", stacked}},
	{regexp.MustCompile(`experts\.mlp\.w2$`), role{"W2", turned}},
	{regexp.MustCompile(`experts\.gate_up_proj_blocks$`), role{"W1", blocks}},
	{regexp.MustCompile(`experts\.gate_up_proj_scales$`), role{"W1", scales}},
	{regexp.MustCompile(`experts\.down_proj_blocks$`), role{"W2", blocks}},
	{regexp.MustCompile(`experts\.down_proj_scales$`), role{"W2", scales}},
	{regexp.MustCompile(`experts\.gate_up_proj_bias$`), role{"B1", whole}},
	{regexp.MustCompile(`experts\.down_proj_bias$`), role{"B2", whole}},
	{regexp.MustCompile(`shared_(?:expert|experts|mlp)\.gate_proj\.weight$`), role{"SharedW1", whole}},
	{regexp.MustCompile(`shared_(?:expert|experts|mlp)\.up_proj\.weight$`), role{"SharedW3", whole}},
	{regexp.MustCompile(`shared_(?:expert|experts|mlp)\.down_proj\.weight$`), role{"SharedW2", whole}},
	{regexp.MustCompile(`shared_expert_gate\.weight$`), role{"SharedGate", whole}},
}

var (
	numbered = regexp.MustCompile(`(?:^|\.)(?:layers|blocks|h)\.(\d+)\.(.+)$`)
	// module is where models keep their experts, beside attention and norms.
	module = regexp.MustCompile(`^(?:mlp|block_sparse_moe|feed_forward|mixer|ffn|moe|experts|router)\.`)
	// other parts of models of several have layers of their own.
	other = regexp.MustCompile(`vision|audio|visual|^mtp\.`)
)

// parts finds a layer's tensors among a model's.
func parts(names []string, layer int, outside bool) ([]part, error) {
	var list []part
	for _, name := range names {
		m := numbered.FindStringSubmatch(name)
		if m == nil || m[1] != strconv.Itoa(layer) || other.MatchString(name) || !module.MatchString(m[2]) {
			continue
		}
		p, ok := partOf(name, m[2])
		if ok {
			list = append(list, p)
		} else if !outside {
			return nil, fmt.Errorf("tensor %q is of layer %d's experts, but nothing of a layer here: it is not left out in silence", name, layer)
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("no tensor of layer %d's experts is there, of %d: %s", layer, len(names), some(names))
	}
	return list, nil
}

func partOf(name, rest string) (part, bool) {
	for _, r := range rules {
		if m := r.pattern.FindStringSubmatch(rest); m != nil {
			p := part{name: name, expert: -1, role: r.role}
			if len(m) > 1 {
				p.expert, _ = strconv.Atoi(m[1])
			}
			return p, true
		}
	}
	return part{}, false
}

// some are the first of names.
func some(names []string) string {
	if len(names) > 4 {
		names = append(names[:4:4], "...")
	}
	return strings.Join(names, ", ")
}
