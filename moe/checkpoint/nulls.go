package checkpoint

import "encoding/json"

// nulls are the fields that transformers reads where they are null, by model type,
// and what they count as: false for a switch, no groups, or a default that the
// class puts in. Null in another field that is read is an error there, of the class
// or of the layer, and here.
var nulls = map[string]map[string]string{
	"axk1":           {"norm_topk_prob": "false"},
	"axk2":           {"n_group": "1", "topk_group": "1"},
	"bailing_hybrid": {"moe_renormalize": "false"},
	"deepseek_v3":    {"norm_topk_prob": "false"},
	"dots1":          {"norm_topk_prob": "false"},
	"kimi_k2":        {"norm_topk_prob": "false"},
	"kimi_linear":    {"moe_renormalize": "false"},
	"mimo_v2_flash":  {"routed_scaling_factor": "1"},
	"mistral4":       {"norm_topk_prob": "false"},
}

// defaults puts in what nulls count as.
func (f *fields) defaults() {
	for name, value := range nulls[f.kind()] {
		if f.null(name) {
			f.object[name] = json.RawMessage(value)
		}
	}
}

// notNull refuses null in a field.
func (f *fields) notNull(want string, names ...string) {
	for _, name := range names {
		if f.null(name) {
			f.fail("%s is null, must be %s", name, want)
		}
	}
}
