package moe

import "sonicmoe/moe/checkpoint"

// Model has the content of a config.json about a model's expert layers.
type Model = checkpoint.Model

// FromConfig reads the config.json of a published model on Hugging Face into the
// exact Config of its expert layers. It approximates nothing. A property that no
// Config has is an error, or is listed in Model.Outside if the experts alone are
// right. Assumptions and unknown entries are listed too. [checkpoint.Types] lists
// the model types that are read; other types are refused with a reason, or unknown.
// [Check] reports whether the kernels compute the Config.
func FromConfig(json []byte) (Model, error) { return checkpoint.Read(json) }
