// Package adapter reads and writes LoRA adapters of expert layers, in the files that other programs
// read and write.
//
//	f, err := adapter.Open(ctx, "my-adapter")
//	...
//	c, err := f.Config(base)          // base with LoRARank, LoRAAlpha and RSLoRA
//	layer, err := moe.New(ctx, dev, c)
//	...
//	err = f.Load(ctx, stream, 7, c, w) // the factors of layer 7, into the weights w
//
// A folder has adapter_config.json and adapter_model.safetensors. There are three layouts of the
// experts' factors, where r is the adapter's rank:
//
//	PEFT       experts.base_layer.lora_A [E·r, d], lora_B [2n, r·E] of gate and up, and
//	           experts.lora_A [E·r, n], lora_B [d, r·E] of down: PEFT's target_parameters. The
//	           expert is the slowest index of A's rows, and the fastest of B's columns.
//	PerExpert  experts.7.gate_proj.lora_A [r, d], lora_B [n, r], and so on: vLLM's layout, and
//	           PEFT's for models that have a module for each expert.
//	Stacked    experts.gate_up_proj.lora_A [E, 2r, d], lora_B [E, 2n, r], and
//	           experts.down_proj.lora_A [E, r, n], lora_B [E, d, r]: SGLang's layout. In
//	           gate_up_proj's A the rows of gate come before the rows of up.
//
// A layer has one lora_A for gate and up together. If the file has two different ones, the layer
// gets both, one after the other, and the rank doubles. Ranks are padded with zeros to multiples of
// 8. Config changes alpha with the rank, so the scale of the products stays the same. LoadPlace puts
// an adapter into a layer's table of adapters.
//
// Open refuses what a layer cannot compute: DoRA and other variants of LoRA, ranks and alphas for each
// module, trained biases, and initial values for which PEFT changes the base weights, such as PiSSA.
// [File.Assumed] lists the settings that Open does not follow, such as dropout.
//
// v1 does not promise this package.
package adapter
