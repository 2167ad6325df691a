package weights

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
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
	above         // the upper half of the tensor's rows is all of it
	below         // the lower half
	blocks        // MXFP4 numbers, 32 in 16 bytes
	scales        // their scales, one for 32
	stacked       // the experts' matrices one below another, in one matrix
	turned        // the same, each transposed
)

// rules tell roles by what follows the layer's number, in a module of the block
// or in none. The first capture, where there is one, is the expert.
var rules = []rule{
	of(`(?:gate|router)(?:\.(?:wg|layer|proj|gate))?\.weight`, role{"Router", whole}),
	of(`router(?:\.layer)?\.bias`, role{"RouterBias", whole}),
	of(`(?:(?:gate|experts|(?:gate\.)?moe_statics)\.)?e_score_correction_bias`, role{"SelectionBias", whole}),
	of(`(?:gate\.)?expert_bias|moe\.router_bias`, role{"SelectionBias", whole}),
	of(`router\.per_expert_scale`, role{"ExpertScale", whole}),
	of(`experts\.(\d+)\.(?:gate_proj|w1)\.weight`, role{"W1", gate}),
	of(`experts\.(\d+)\.(?:up_proj|w3)\.weight`, role{"W1", up}),
	of(`experts\.(\d+)\.(?:down_proj|w2)\.weight`, role{"W2", whole}),
	of(`experts\.(?:gate_up_proj|up_proj|fc1\.weight)|input_linear\.weight`, role{"W1", whole}),
	of(`experts\.(?:down_proj|fc2\.weight)|output_linear\.weight`, role{"W2", whole}),
	of(`moe\.gate_proj\.weight`, role{"W1", whole}), // Step's, apart
	of(`moe\.up_proj\.weight`, role{"W3", whole}),
	of(`moe\.down_proj\.weight`, role{"W2", whole}),
	of(`experts\.mlp\.w1`, role{"W1", stacked}),
	of(`experts\.mlp\.v1`, role{"W3", stacked}),
	of(`experts\.mlp\.w2`, role{"W2", turned}),
	of(`experts\.gate_up_proj_blocks`, role{"W1", blocks}),
	of(`experts\.gate_up_proj_scales`, role{"W1", scales}),
	of(`experts\.down_proj_blocks`, role{"W2", blocks}),
	of(`experts\.down_proj_scales`, role{"W2", scales}),
	of(`experts\.gate_up_proj_bias`, role{"B1", whole}),
	of(`experts\.down_proj_bias`, role{"B2", whole}),
	of(shared+`(?:gate_proj|w1)\.weight`, role{"SharedW1", whole}),
	of(shared+`(?:up_proj|w3)\.weight`, role{"SharedW3", whole}),
	of(shared+`(?:down_proj|w2|output_linear)\.weight`, role{"SharedW2", whole}),
	of(shared+`(?:gate_up_proj|input_linear)\.weight`, role{"SharedW1", above}, role{"SharedW3", below}),
	of(`shared_expert_gate\.weight`, role{"SharedGate", whole}),
}

// shared are the names that shared experts go by.
const shared = `(?:shared_experts?|shared_mlp|share_expert)\.`

// modules are what families call the block.
const modules = `mlp|block_sparse_moe|feed_forward|mixer|ffn|moe`

type rule struct {
	pattern *regexp.Regexp
	roles   []role
}

func of(pattern string, roles ...role) rule {
	return rule{regexp.MustCompile(`^(?:(?:` + modules + `)\.)?(?:` + pattern + `)$`), roles}
}

var (
	numbered = regexp.MustCompile(`^((?:.*?\.)?(?:layers|blocks|h))\.(\d+)\.(.+)$`)
	// block is what belongs to experts, beside attention and norms.
	block = regexp.MustCompile(`^(?:` + modules + `|gate|router|shared_mlp)\.|expert|e_score_correction_bias`)
	// sparse is what no dense layer has.
	sparse = regexp.MustCompile(`^(?:block_sparse_moe|moe|router)\.|expert`)
	// other parts of models of several have layers of their own.
	other = regexp.MustCompile(`vision|audio|visual|(?:^|\.)(?:mtp|talker)\.`)
)

// beside are tensors of a block that are not the layer's, by the model's type:
// those that its Outside speaks of.
var beside = map[string]*regexp.Regexp{
	"axk1":            regexp.MustCompile(`^mlp\.post_mlp_layernorm\.weight$`),
	"gemma4_text":     gemma,
	"diffusion_gemma": gemma,
}

var gemma = regexp.MustCompile(`^(?:mlp\.(?:gate|up|down)_proj\.weight|router\.scale)$`)

// parts finds a layer's tensors among a model's, of a type.
func parts(names []string, layer int, kind string) ([]part, error) {
	in, err := stack(names, layer)
	if err != nil {
		return nil, err
	}
	var list []part
	for _, name := range names {
		m := numbered.FindStringSubmatch(name)
		if m == nil || m[1] != in || m[2] != strconv.Itoa(layer) || !block.MatchString(m[3]) {
			continue
		}
		of := partsOf(name, m[3])
		if spare := beside[kind]; of == nil && (spare == nil || !spare.MatchString(m[3])) {
			return nil, fmt.Errorf("tensor %q is of layer %d's experts, but nothing of a layer here: it is not left out in silence", name, layer)
		}
		list = append(list, of...)
	}
	return list, nil
}

// stack is the one stack of layers whose layer of this number has experts: those
// of encoders beside the text model have none.
func stack(names []string, layer int) (string, error) {
	found := map[string]bool{}
	for _, name := range names {
		m := numbered.FindStringSubmatch(name)
		if m != nil && m[2] == strconv.Itoa(layer) && !other.MatchString(m[1]+".") && (sparse.MatchString(m[3]) || partsOf(name, m[3]) != nil) {
			found[m[1]] = true
		}
	}
	list := slices.Sorted(maps.Keys(found))
	switch len(list) {
	case 0:
		return "", fmt.Errorf("no tensor of layer %d's experts is there, of %d: %s", layer, len(names), some(names))
	case 1:
		return list[0], nil
	}
	return "", fmt.Errorf("layer %d has experts in %d stacks of layers, must have them in one: %s", layer, len(list), some(list))
}

// partsOf are what a tensor is, none of none that is known.
func partsOf(name, rest string) (list []part) {
	for _, r := range rules {
		m := r.pattern.FindStringSubmatch(rest)
		if m == nil {
			continue
		}
		expert := -1
		if len(m) > 1 {
			expert, _ = strconv.Atoi(m[1])
		}
		for _, role := range r.roles {
			list = append(list, part{name: name, expert: expert, role: role})
		}
		return list
	}
	return nil
}

// some are the first of names.
func some(names []string) string {
	if len(names) > 4 {
		names = append(names[:4:4], "...")
	}
	return strings.Join(names, ", ")
}
