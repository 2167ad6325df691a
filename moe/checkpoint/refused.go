package checkpoint

// This file lists model types that Read knows and that no Config describes.

const none = "there are no experts in it"

// refused maps a model type to the reason why no Config describes it.
var refused = map[string]string{
	"deepseek_v4":                          "some of its layers choose experts by a table of token ids",
	"doge":                                 "its experts are single rows, chosen by product keys",
	"dots3_note_vision_encoder":            "it is an encoder of pictures; the model's text part is dots3_note_text",
	"ernie4_5_vl_moe":                      "it has two sets of experts, for text and for pictures, of different widths",
	"ernie4_5_vl_moe_vision":               none,
	"glm4v_moe_vision":                     none,
	"hy_v4":                                "its experts clamp gate and up, its shared expert does not",
	"inkling":                              "its shared experts have part in the routed ones' scores",
	"inkling_mm_model":                     "its shared experts have part in the routed ones' scores",
	"inkling2":                             "its experts' SwiGLU is capped softly",
	"jetmoe":                               "it adds a bias to the sum of experts, and its attention's heads are experts too",
	"kolibri1":                             "it chooses experts by logits with a bias, not by scores with one",
	"longcat_flash":                        "experts without weights, which give a token back, stand among the others",
	"muse_spark":                           "its experts work in a space of their own, with a norm after each",
	"nllb-moe":                             "its experts drop tokens beyond a capacity, and have biases without a gate",
	"qwen3_5_moe_vision":                   none,
	"qwen3_omni_moe_audio_encoder":         none,
	"qwen3_omni_moe_talker_code_predictor": none,
	"qwen3_omni_moe_vision_encoder":        none,
	"qwen3_vl_moe_vision":                  none,
	"switch_transformers":                  "its experts drop tokens beyond a capacity",
	"vitpose":                              "its experts are one for each data set, without a router",
	"vitpose_backbone":                     "its experts are one for each data set, without a router",
	"zaya":                                 "its router is a network of its own, with a state from layer to layer",
}
