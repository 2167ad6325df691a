//go:build cgo

package main

// #define SONICMOE_TYPES_ONLY
// #include "sonicmoe.h"
import "C"

import (
	"fmt"
	"reflect"
	"slices"
	"sort"
	"unsafe"

	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/moe"
)

// sized lists the structs of the interface. The first field of each is its size.
type sized interface {
	C.sm_config | C.sm_sizes_of | C.sm_forward_pass | C.sm_backward_pass | C.sm_joining | C.sm_rank_sizes_of
}

// maxSize is the largest value of a struct's size field. A larger value means that the caller did
// not set the field.
const maxSize = 4096

// bytesOf returns the bytes of a caller's struct. The struct's first field tells its size.
func bytesOf[T sized](field string, p *T) ([]byte, error) {
	if p == nil {
		return nil, &moe.ArgError{Field: field, Got: "NULL", Want: "the address of a struct"}
	}
	size := *(*uint64)(unsafe.Pointer(p))
	if size < 8 || size > maxSize || size%8 != 0 || cutsField[T](uintptr(size)) {
		return nil, &moe.ArgError{Field: field + "->size", Got: fmt.Sprint(size), Want: fmt.Sprintf("sizeof the struct, %d in this version", unsafe.Sizeof(*p))}
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(p)), size), nil
}

// cutsField reports whether a struct of size bytes ends within a field.
func cutsField[T sized](size uintptr) bool {
	t := reflect.TypeFor[T]()
	if size >= t.Size() {
		return false
	}
	i := sort.Search(t.NumField(), func(i int) bool { return t.Field(i).Offset >= size })
	return i == t.NumField() || t.Field(i).Offset != size
}

// read copies a caller's struct. Fields that an older program does not have become 0. Fields that
// only a newer program has must be 0.
func read[T sized](field string, p *T) (T, error) {
	var t T
	from, err := bytesOf(field, p)
	if err != nil {
		return t, err
	}
	to := unsafe.Slice((*byte)(unsafe.Pointer(&t)), unsafe.Sizeof(t))
	for i, b := range from[copy(to, from):] {
		if b != 0 {
			return t, &moe.ArgError{Field: field, Got: fmt.Sprintf("a struct of %d bytes that uses byte %d", len(from), len(to)+i),
				Want: fmt.Sprintf("0 beyond %d bytes, which is what this version of the library knows", len(to))}
		}
	}
	return t, nil
}

// write copies a struct to the caller's struct, as far as it has room, and keeps the caller's size.
func write[T sized](field string, p *T, t T) error {
	to, err := bytesOf(field, p)
	if err != nil {
		return err
	}
	from := unsafe.Slice((*byte)(unsafe.Pointer(&t)), unsafe.Sizeof(t))
	copy(to[8:], from[8:])
	return nil
}

// types are the element types. The index is the number in sonicmoe.h.
var types = []moe.Type{moe.BF16, moe.F32, moe.I32, moe.F16, moe.U8}

// logits are the formats of logits. The index is the number in sonicmoe.h.
var logits = []moe.Type{moe.BF16, moe.F32, moe.F16}

// truths are the values of a bool. The index is the number in sonicmoe.h.
var truths = []bool{false, true}

// choice converts a number to the value of a field that has this number in sonicmoe.h.
func choice[V any](err *error, field string, values []V, v C.int64_t) V {
	if v < 0 || int(v) >= len(values) {
		if *err == nil {
			*err = &moe.ArgError{Field: field, Got: fmt.Sprint(v), Want: fmt.Sprintf("0 to %d", len(values)-1)}
		}
		return values[0]
	}
	return values[v]
}

// number converts the value of a field to its number in sonicmoe.h. A value that is not in the list
// becomes 0.
func number[V comparable](values []V, v V) C.int64_t {
	return C.int64_t(max(slices.Index(values, v), 0))
}

// configOf converts a caller's struct to a Config. Package moe checks the fields.
func configOf(p *C.sm_config) (moe.Config, []moe.Option, error) {
	s, err := read("config", p)
	if err != nil {
		return moe.Config{}, nil, err
	}
	c := moe.Config{
		Hidden: int(s.hidden), Intermediate: int(s.intermediate), NumExperts: int(s.num_experts), TopK: int(s.top_k),
		Type:       choice(&err, "Config.Type", types, s._type),
		GateUp:     choice(&err, "Config.GateUp", spec.GateUps, s.gate_up),
		Weights:    choice(&err, "Config.Weights", spec.WeightFormats, s.weights),
		InOut:      choice(&err, "Config.InOut", truths, s.weight_order),
		Activation: choice(&err, "Config.Activation", spec.Activations, s.activation),
		Alpha:      float64(s.alpha), Limit: float64(s.limit), Bias: s.bias != 0,
		Logits:    choice(&err, "Config.Logits", logits, s.logits),
		RouterF32: s.router_f32 != 0, RouterBias: s.router_bias != 0,
		Score:         choice(&err, "Config.Score", spec.Scores, s.score),
		SelectionBias: s.selection_bias != 0,
		Groups:        int(s.groups), TopGroups: int(s.top_groups),
		GroupSumOfTwo: choice(&err, "Config.GroupSumOfTwo", truths, s.group_score),
		Renormalize:   choice(&err, "Config.Renormalize", spec.Renorms, s.renormalize),
		NormEpsilon:   float64(s.norm_epsilon), ScoreScale: float64(s.score_scale),
		ExpertScale: s.expert_scale != 0, ScoreOnInput: s.score_on_input != 0,
		SharedExperts: int(s.shared_experts), SharedGate: s.shared_gate != 0,
		Rounding: moe.Rounding{
			Rule: choice(&err, "Config.Rounding.Rule", spec.RoundingRules, s.rounding_rule),
			Tile: int(s.rounding_tile), Capacity: float64(s.rounding_capacity), RawScores: s.rounding_raw_scores != 0,
		},
		LoRARank: int(s.lora_rank), LoRAAlpha: float64(s.lora_alpha), RSLoRA: s.lora_rslora != 0, LoRAAdapters: int(s.lora_adapters),
		Lists:      s.lists != 0,
		TokensHint: int(s.tokens_hint),
	}
	if err != nil {
		return c, nil, err
	}
	if s.without_backward != 0 {
		return c, []moe.Option{moe.WithoutBackward()}, nil
	}
	return c, nil, nil
}

// truth returns 1 for true and 0 for false.
func truth(is bool) C.int64_t {
	if is {
		return 1
	}
	return 0
}

// structOf converts a Config to the caller's struct. It is the inverse of configOf.
func structOf(c moe.Config) C.sm_config {
	return C.sm_config{
		hidden: C.int64_t(c.Hidden), intermediate: C.int64_t(c.Intermediate), num_experts: C.int64_t(c.NumExperts), top_k: C.int64_t(c.TopK),
		_type: number(types, c.Type), gate_up: number(spec.GateUps, c.GateUp), weight_order: truth(c.InOut), activation: number(spec.Activations, c.Activation),
		alpha: C.double(c.Alpha), limit: C.double(c.Limit), bias: truth(c.Bias),
		logits: number(logits, c.Logits), router_f32: truth(c.RouterF32), router_bias: truth(c.RouterBias),
		score: number(spec.Scores, c.Score), selection_bias: truth(c.SelectionBias),
		groups: C.int64_t(c.Groups), top_groups: C.int64_t(c.TopGroups), group_score: truth(c.GroupSumOfTwo),
		renormalize: number(spec.Renorms, c.Renormalize), norm_epsilon: C.double(c.NormEpsilon), score_scale: C.double(c.ScoreScale),
		expert_scale: truth(c.ExpertScale), score_on_input: truth(c.ScoreOnInput),
		shared_experts: C.int64_t(c.SharedExperts), shared_gate: truth(c.SharedGate),
		lists: truth(c.Lists), tokens_hint: C.int64_t(c.TokensHint),
		rounding_rule: number(spec.RoundingRules, c.Rounding.Rule), rounding_tile: C.int64_t(c.Rounding.Tile),
		rounding_capacity: C.double(c.Rounding.Capacity), rounding_raw_scores: truth(c.Rounding.RawScores),
		weights:   number(spec.WeightFormats, c.Weights),
		lora_rank: C.int64_t(c.LoRARank), lora_alpha: C.double(c.LoRAAlpha), lora_rslora: truth(c.RSLoRA), lora_adapters: C.int64_t(c.LoRAAdapters),
	}
}

// tensor returns a tensor that a pass needs. If the address is 0, the pass returns an error that
// names the tensor.
func tensor(address C.uint64_t, s moe.Shape) moe.Tensor {
	return moe.Tensor{Ptr: driver.DevicePtr(address), Shape: s}
}

// optional returns a tensor that a pass may do without. The address 0 means that it is absent.
func optional(address C.uint64_t, s moe.Shape) moe.Tensor {
	if address == 0 {
		return moe.Tensor{}
	}
	return tensor(address, s)
}

// gradient returns the gradient of a weight with shape s.
func gradient(err *error, field string, g C.sm_gradient, s moe.Shape) moe.Gradient {
	s.Type = choice(err, field+".type", types, C.int64_t(g._type))
	return moe.Gradient{Tensor: optional(g.address, s), Accumulate: g.accumulate != 0}
}

// setForward sets the buffers of a forward pass of l.
func (c *call) setForward(l *layer, p *C.sm_forward_pass) {
	c.shape(l, p.tokens)
	s, f := &c.shapes, &c.forward
	*f = moe.ForwardArgs{
		X:          tensor(p.x, s.X),
		Routing:    moe.Routing{Scores: tensor(p.scores, s.Scores), ExpertIDs: tensor(p.expert_ids, s.ExpertIDs)},
		Logits:     optional(p.logits, s.Logits),
		AdapterIDs: weight(p.adapter_ids, s.AdapterIDs), AdapterMisses: optional(p.adapter_misses, s.AdapterMisses),
		O: tensor(p.o, s.O), H: optional(p.h, s.H), SharedH: optional(p.shared_h, s.SharedH), LoraU: optional(p.lora_u, s.LoraU),
		Workspace: moe.Buffer{Ptr: driver.DevicePtr(p.workspace), Bytes: int64(p.workspace_bytes)},
		Units:     moe.Buffer{Ptr: driver.DevicePtr(p.units), Bytes: int64(p.units_bytes)},
		Seed:      uint64(p.seed),
	}
	for _, id := range spec.Weights {
		*f.Weight(id) = weight(forwardWeight(p, id), s.Of(id))
	}
	if p.entries != 0 {
		s := l.Config().ListShapes(int(p.tokens), int(p.entries))
		f.List, f.H = listOf(s, p.token_indices, p.expert_ids, p.scores, p.list_expert_ids, p.list_scores), optional(p.h, s.H)
		f.LoraU = optional(p.lora_u, s.LoraU)
	}
}

// weight returns the tensor of a weight that some layers do not have. If the layer does not have
// the weight and the address is not 0, the pass returns an error that names the weight.
func weight(address C.uint64_t, s moe.Shape) moe.Tensor {
	if s.IsZero() {
		return optional(address, s)
	}
	return tensor(address, s)
}

// listOf returns a list with the number of entries of s. It has the ids and scores of the pass or,
// if the pass rounds, separate ids and scores.
func listOf(s moe.Shapes, tokens, ids, scores, ownIDs, ownScores C.uint64_t) moe.RoutingList {
	if ownIDs != 0 || ownScores != 0 {
		ids, scores = ownIDs, ownScores
	}
	return moe.RoutingList{Tokens: tensor(tokens, s.ExpertIDs), ExpertIDs: tensor(ids, s.ExpertIDs), Scores: tensor(scores, s.Scores)}
}

// losses returns the losses of a backward pass. g has the shapes of its gradients.
func losses(p *C.sm_backward_pass, g *spec.GradientShapes) moe.Losses {
	return moe.Losses{
		Balance: float32(p.balance), ZLoss: float32(p.z_loss), Sequence: int(p.sequence),
		DLogits: optional(p.d_logits, g.DLogits), RouterLosses: optional(p.router_losses, g.RouterLosses),
	}
}

// setBackward sets the buffers of a backward pass of l.
func (c *call) setBackward(l *layer, p *C.sm_backward_pass) (err error) {
	c.shape(l, p.tokens)
	s, g, b := &c.shapes, &c.gradients, &c.backward
	*b = moe.BackwardArgs{
		X: tensor(p.x, s.X),
		Saved: moe.Saved{
			Routing: moe.Routing{Scores: tensor(p.scores, s.Scores), ExpertIDs: tensor(p.expert_ids, s.ExpertIDs)},
			H:       tensor(p.h, s.H), SharedH: weight(p.shared_h, s.SharedH), LoraU: optional(p.lora_u, s.LoraU), Logits: optional(p.logits, s.Logits),
		},
		Losses: losses(p, g),
		DO:     tensor(p.d_o, g.DO), DX: optional(p.dx, g.DX), DScores: optional(p.d_scores, g.DScores),
		Workspace: moe.Buffer{Ptr: driver.DevicePtr(p.workspace), Bytes: int64(p.workspace_bytes)},
	}
	for _, id := range spec.Weights {
		*b.Weight(id) = weight(backwardWeight(p, id), s.Of(id))
		if d := b.Gradient(id); d != nil {
			*d = gradient(&err, spec.Row(id).GradientID.String(), backwardGradient(p, id), s.Of(id))
		}
	}
	if p.entries != 0 {
		s := l.Config().ListShapes(int(p.tokens), int(p.entries))
		b.List, b.H, b.DScores = listOf(s, p.token_indices, p.expert_ids, p.scores, p.list_expert_ids, p.list_scores), tensor(p.h, s.H), optional(p.d_scores, s.Scores)
		b.LoraU = optional(p.lora_u, s.LoraU)
	}
	return err
}
