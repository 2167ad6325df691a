// Package checkpoint reads published models: their config.json, as Hugging Face
// keeps it, into the [spec.Config] of their expert layers.
//
// [Read] knows the families of Mixtral, Qwen2-MoE, Qwen3-MoE, Qwen3-Next and 3.5,
// OLMoE, DeepSeek-V2 and V3, Kimi-K2 and Kimi-Linear, GLM-4.5, gpt-oss, Granite,
// MiniMax-M1, M2 and M3, Llama-4, Phi-3.5, Nemotron-3, Gemma-4, ERNIE-4.5, Hunyuan,
// DBRX and those that were made after them, each as the modelling code of
// transformers 5.23 computes it: [Types] lists them. Of the 107 model types there
// that mention experts, testdata/types.txt has what is read of each one's default
// config.json; those that no Config says are refused with the reason. It approximates
// nothing: what a Config can't say is an error, or stands in [Model.Outside]
// where the experts alone are right; a field that is missing and was taken for
// its default stands in [Model.Assumed]; a field that looks as if it belonged to
// an expert layer and that nobody read stands in [Model.Unknown]. Of a model of
// several parts the text model's fields count, as there: those around them only for
// the model_type and the dtype that it lacks. Null counts as what transformers takes
// it for, and is an error where that is one.
//
// [Published] are models by name.
package checkpoint
