package checkpoint

import "encoding/json"

// nulls lists, by model type, the fields that transformers accepts as null, and the value that null
// means: false for a switch, one group, or the default of the class. Null in any other field is an
// error, as in transformers.
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

// defaults replaces null by its meaning in each field that accepts null.
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
