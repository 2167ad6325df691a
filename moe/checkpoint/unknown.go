package checkpoint

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// These patterns recognise fields of expert layers by their names. telling matches fields that may
// belong to an expert layer. harmless matches fields of the training loss and of the distribution
// of work. others matches fields of other parts of the model, which count only if they match
// experts, too.
var (
	telling = regexp.MustCompile(`expert|moe|rout|top_?k|scor(e|ing)|renorm|group|swiglu|shared|sparse|latent|clamp|_act$|^mlp|` +
		`bias|limit|scaling|activation|(layer|block|ffn)s?_(config|override)`)
	harmless = regexp.MustCompile(`aux_loss|output_router_logits|^seq_aux$|^ep_size$|_loss_coef|z_loss|index_topk|quantization|dropped_token|overlap|load_balanc|` +
		`grouped_(gemm|mm)|experts_implementation|loss_weight|dropout|^mlp_(alpha|beta)_factor$`)
	others = regexp.MustCompile(`kv_shared|mamba|attention|attn|linear_|^n_groups$|vision|audio|_token|^num_nextn|mtp|per_layer_input|layernorm|` +
		`conv|qkv|rope|head|projector|prenorm|logits?_scaling|log_scaling|time_step`)
	experts = regexp.MustCompile(`expert|rout`)
)

// tells reports whether a field with this name may belong to an expert layer.
func tells(name string) bool {
	name = strings.ToLower(name)
	return telling.MatchString(name) && !harmless.MatchString(name) && (experts.MatchString(name) || !others.MatchString(name))
}

// off reports whether a field turns a bias off.
func off(name string, raw json.RawMessage) bool {
	return string(raw) == "false" && strings.HasSuffix(strings.ToLower(name), "bias")
}

// unknown lists the fields that were not read and that may belong to the layer.
func (f *fields) unknown() []string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(f.object)) {
		if !f.read[name] && tells(name) && f.has(name) && !off(name, f.object[name]) {
			list = append(list, fmt.Sprintf("%s = %s", name, shown(f.object[name])))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.around)) {
		if tells(name) && f.around.has(name) && !equal(f.around[name], f.object[name]) {
			list = append(list, fmt.Sprintf("%s = %s, around the text model's fields", name, shown(f.around[name])))
		}
	}
	return list
}
