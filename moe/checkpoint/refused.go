package checkpoint

// This file lists model types that Read knows and that no Config describes.

const none = "it has no experts"

// refused maps a model type to the reason why no Config describes it.
var refused = map[string]string{
	"deepseek_v4":                          "some of its layers choose experts by a table of token ids",
	"doge":                                 "each of its experts is one row of a table, chosen by product keys",
	"dots3_note_vision_encoder":            "it is an encoder of pictures; the model's text part is dots3_note_text",
	"ernie4_5_vl_moe":                      "it has two sets of experts, for text and for pictures, of different widths",
	"ernie4_5_vl_moe_vision":               none,
	"glm4v_moe_vision":                     none,
	"hy_v4":                                "its experts clamp gate and up, its shared expert does not",
	"inkling":                              "its router scores routed and shared experts together",
	"inkling_mm_model":                     "its router scores routed and shared experts together",
	"inkling2":                             "its experts' SwiGLU has soft caps",
	"jetmoe":                               "it adds a bias to the sum of experts, and its attention's heads are experts too",
	"kolibri1":                             "it adds its selection bias to the logits, not to the scores",
	"longcat_flash":                        "some of its experts have no weights and return the token",
	"muse_spark":                           "its experts have another width than its tokens, and a norm after each",
	"nllb-moe":                             "its experts drop tokens beyond a capacity, and have biases without a gate",
	"qwen3_5_moe_vision":                   none,
	"qwen3_omni_moe_audio_encoder":         none,
	"qwen3_omni_moe_talker_code_predictor": none,
	"qwen3_omni_moe_vision_encoder":        none,
	"qwen3_vl_moe_vision":                  none,
	"switch_transformers":                  "its experts drop tokens beyond a capacity",
	"vitpose":                              "it has an expert for each data set, and no router",
	"vitpose_backbone":                     "it has an expert for each data set, and no router",
	"zaya":                                 "its router is a network with a state that passes from layer to layer",
}
