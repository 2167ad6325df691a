package checkpoint

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// This file determines which layers of a model have experts.

// choice is a set of fields by which a family tells which layers have experts.
type choice int

const (
	byFirst choice = 1 << iota // first_k_dense_replace: the layers before this number are dense
	byFreq                     // moe_layer_freq: of the other layers every n-th has experts, or a list of 0 and 1 tells
	byWord                     // mlp_layer_types, which overrides the two fields above
)

// after returns the layers with experts, as the fields in by tell them. dense is the default for
// the number of layers without experts at the start of the model.
func (f *fields) after(dense int, by choice) func(int) bool {
	if by&byWord != 0 && f.has("mlp_layer_types") {
		if by&byFirst != 0 {
			f.find("first_k_dense_replace") // transformers ignores this field if mlp_layer_types is present
		}
		if by&byFreq != 0 {
			f.find("moe_layer_freq")
		}
		return f.words()
	}
	if by&byFirst != 0 {
		dense = f.count(dense, "first_k_dense_replace")
	} else if by&byWord != 0 {
		f.assumed = append(f.assumed, fmt.Sprintf("mlp_layer_types is not there: layers from %d on have experts, the default of transformers", dense))
	}
	every := func(int) bool { return true }
	if by&byFreq != 0 && f.has("moe_layer_freq") {
		every = f.frequent()
	}
	return func(i int) bool { return i >= dense && every(i) }
}

// frequent returns every n-th layer if moe_layer_freq is a number, or the layers with a 1 if it is
// a list.
func (f *fields) frequent() func(int) bool {
	if strings.HasPrefix(string(f.object["moe_layer_freq"]), "[") {
		return f.flagged("moe_layer_freq")
	}
	every := f.size("moe_layer_freq")
	return func(i int) bool { return i%max(every, 1) == 0 }
}

// flagged returns the layers for which a list of 0 and 1 has a 1.
func (f *fields) flagged(name string) func(int) bool {
	list := value[[]int](f, nil, "a list of 0 and 1", name)
	f.oneEach(name, len(list))
	return func(i int) bool { return i < len(list) && list[i] != 0 }
}

// words returns the layers for which mlp_layer_types has "sparse". Each word must be "sparse" or
// "dense".
func (f *fields) words() func(int) bool {
	const name = "mlp_layer_types"
	list := value[[]string](f, nil, "a list of words", name)
	for i, word := range list {
		if word != "sparse" && word != "dense" {
			f.fail("%s has %q for layer %d, must be sparse or dense", name, word, i)
		}
	}
	f.oneEach(name, len(list))
	return func(i int) bool { return i < len(list) && list[i] == "sparse" }
}

// oneEach checks that a list has one entry for each layer. Without num_hidden_layers the length of
// the list is the number of layers.
func (f *fields) oneEach(name string, entries int) {
	f.listed = entries
	if _, raw := f.find("num_hidden_layers", "n_layers"); raw == nil {
		return
	}
	if layers := f.size("num_hidden_layers", "n_layers"); layers != entries {
		f.fail("%s has %d entries, must have one for each of the %d layers", name, entries, layers)
	}
}

// cut shortens lists to the model's number of layers. The entries that it removes describe the
// layers that predict later tokens.
func (f *fields) cut(names ...string) {
	if !f.has("num_hidden_layers") || !f.has("num_nextn_predict_layers") {
		return
	}
	layers, further := f.size("num_hidden_layers"), f.count(0, "num_nextn_predict_layers")
	for _, name := range names {
		var list []json.RawMessage
		if json.Unmarshal(f.object[name], &list) == nil && f.err == nil && len(list)-layers == further && further > 0 {
			f.object[name], _ = json.Marshal(list[:layers]) // cannot fail, because the elements are raw messages
		}
	}
}

// stepped returns a function that reports whether a layer has experts. Every n-th layer has, where n
// is decoder_sparse_step, except the layers in mlp_only_layers. Without that field the layers in
// dense are the exceptions.
func (f *fields) stepped(dense ...int) func(int) bool {
	step := 1
	if _, raw := f.find("decoder_sparse_step"); raw != nil {
		step = f.size("decoder_sparse_step")
	}
	if _, raw := f.find("mlp_only_layers"); raw != nil {
		dense = value[[]int](f, nil, "a list of layers", "mlp_only_layers")
	}
	none := among(dense)
	return func(i int) bool { return !none(i) && (i+1)%max(step, 1) == 0 }
}

// among returns the layers whose numbers are in a list.
func among(list []int) func(int) bool {
	set := map[int]bool{}
	for _, i := range list {
		set[i] = true
	}
	return func(i int) bool { return set[i] }
}

// enumerated returns the layers that a list, or a string with commas, enumerates.
func (f *fields) enumerated(name string) func(int) bool {
	var list []int
	if raw := f.object[name]; strings.HasPrefix(string(raw), "[") {
		list = value[[]int](f, nil, "a list of layers", name)
	} else {
		for item := range strings.SplitSeq(f.text("", name), ",") {
			if item = strings.TrimSpace(item); item == "" {
				continue
			}
			i, err := strconv.Atoi(item)
			if err != nil {
				f.fail("%s is %s, must be numbers of layers with commas between them", name, raw)
			}
			list = append(list, i)
		}
	}
	return among(list)
}

// letters maps letters to the kinds of a hybrid model's layers.
var letters = map[rune]string{'M': "linear_attention", 'E': "moe", '*': "full_attention", '-': "mlp"}

// pattern returns the layers of a hybrid model that have experts. The pattern is a list of words,
// or a string with one letter for each layer. Its length is the number of layers of the model.
func (f *fields) pattern() func(int) bool {
	name, raw := f.one("layers_block_type", "layer_types")
	_, text := f.find("hybrid_override_pattern")
	var words []string
	if text != nil {
		for i, letter := range f.text("", "hybrid_override_pattern") {
			word, ok := letters[letter]
			if !ok {
				f.fail("hybrid_override_pattern has %q for layer %d, must be M, E, * or -", letter, i)
			}
			words = append(words, word)
		}
	}
	if raw != nil {
		list := value[[]string](f, nil, "a list of words", name)
		for i, word := range list {
			switch word {
			case "mamba":
				list[i] = "linear_attention"
			case "attention":
				list[i] = "full_attention"
			case "moe", "mlp", "linear_attention", "full_attention":
			default:
				f.fail("%s has %q for layer %d, must be moe, mlp, linear_attention or full_attention", name, word, i)
			}
		}
		if text != nil && !slices.Equal(list, words) {
			f.fail("hybrid_override_pattern and %s say different layers, must say the same", name)
		}
		words = list
	} else if name = "hybrid_override_pattern"; text == nil {
		f.fail("config.json has no layers_block_type, layer_types or hybrid_override_pattern")
	}
	f.listed = len(words)
	if f.has("num_hidden_layers") {
		if layers := f.size("num_hidden_layers"); layers != len(words) {
			f.assumed = append(f.assumed, fmt.Sprintf("num_hidden_layers is %d: the %d of %s, the default of transformers", layers, len(words), name))
		}
	}
	return func(i int) bool { return i < len(words) && words[i] == "moe" }
}

// agree checks the fields by which other families tell which layers have experts. It refuses a
// field that contradicts moe, because the file is then ambiguous. It does not check a field that
// the family has read.
func (f *fields) agree(moe []int, layers int) {
	for _, name := range []string{"first_k_dense_replace", "moe_layer_freq", "moe_layer_num_skipped", "mlp_layer_types", "decoder_sparse_step", "mlp_only_layers"} {
		say := says(name, f.object[name])
		if f.read[name] || say == nil {
			continue
		}
		other := 0
		for other < layers && (say(other) == "" || say(other) == wordOf(moe, other)) {
			other++
		}
		if other < layers && f.listed == 0 {
			f.fail("by %s layer %d is %s, must be %s, as it is by the fields that transformers reads for this model", name, other, say(other), wordOf(moe, other))
		}
		f.read[name] = other == layers
	}
}

// wordOf returns "sparse" for a layer with experts, else "dense".
func wordOf(moe []int, layer int) string {
	_, has := slices.BinarySearch(moe, layer)
	return sparse(has)
}

// says returns a function that returns the field's word for a layer: "sparse", "dense", or "" if
// the field does not tell. says returns nil if the field is missing or has another form.
func says(name string, raw json.RawMessage) func(layer int) string {
	var n int
	var list []int
	var words []string
	number := json.Unmarshal(raw, &n) == nil && string(raw) != "null"
	switch {
	case (name == "first_k_dense_replace" || name == "moe_layer_num_skipped") && number:
		return func(i int) string { return sparse(i >= n) }
	case name == "moe_layer_freq" && number && n > 0:
		return func(i int) string { return dense(i%n != 0) }
	case name == "decoder_sparse_step" && number && n > 0:
		return func(i int) string { return dense((i+1)%n != 0) }
	case name == "moe_layer_freq" && json.Unmarshal(raw, &list) == nil && list != nil:
		return func(i int) string {
			if i >= len(list) {
				return ""
			}
			return sparse(list[i] != 0)
		}
	case name == "mlp_only_layers" && json.Unmarshal(raw, &list) == nil && list != nil:
		none := among(list)
		return func(i int) string { return dense(none(i)) }
	case name == "mlp_layer_types" && json.Unmarshal(raw, &words) == nil && words != nil:
		return func(i int) string {
			if i >= len(words) {
				return ""
			}
			return words[i]
		}
	}
	return nil
}

// sparse returns "sparse" if a layer has experts, else "dense".
func sparse(is bool) string {
	if is {
		return "sparse"
	}
	return "dense"
}

// dense returns "dense" if is is true: the field says that the layer has no experts. Otherwise it
// returns "", which allows any layer.
func dense(is bool) string {
	if is {
		return "dense"
	}
	return ""
}
