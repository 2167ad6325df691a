package moe

import "sonicmoe/moe/checkpoint"

// Model is what a config.json says of a model's expert layers.
type Model = checkpoint.Model

// FromConfig reads a published model's config.json, as Hugging Face keeps it,
// into the exact Config of its expert layers. Nothing is approximated: what a
// Config can't say is an error, or stands in Model.Outside where the experts
// alone are right; what was assumed and what was not understood is listed too.
// A model type is read ([checkpoint.Types] lists those), refused with the reason
// why no Config says its layer, or not known.
// [Check] tells whether today's kernels compute the Config.
func FromConfig(json []byte) (Model, error) { return checkpoint.Read(json) }
