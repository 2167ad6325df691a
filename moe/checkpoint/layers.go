package checkpoint

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// This file says which of a model's layers have experts.

// choice is by which fields a family's configuration chooses its layers with experts.
type choice int

const (
	byFirst choice = 1 << iota // first_k_dense_replace: those before it are dense
	byFreq                     // moe_layer_freq: of the others every so many, or a list of 0 and 1
	byWord                     // mlp_layer_types, over the two
)

// after are the layers after the dense ones, or those that the fields of by choose.
func (f *fields) after(dense int, by choice) func(int) bool {
	if by&byWord != 0 && f.has("mlp_layer_types") {
		if by&byFirst != 0 {
			f.find("first_k_dense_replace") // not looked at then
		}
		if by&byFreq != 0 {
			f.find("moe_layer_freq")
		}
		return f.words()
	}
	if by&byFirst != 0 {
		dense = f.count(dense, "first_k_dense_replace")
	} else if by&byWord != 0 {
		f.assumed = append(f.assumed, fmt.Sprintf("mlp_layer_types is not there: layers from %d on have experts, as transformers has it", dense))
	}
	every := func(int) bool { return true }
	if by&byFreq != 0 && f.has("moe_layer_freq") {
		every = f.frequent()
	}
	return func(i int) bool { return i >= dense && every(i) }
}

// frequent are every so many layers, or those that a list has a 1 for.
func (f *fields) frequent() func(int) bool {
	if strings.HasPrefix(string(f.object["moe_layer_freq"]), "[") {
		return f.flagged("moe_layer_freq")
	}
	every := f.size("moe_layer_freq")
	return func(i int) bool { return i%max(every, 1) == 0 }
}

// flagged are the layers that a list has a 1 for.
func (f *fields) flagged(name string) func(int) bool {
	list := value[[]int](f, nil, "a list of 0 and 1", name)
	f.oneEach(name, len(list))
	return func(i int) bool { return i < len(list) && list[i] != 0 }
}

// words are the layers that mlp_layer_types calls sparse. It knows no third word.
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

// oneEach checks that a list has one entry a layer; where the number of layers
// does not stand beside it, it is the list's.
func (f *fields) oneEach(name string, entries int) {
	f.listed = entries
	if _, raw := f.find("num_hidden_layers", "n_layers"); raw == nil {
		return
	}
	if layers := f.size("num_hidden_layers", "n_layers"); layers != entries {
		f.fail("%s has %d entries, must have one for each of the %d layers", name, entries, layers)
	}
}

// cut takes off lists what they have for layers that predict further tokens, which
// stand behind the model's.
func (f *fields) cut(names ...string) {
	if !f.has("num_hidden_layers") || !f.has("num_nextn_predict_layers") {
		return
	}
	layers, further := f.size("num_hidden_layers"), f.count(0, "num_nextn_predict_layers")
	for _, name := range names {
		var list []json.RawMessage
		if json.Unmarshal(f.object[name], &list) == nil && f.err == nil && len(list)-layers == further && further > 0 {
			f.object[name], _ = json.Marshal(list[:layers]) // raw messages that were just read
		}
	}
}

// stepped are every so many layers but those that are listed, or dense where no
// list is there.
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

// among are the layers of a list.
func among(list []int) func(int) bool {
	set := map[int]bool{}
	for _, i := range list {
		set[i] = true
	}
	return func(i int) bool { return set[i] }
}

// enumerated are the layers of a list, or of a string of numbers and commas.
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

// letters are the kinds of a hybrid model's layers.
var letters = map[rune]string{'M': "linear_attention", 'E': "moe", '*': "full_attention", '-': "mlp"}

// pattern are the layers of a hybrid model that have experts: a list of words, or
// a string with a letter a layer. Their number is the model's.
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
			f.assumed = append(f.assumed, fmt.Sprintf("num_hidden_layers is %d: the %d of %s, as transformers has it", layers, len(words), name))
		}
	}
	return func(i int) bool { return i < len(words) && words[i] == "moe" }
}

// agree reads fields by which other families choose their layers. One that says
// other layers is refused, as the file can't tell which are meant; or not read,
// where the family has its list of them.
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

// wordOf is whether a layer has experts, as a word.
func wordOf(moe []int, layer int) string {
	_, has := slices.BinarySearch(moe, layer)
	return sparse(has)
}

// says is what a field says of a layer: "sparse", "dense" or nothing. It is nil for
// a field that is not there, or of another form.
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

// sparse is a layer with experts, or one without; dense one without, or any.
func sparse(is bool) string {
	if is {
		return "sparse"
	}
	return "dense"
}

func dense(is bool) string {
	if is {
		return "dense"
	}
	return ""
}
