package kerneltest

import (
	"sonicmoe/internal/spec"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/tiles"
)

// Layer is a layer for two tests: one compares digests of its kernels' text with the digests in
// testdata, and the other assembles its kernels.
type Layer struct {
	// Name is one word.
	Name   string
	Config spec.Config
	// With Inference, only the kernels of the forward pass have digests.
	Inference bool
	// Tiles replaces tilings that the cost model chooses.
	Tiles tiles.Choice
}

// Layers together have every kernel of the registry: all layouts of weights, all formats of
// logits, both element types, gated and plain activations, biases, rounding, shared experts,
// odd sizes, the widest routing, and tilings that are no default. A kernel that no layer has
// fails TestPTX of package moe and TestAssemble of package kernel.
var Layers = []Layer{
	{Name: "7B", Config: spec.Config{Hidden: 1536, Intermediate: 256, NumExperts: 128, TopK: 8}},
	{Name: "interleaved-f32", Config: spec.Config{Hidden: 2048, Intermediate: 768, NumExperts: 60, TopK: 6, GateUp: spec.Interleaved, Logits: spec.F32}},
	{Name: "inference", Inference: true, Config: spec.Config{Hidden: 2880, Intermediate: 2880, NumExperts: 32, TopK: 4}},
	{Name: "small", Inference: true, Config: spec.Config{Hidden: 128, Intermediate: 64, NumExperts: 1, TopK: 1, GateUp: spec.Interleaved}},
	{Name: "wide-routing", Config: spec.Config{Hidden: 2048, Intermediate: 512, NumExperts: 1024, TopK: 16}},
	{Name: "odd-points", Config: spec.Config{Hidden: 832, Intermediate: 320, NumExperts: 24, TopK: 5, GateUp: spec.Interleaved}, Tiles: tiles.Choice{
		spec.ProductUp: {TileN: 128, Stages: 4, GroupM: 16, ClusterM: 2}, spec.ProductDown: {TileN: 128, Stages: 5, GroupM: 4, ClusterM: 2},
		spec.ProductDH: {TileN: 128, Stages: 4, GroupM: 32, ClusterM: 2}, spec.ProductDX: {TileN: 192, Stages: 3, GroupM: 8, ClusterM: 1},
		spec.ProductDW1: {TileN: 192, Stages: 4, GroupM: 1, ClusterM: 1}, spec.ProductDW2: {TileN: 128, Stages: 5, GroupM: 1, ClusterM: 1},
	}},
	{Name: "DeepSeek-V3's-router", Config: spec.Config{Hidden: 2048, Intermediate: 512, NumExperts: 256, TopK: 8, Logits: spec.F32,
		Score: spec.Sigmoid, SelectionBias: true, Groups: 8, TopGroups: 4, GroupSumOfTwo: true,
		Renormalize: spec.RenormSum, NormEpsilon: 1e-20, ScoreScale: 2.5}},
	{Name: "softmax-over-all", Config: spec.Config{Hidden: 2048, Intermediate: 1024, NumExperts: 64, TopK: 8, Score: spec.SoftmaxAll, RouterBias: true, ExpertScale: true}},
	{Name: "bias-rounding", Config: spec.Config{Hidden: 2880, Intermediate: 2880, NumExperts: 32, TopK: 4, GateUp: spec.Interleaved, Bias: true,
		Activation: spec.SwiGLUOAI, Alpha: 1.702, Limit: 7, Rounding: spec.Rounding{Rule: spec.RoundNearest, Tile: 128}}},
	{Name: "mass-raw-scores", Inference: true, Config: spec.Config{Hidden: 1536, Intermediate: 256, NumExperts: 512, TopK: 4, Logits: spec.F32,
		Rounding: spec.Rounding{Rule: spec.RoundMass, Tile: 64, RawScores: true}}},
	{Name: "in-out-bias", Config: spec.Config{Hidden: 768, Intermediate: 448, NumExperts: 16, TopK: 2, InOut: true, Bias: true, Activation: spec.GeGLUTanh}},
	{Name: "in-out-pairs", Config: spec.Config{Hidden: 2880, Intermediate: 2880, NumExperts: 32, TopK: 4, InOut: true, GateUp: spec.Interleaved,
		Bias: true, Activation: spec.SwiGLUOAI, Alpha: 1.702, Limit: 7}},
	{Name: "apart", Config: spec.Config{Hidden: 1024, Intermediate: 1408, NumExperts: 64, TopK: 6, GateUp: spec.Apart, Bias: true, Lists: true}},
	{Name: "shared", Config: spec.Config{Hidden: 2048, Intermediate: 512, NumExperts: 60, TopK: 4, Score: spec.SoftmaxAll, SharedExperts: 4, SharedGate: true}},
	{Name: "score-on-input", Config: spec.Config{Hidden: 5120, Intermediate: 8192, NumExperts: 16, TopK: 1, InOut: true,
		Score: spec.Sigmoid, ScoreOnInput: true, SharedExperts: 1}},
	{Name: "router-f32", Config: spec.Config{Hidden: 4096, Intermediate: 3072, NumExperts: 72, TopK: 8, Logits: spec.F32, RouterF32: true}},
	{Name: "fp16", Config: spec.Config{Hidden: 1536, Intermediate: 256, NumExperts: 128, TopK: 8, Type: spec.F16, Logits: spec.F16}},
	{Name: "fp16-bias-shared", Config: spec.Config{Hidden: 2048, Intermediate: 768, NumExperts: 60, TopK: 6, Type: spec.F16, Logits: spec.F32, RouterF32: true,
		InOut: true, GateUp: spec.Interleaved, Bias: true, SharedExperts: 1, SharedGate: true, Lists: true}},
	{Name: "uneven", Config: spec.Config{Hidden: 1456, Intermediate: 464, NumExperts: 60, TopK: 4, SharedExperts: 1, SharedGate: true}},
	{Name: "uneven-in-out", Config: spec.Config{Hidden: 848, Intermediate: 176, NumExperts: 24, TopK: 3, InOut: true, GateUp: spec.Interleaved, Bias: true,
		RouterF32: true, Logits: spec.F32, Lists: true}},
	{Name: "uneven-apart", Config: spec.Config{Hidden: 720, Intermediate: 336, NumExperts: 16, TopK: 2, GateUp: spec.Apart, InOut: true, Activation: spec.GeGLUErf,
		Type: spec.F16, Logits: spec.F16}},
	{Name: "mxfp4", Inference: true, Config: spec.Config{Hidden: 2880, Intermediate: 2880, NumExperts: 32, TopK: 4, GateUp: spec.Interleaved, Bias: true,
		Activation: spec.SwiGLUOAI, Alpha: 1.702, Limit: 7, Weights: "mxfp4"}},
	{Name: "mxfp4-single", Inference: true, Config: spec.Config{Hidden: 2048, Intermediate: 768, NumExperts: 128, TopK: 8, Weights: "mxfp4"}},
	{Name: "fp8", Inference: true, Config: spec.Config{Hidden: 720, Intermediate: 336, NumExperts: 999, TopK: 8, GateUp: spec.Apart, Weights: "fp8"}},
	{Name: "fp8-ue8m0", Inference: true, Config: spec.Config{Hidden: 7168, Intermediate: 2048, NumExperts: 256, TopK: 8, Weights: "fp8-ue8m0"}},
	{Name: "int4-g32", Inference: true, Config: spec.Config{Hidden: 7168, Intermediate: 2048, NumExperts: 384, TopK: 8, Weights: "int4-g32"}},
	{Name: "int4-g128", Inference: true, Config: spec.Config{Hidden: 4096, Intermediate: 1536, NumExperts: 128, TopK: 8, GateUp: spec.Apart, Weights: "int4-g128"}},
	{Name: "fp8-tensor", Inference: true, Config: spec.Config{Hidden: 4096, Intermediate: 14336, NumExperts: 8, TopK: 2, Weights: "fp8-tensor"}},
	{Name: "nvfp4", Inference: true, Config: spec.Config{Hidden: 7168, Intermediate: 2048, NumExperts: 256, TopK: 8, GateUp: spec.Apart, Weights: "nvfp4"}},
	{Name: "uint4-g32", Inference: true, Config: spec.Config{Hidden: 2048, Intermediate: 768, NumExperts: 128, TopK: 8, Weights: "uint4-g32"}},
	{Name: "uint4-g128-f16", Inference: true, Config: spec.Config{Hidden: 2048, Intermediate: 768, NumExperts: 128, TopK: 8, Type: spec.F16, Logits: spec.F16, Weights: "uint4-g128-f16"}},
	{Name: "lora", Config: spec.Config{Hidden: 2048, Intermediate: 768, NumExperts: 128, TopK: 8, LoRARank: 16, LoRAAlpha: 32}},
	{Name: "lora-in-out", Inference: true, Config: spec.Config{Hidden: 2880, Intermediate: 2880, NumExperts: 32, TopK: 4, InOut: true, GateUp: spec.Interleaved, Bias: true,
		Activation: spec.SwiGLUOAI, Alpha: 1.702, Limit: 7, LoRARank: 72, LoRAAlpha: 16, RSLoRA: true}},
	{Name: "lora-wide", Config: spec.Config{Hidden: 2048, Intermediate: 768, NumExperts: 128, TopK: 8, LoRARank: 64, LoRAAlpha: 32}},
	{Name: "lora-padded", Config: spec.Config{Hidden: 512, Intermediate: 192, NumExperts: 12, TopK: 3, GateUp: spec.Apart, LoRARank: 12, LoRAAlpha: 24}},
	{Name: "adapters", Inference: true, Config: spec.Config{Hidden: 2048, Intermediate: 768, NumExperts: 128, TopK: 8, LoRARank: 16, LoRAAdapters: 16}},
	{Name: "adapters-apart", Inference: true, Config: spec.Config{Hidden: 720, Intermediate: 336, NumExperts: 16, TopK: 1, GateUp: spec.Apart, Type: spec.F16, Logits: spec.F16,
		Score: spec.Sigmoid, ScoreOnInput: true, LoRARank: 76, LoRAAdapters: 3}},
	{Name: "adapters-wide", Inference: true, Config: spec.Config{Hidden: 2880, Intermediate: 2880, NumExperts: 32, TopK: 4, InOut: true, GateUp: spec.Interleaved, Bias: true,
		Activation: spec.SwiGLUOAI, Alpha: 1.702, Limit: 7, LoRARank: 128, LoRAAdapters: 100}},
	{Name: "plain", Config: spec.Config{Hidden: 512, Intermediate: 192, NumExperts: 12, TopK: 3, Activation: spec.ReLU2}},
}

// Keeps reports whether the kernel has a digest for this layer.
func (l Layer) Keeps(k registry.Any) bool {
	return k.Suits(l.Config) && (!l.Inference || !k.IsBackward())
}
