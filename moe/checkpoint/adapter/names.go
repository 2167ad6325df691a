package adapter

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// product is one of the two products of an expert.
type product int

const (
	gateUp product = iota
	down
)

// half says whether a factor adapts all rows of a product's weight, or the rows of gate or of up.
type half int

const (
	whole half = iota
	gate
	up
)

// key identifies a factor in a file.
type key struct {
	layout Layout
	layer  int
	expert int // -1 for all experts
	// of and half are the weight that the tensor's name tells. In the layout PEFT a name does not
	// tell the weight. PEFT wraps the experts once for each weight, and inner reports whether the
	// tensor belongs to the inner wrapper.
	of    product
	half  half
	inner bool
	isB   bool
}

var (
	ofExperts = regexp.MustCompile(`(?:^|\.)layers\.(\d+)\.(?:.*\.)?experts\.(.*)\.?lora_([AB])\.weight$`)
	ofExpert  = regexp.MustCompile(`^(\d+)\.(\w+)$`)
)

// projections maps the names of an expert's weights in files to products and halves.
var projections = map[string]struct {
	of   product
	half half
}{
	"gate_up_proj": {gateUp, whole}, "gate_proj": {gateUp, gate}, "up_proj": {gateUp, up}, "down_proj": {down, whole},
	"w1": {gateUp, gate}, "w3": {gateUp, up}, "w2": {down, whole},
}

// parse returns the key of a tensor. ok is false for a tensor that is no factor of routed experts.
func parse(name string) (k key, ok bool, err error) {
	m := ofExperts.FindStringSubmatch(name)
	if m == nil {
		if strings.Contains(name, ".experts.") {
			return k, false, fmt.Errorf("tensor %q is of routed experts, must be lora_A.weight or lora_B.weight of experts of layers.N", name)
		}
		return k, false, nil
	}
	k.expert, k.isB = -1, m[3] == "B"
	if k.layer, err = strconv.Atoi(m[1]); err != nil {
		return k, false, fmt.Errorf("tensor %q has layer %s, must be a number of a layer", name, m[1])
	}
	switch rest := strings.TrimSuffix(m[2], "."); {
	case rest == "" || rest == "base_layer":
		k.layout, k.inner = PEFT, rest != ""
		return k, true, nil
	case ofExpert.MatchString(rest):
		of := ofExpert.FindStringSubmatch(rest)
		if k.expert, err = strconv.Atoi(of[1]); err != nil {
			return k, false, fmt.Errorf("tensor %q has expert %s, must be a number of an expert", name, of[1])
		}
		k.layout, m[2] = PerExpert, of[2]
	default:
		k.layout, m[2] = Stacked, rest
	}
	p, known := projections[m[2]]
	if !known || k.layout == PerExpert && p.of == gateUp && p.half == whole {
		return k, false, fmt.Errorf("tensor %q is of no weight that experts have, must be of gate_proj, up_proj or down_proj", name)
	}
	k.of, k.half = p.of, p.half
	return k, true, nil
}
