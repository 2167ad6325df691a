package weights

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sonicmoe/internal/spec"
)

// part is a tensor of the files, and what it holds of a weight of the layer.
type part struct {
	name   string // name in the files
	expert int    // number of the expert; -1 for a tensor of all experts
	role
}

// role names a weight of the layer, and the piece of it that a tensor holds.
type role struct {
	tensor spec.TensorID
	piece  piece
}

// piece is the piece of a weight that one tensor of the files holds.
type piece int

const (
	whole      piece = iota
	gate             // gate is the gate rows of W1
	up               // up is the up rows of W1, or all of W1 if the layer has no gate
	upperHalf        // upperHalf is a whole weight, in the first half of the tensor's rows
	lowerHalf        // lowerHalf is a whole weight, in the second half of the tensor's rows
	blocks           // blocks is gpt-oss's MXFP4 codes: 32 codes in 16 bytes
	scales           // scales is the scales of blocks, one for 32 codes
	stacked          // stacked is the matrices of all experts, one below the other in one matrix
	transposed       // transposed is stacked, with each matrix transposed
)

// rules map the name of a tensor to its roles. A rule matches the end of the name: what follows the
// layer's number and, if there is one, the name of the block's module. The first capture is the
// expert's number.
var rules = []rule{
	of(`(?:gate|router)(?:\.(?:wg|layer|proj|gate))?\.weight`, role{spec.TensorRouter, whole}),
	of(`router(?:\.layer)?\.bias`, role{spec.TensorRouterBias, whole}),
	of(`(?:(?:gate|experts|(?:gate\.)?moe_statics)\.)?e_score_correction_bias`, role{spec.TensorSelectionBias, whole}),
	of(`(?:gate\.)?expert_bias|moe\.router_bias`, role{spec.TensorSelectionBias, whole}),
	of(`router\.per_expert_scale`, role{spec.TensorExpertScale, whole}),
	of(`experts\.(\d+)\.(?:gate_proj|w1)\.weight`, role{spec.TensorW1, gate}),
	of(`experts\.(\d+)\.(?:up_proj|w3)\.weight`, role{spec.TensorW1, up}),
	of(`experts\.(\d+)\.(?:down_proj|w2)\.weight`, role{spec.TensorW2, whole}),
	of(`experts\.(?:gate_up_proj|up_proj|fc1\.weight)|input_linear\.weight`, role{spec.TensorW1, whole}),
	of(`experts\.(?:down_proj|fc2\.weight)|output_linear\.weight`, role{spec.TensorW2, whole}),
	of(`moe\.gate_proj\.weight`, role{spec.TensorW1, whole}), // Step has separate tensors for gate and up
	of(`moe\.up_proj\.weight`, role{spec.TensorW3, whole}),
	of(`moe\.down_proj\.weight`, role{spec.TensorW2, whole}),
	of(`experts\.mlp\.w1`, role{spec.TensorW1, stacked}),
	of(`experts\.mlp\.v1`, role{spec.TensorW3, stacked}),
	of(`experts\.mlp\.w2`, role{spec.TensorW2, transposed}),
	of(`experts\.gate_up_proj_blocks`, role{spec.TensorW1, blocks}),
	of(`experts\.gate_up_proj_scales`, role{spec.TensorW1, scales}),
	of(`experts\.down_proj_blocks`, role{spec.TensorW2, blocks}),
	of(`experts\.down_proj_scales`, role{spec.TensorW2, scales}),
	of(`experts\.gate_up_proj_bias`, role{spec.TensorB1, whole}),
	of(`experts\.down_proj_bias`, role{spec.TensorB2, whole}),
	of(shared+`(?:gate_proj|w1)\.weight`, role{spec.TensorSharedW1, whole}),
	of(shared+`(?:up_proj|w3)\.weight`, role{spec.TensorSharedW3, whole}),
	of(shared+`(?:down_proj|w2|output_linear)\.weight`, role{spec.TensorSharedW2, whole}),
	of(shared+`(?:gate_up_proj|input_linear)\.weight`, role{spec.TensorSharedW1, upperHalf}, role{spec.TensorSharedW3, lowerHalf}),
	of(`shared_expert_gate\.weight`, role{spec.TensorSharedGate, whole}),
}

// shared matches the names of shared experts.
const shared = `(?:shared_experts?|shared_mlp|share_expert)\.`

// modules matches the names that the families give to the block's module.
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
	// block matches names of tensors of the block with experts, but not of attention or norms.
	block = regexp.MustCompile(`^(?:` + modules + `|gate|router|shared_mlp)\.|expert|e_score_correction_bias`)
	// sparse matches names of tensors that only a layer with experts has.
	sparse = regexp.MustCompile(`^(?:block_sparse_moe|moe|router)\.|expert`)
	// other matches names of other parts of a model, whose layers have their own numbers.
	other = regexp.MustCompile(`vision|audio|visual|(?:^|\.)(?:mtp|talker)\.`)
)

// outside matches, by model type, the tensors of a block that do not belong to the layer.
// Model.Outside describes them.
var outside = map[string]*regexp.Regexp{
	"axk1":            regexp.MustCompile(`^mlp\.post_mlp_layernorm\.weight$`),
	"gemma4_text":     gemma,
	"diffusion_gemma": gemma,
}

var gemma = regexp.MustCompile(`^(?:mlp\.(?:gate|up|down)_proj\.weight|router\.scale)$`)

// parts returns the tensors of one layer, from the names of all tensors of a model. names must be
// sorted.
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
		if belongs(names, name) {
			continue
		}
		of := partsOf(name, weightName(m[3]))
		if spare := outside[kind]; of == nil && (spare == nil || !spare.MatchString(m[3])) {
			return nil, fmt.Errorf("tensor %q is of layer %d's experts, but no weight of the layer", name, layer)
		}
		list = append(list, of...)
	}
	return list, nil
}

// stack returns the name prefix of the stack of layers to which the layer belongs. A model may have
// several stacks, but only in one of them does the layer with this number have experts.
func stack(names []string, layer int) (string, error) {
	found := map[string]bool{}
	for _, name := range names {
		m := numbered.FindStringSubmatch(name)
		if m != nil && m[2] == strconv.Itoa(layer) && !other.MatchString(m[1]+".") && (sparse.MatchString(m[3]) || partsOf(name, weightName(m[3])) != nil) {
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

// partsOf returns the parts of weights that a tensor holds, or none if the tensor is unknown.
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

// some returns the first few of names, for an error.
func some(names []string) string {
	if len(names) > 4 {
		names = append(names[:4:4], "...")
	}
	return strings.Join(names, ", ")
}
