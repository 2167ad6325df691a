// Package checkpoint reads published models: their config.json, as Hugging Face keeps it, into the
// [spec.Config] of their expert layers.
//
// [Read] knows the families of Mixtral, Qwen2-MoE, Qwen3-MoE, Qwen3-Next and 3.5, OLMoE,
// DeepSeek-V2 and V3, Kimi-K2 and Kimi-Linear, GLM-4.5, gpt-oss, Granite, MiniMax-M1, M2 and M3,
// Llama-4, Phi-3.5, Nemotron-3, Gemma-4, ERNIE-4.5, Hunyuan, DBRX and their descendants. It reads
// each as the modelling code of transformers 5.23 computes it.
// testdata/types.txt shows how Read reads the default config.json of each of the 107 model types of
// transformers that mention experts. Read refuses the types that a Config cannot describe, and
// gives the reason.
//
// Read approximates nothing. If a Config cannot describe part of a block, Read returns an error. If
// the experts can be described without that part, the part is an entry of [Model.Outside] instead.
// A missing field that has a default is an entry of [Model.Assumed]. A field that looks like part
// of an expert layer, but that Read does not use, is an entry of [Model.Unknown].
//
// In a model of several parts, Read uses the text model's fields, as transformers does. It uses the
// surrounding fields only for a missing model_type or dtype. A null has the same meaning as in
// transformers, and is an error where transformers has an error.
package checkpoint
