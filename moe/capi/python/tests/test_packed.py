"""Packed weights must give the same bits as plain weights with the values that the codes stand
for."""

import copy
import dataclasses
import inspect
import json
import types

import pytest
import torch
from reference import distance

import sonicmoe_go
from sonicmoe_go import _table, _weights

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def packed(name, e, rows, columns, device):
    """Returns random packed weights [e, rows, columns] and the bf16 values that they stand for. The
    packed weights are the tensors of codes, scales, zero points and global scales. A tensor is None
    if the format does not have it."""
    bits, high, wide, kind, has_zeros, has_global = _table.PACKINGS[name]
    down, across = -(-rows // high), -(-columns // wide)
    codes = torch.randint(0, 256, (e, rows, columns * bits // 8), dtype=torch.uint8)
    zeros = torch.randint(0, 16, (e, down, across), dtype=torch.uint8) if has_zeros else None
    every = (torch.rand(e) + 0.5) if has_global else None
    rows_of, columns_of = torch.arange(rows) // high, torch.arange(columns) // wide
    if bits == 8:
        codes[codes % 128 == 127] = 0  # removes NaN
        numbers = codes.view(torch.float8_e4m3fn).float()
    else:
        nibbles = torch.stack((codes % 16, codes // 16), -1).flatten(2).long()
        zero = zeros[:, rows_of][:, :, columns_of].long() if has_zeros else 8
        numbers = E2M1[nibbles] if name in ("mxfp4", "nvfp4") else (nibbles - zero).float()
    if has_global:  # the scales are E4M3
        scales = torch.randint(16, 40, (e, down, across), dtype=torch.uint8)
        factors = scales.view(torch.float8_e4m3fn).float() * every[:, None, None]
    elif kind == "u8":
        scales = torch.randint(117, 122, (e, down, across), dtype=torch.uint8)
        factors = torch.exp2(scales.float() - 127)
    else:
        scales = (torch.rand(e, down, across) / 128).to({"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[kind])
        factors = scales.float()
    values = (numbers * factors[:, rows_of][:, :, columns_of]).bfloat16()
    return *(None if t is None else t.to(device) for t in (codes, scales, zeros, every)), values.to(device)


@pytest.mark.parametrize("name", _table.PACKINGS)
def test_packed_bits(device, name):
    c = sonicmoe_go.Config(128, 128, 4, 2)
    x = torch.randn(19, 128, dtype=torch.bfloat16, device=device)
    router = (torch.randn(4, 128, device=device) / 8).bfloat16()
    (w1, *more1, v1), (w2, *more2, v2) = packed(name, 4, 256, 128, device), packed(name, 4, 128, 128, device)
    more = {f"{w}_{of}": t for w, ts in (("w1", more1), ("w2", more2)) for of, t in zip(("scale", "zero", "global"), ts)}
    of = dataclasses.replace(c, weights=name)
    d_o = torch.randn_like(x)
    got = []
    for config, ws, scales in ((of, (w1, w2), more), (c, (v1, v2), {})):
        with torch.no_grad():
            alone = sonicmoe_go.moe(x, router, *ws, config, **scales)[0]
        xs, rs = x.clone().requires_grad_(), router.clone().requires_grad_()
        o = sonicmoe_go.moe(xs, rs, *ws, config, **scales)[0]
        got.append((alone, o.detach(), *torch.autograd.grad((o * d_o).sum(), (xs, rs))))
    for a, b in zip(*got, strict=True):
        assert torch.equal(a, b)
    for missing, t in more.items():
        if t is not None:
            with pytest.raises(sonicmoe_go.ArgumentError, match=f"{missing} is None, must be"):
                sonicmoe_go.moe(x, router, w1, w2, of, **more | {missing: None})


def test_every_weight_has_a_keyword():
    """The functions must accept all tensors of the table."""
    assert set(_weights.WEIGHTS) < set(inspect.signature(sonicmoe_go.moe).parameters)
    assert set(_weights.EXPERTS) < set(inspect.signature(sonicmoe_go.moe_experts).parameters)


def quantised(w):
    """Returns FP8 codes and scales [E, out, in] in blocks of 128 x 128, and the bf16 values that
    they stand for."""
    e, rows, columns = w.shape
    blocks = w.float().view(e, rows // 128, 128, columns // 128, 128)
    scales = blocks.abs().amax((2, 4)) / 448
    codes = (blocks / scales[:, :, None, :, None]).to(torch.float8_e4m3fn)
    values = (codes.float() * scales[:, :, None, :, None]).bfloat16().view(w.shape)
    return codes.view(w.shape), scales, values


def in_fp8(model):
    """Returns a copy of a model in which FP8 modules of transformers hold the experts and the
    shared experts. The model itself gets the values of the copy's weights."""
    fp8 = pytest.importorskip("transformers.integrations.finegrained_fp8")
    moe = pytest.importorskip("transformers.integrations.moe")
    made = copy.deepcopy(model)
    for name, m in model.named_modules():
        if name.endswith(".experts"):
            kind = moe.use_experts_implementation(experts_class=type("FP8Experts", (fp8.FP8Experts,), {}), experts_interface=fp8.ALL_FP8_EXPERTS_FUNCTIONS)
            new = kind(config=made.get_submodule(name).config, block_size=(128, 128))
            for what in ("gate_up_proj", "down_proj"):
                w = getattr(m, what)
                codes, scales, w.data = quantised(w.data)
                getattr(new, what).data, getattr(new, f"{what}_scale_inv").data = codes, scales
            made.set_submodule(name, new)
        elif "shared_experts." in name and isinstance(m, torch.nn.Linear):
            new = fp8.FP8Linear(m.in_features, m.out_features, (128, 128))
            codes, scales, values = quantised(m.weight.data[None])
            new.weight.data, new.weight_scale_inv.data, m.weight.data = codes[0], scales[0], values[0]
            made.set_submodule(name, new)
    return made


def model_of(kind, device="cpu"):
    """Returns a small random model with experts."""
    transformers = pytest.importorskip("transformers")
    of = {"hidden_size": 128, "moe_intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
          "vocab_size": 96, "num_experts_per_tok": 2, "intermediate_size": 128, "max_position_embeddings": 64}  # fmt: skip
    if kind == "qwen3":
        config = transformers.Qwen3MoeConfig(**of, num_experts=4, head_dim=32, norm_topk_prob=True, decoder_sparse_step=1)
    else:
        config = transformers.DeepseekV3Config(
            **of, n_routed_experts=4, n_group=2, topk_group=1, n_shared_experts=1, first_k_dense_replace=0, q_lora_rank=32, kv_lora_rank=32,
            qk_rope_head_dim=16, qk_nope_head_dim=16, v_head_dim=32,
        )  # fmt: skip
    torch.manual_seed(4)
    model = transformers.AutoModelForCausalLM.from_config(config, experts_implementation="eager").bfloat16().eval().to(device)
    for m in model.modules():
        if hasattr(m, "gate_up_proj") and isinstance(m.gate_up_proj, torch.nn.Parameter):
            for w in (m.gate_up_proj, m.down_proj):
                w.data.normal_(std=0.1)
    return model


@pytest.mark.parametrize("way", ["register", "from_hf"])
@pytest.mark.parametrize("kind", ["qwen3", "deepseek"])
@torch.no_grad()
def test_logits_of_fp8_models(kind, way, device):
    """The reference is the dequantised model in float64. The logits of the model with FP8 experts
    must be about as near to the reference as the logits of the dequantised model in bf16. With
    layers of the dequantised weights, the model must generate the same greedy tokens."""
    plain = model_of(kind, device)
    made = in_fp8(plain)
    if way == "register":
        for layer, of in zip(made.model.layers, plain.model.layers):  # FP8Linear needs a kernel that must be downloaded
            if hasattr(layer.mlp, "shared_experts"):
                layer.mlp.shared_experts = of.mlp.shared_experts
        made.set_experts_implementation(sonicmoe_go.register_with_transformers())
    else:
        for layer in made.model.layers:
            layer.mlp = sonicmoe_go.SonicMoE.from_hf(layer.mlp)
            assert layer.mlp.config.weights == "fp8"
        twin = copy.deepcopy(plain)
        for layer in twin.model.layers:
            layer.mlp = sonicmoe_go.SonicMoE.from_hf(layer.mlp)
        x = torch.randn(2, 7, 128, dtype=torch.bfloat16, device=device)
        same_gradients(made.model.layers[0].mlp, twin.model.layers[0].mlp, x)
        prompt = torch.randint(0, 96, (2, 4), device=device)
        tokens = [m.generate(prompt, max_new_tokens=5, do_sample=False, pad_token_id=0, eos_token_id=None) for m in (made, twin)]
        assert tokens[0].shape == (2, 9) and torch.equal(*tokens)
    ids = torch.randint(0, 96, (2, 9), device=device)
    got, own = made(ids).logits, plain(ids).logits
    want = copy.deepcopy(plain).double()(ids).logits
    assert distance(got, want) < 1.2 * distance(own, want)


@torch.enable_grad()
def same_gradients(packed_layer, plain_layer, x):
    """Checks that the gradients of the tokens and of the router have the same bits through packed
    weights as through the values that they stand for."""
    got = []
    for layer in (packed_layer, plain_layer):
        inputs = x.clone().requires_grad_()
        router = next(p for n, p in layer.named_parameters() if n.split(".")[0] in ("gate", "router") and n.endswith("weight")).requires_grad_()
        o = layer(inputs)
        o = o[0] if isinstance(o, tuple) else o
        got.append(torch.autograd.grad((o * x.flip(0)).sum(), (inputs, router)))
    for a, b in zip(*got, strict=True):
        assert a.any() and torch.equal(a, b)


class Swizzled:
    """A tensor in the order of Triton's kernels. In this test, that order is the order of the
    files, transposed."""

    def __init__(self, t):
        self.storage = types.SimpleNamespace(data=t.transpose(-1, -2), layout=types.SimpleNamespace(unswizzle_data=lambda t: t))


@pytest.mark.parametrize("way", ["register", "from_hf"])
@torch.no_grad()
def test_fp4_experts(way, device):
    """transformers' FP8Experts may hold FP4 codes with E8M0 scales of 32 numbers, as for DeepSeek-V4. The
    output must have the bits of the layer of the codes' values, unpacked by transformers."""
    fp8, moe = pytest.importorskip("transformers.integrations.finegrained_fp8"), pytest.importorskip("transformers.integrations.moe")
    if "expert_dtype" not in inspect.signature(fp8.FP8Experts.__init__).parameters:
        pytest.skip("this version of transformers has no FP4 experts")
    block = model_of("qwen3", device).model.layers[0].mlp
    made = copy.deepcopy(block)
    kind = moe.use_experts_implementation(experts_class=type("FP8Experts", (fp8.FP8Experts,), {}), experts_interface=fp8.ALL_FP8_EXPERTS_FUNCTIONS)
    made.experts = kind(config=copy.deepcopy(block.experts.config), block_size=(128, 128), expert_dtype="fp4", scale_fmt="ue8m0").to(device)
    for name in ("gate_up_proj", "down_proj"):
        w = getattr(block.experts, name)
        codes, scales, _, _, _ = packed("mxfp4", *w.shape, device)
        getattr(made.experts, name).data, getattr(made.experts, f"{name}_scale_inv").data = codes.view(torch.int8), scales.view(torch.float8_e8m0fnu)
        w.data = fp8.Fp8Dequantize(None)._dequantize_one(codes.view(torch.int8), scales, torch.bfloat16)
    x = torch.randn(1, 9, 128, dtype=torch.bfloat16, device=device)
    if way == "register":
        for b in (block, made):
            b.experts.config._experts_implementation = sonicmoe_go.register_with_transformers()
        assert torch.equal(made(x), block(x))
        peft = pytest.importorskip("peft")
        adapted = peft.get_peft_model(copy.deepcopy(made), peft.LoraConfig(r=4, target_modules=[], target_parameters=["experts.down_proj"]))
        for _ in range(2):  # if no test has imported PEFT before, PEFT itself adds the adapter to the codes in the first call
            with pytest.raises(sonicmoe_go.ArgumentError, match=r"peft imported before|lora_a2 is \[4, 4, 64\], must be \[4, \d+, 128\] with any rank"):
                adapted(x)
        made.experts.down_proj_scale_inv.data = made.experts.down_proj_scale_inv.data.float()
        with pytest.raises(sonicmoe_go.ArgumentError, match="weights are torch.int8, must be"):
            made(x)
        return
    layer = sonicmoe_go.SonicMoE.from_hf(made)
    assert layer.config.weights == "mxfp4"
    assert torch.equal(layer(x), sonicmoe_go.SonicMoE.from_hf(block)(x))


@torch.no_grad()
def test_mxfp4_of_gpt_oss():
    """A block of gpt-oss with MXFP4 experts must give the same bits as the block with the experts
    that transformers dequantises."""
    transformers = pytest.importorskip("transformers")
    integration = pytest.importorskip("transformers.integrations.mxfp4")
    gpt_oss = pytest.importorskip("transformers.models.gpt_oss.modeling_gpt_oss")
    config = transformers.GptOssConfig(hidden_size=64, intermediate_size=96, num_local_experts=4, num_experts_per_tok=2)
    config._experts_implementation = "eager"
    plain = gpt_oss.GptOssMLP(config).bfloat16().eval()
    plain.router.weight.normal_(std=0.3)
    plain.router.bias.normal_()
    block = integration.Mxfp4GptOssMLP(plain.router, integration.Mxfp4GptOssExperts(config))
    for name, columns in (("gate_up_proj", 64), ("down_proj", 96)):
        rows = getattr(block.experts, name).shape[1]
        blocks = torch.randint(0, 256, (4, rows, columns // 32, 16), dtype=torch.uint8)
        scales = torch.randint(120, 126, (4, rows, columns // 32), dtype=torch.uint8)
        getattr(plain.experts, name).data = integration.convert_moe_packed_tensors(blocks, scales)
        bias = getattr(plain.experts, f"{name}_bias").data.normal_()
        getattr(block.experts, f"{name}_bias").data = bias.float()
        del block.experts._parameters[name]
        setattr(block.experts, name, Swizzled(blocks.flatten(2)))
        setattr(block.experts, f"{name}_precision_config", types.SimpleNamespace(weight_scale=Swizzled(scales)))
    of = sonicmoe_go.SonicMoE.from_hf(block)
    assert of.config.weights == "mxfp4" and not any(p.requires_grad for p in of.experts.parameters())
    x = torch.randn(2, 7, 64, dtype=torch.bfloat16)
    want = sonicmoe_go.SonicMoE.from_hf(plain)(x)[0]
    assert torch.equal(of(x)[0], want)
    same_gradients(of, sonicmoe_go.SonicMoE.from_hf(plain), x)
    of.arrange()
    assert torch.equal(of(x)[0], want)
    for p in of.experts.parameters():
        if p.dtype is torch.uint8:
            p.zero_()  # small batches read only the arranged weights
    assert torch.equal(of(x)[0], want)
    of.load_state_dict(of.state_dict())  # drops the arranged weights
    assert not torch.equal(of(x)[0], want)
    of.arrange()
    assert of._units is not None and of.to(torch.device("cpu"))._units is None
    with pytest.raises(sonicmoe_go.ArgumentError, match="Config.weights is 'plain', must be packed, such as 'mxfp4'"):
        sonicmoe_go.SonicMoE.from_hf(plain).arrange()
    with pytest.raises(sonicmoe_go.ArgumentError, match="Config.lora_rank is 4, must be 0 or with lora_adapters"):
        sonicmoe_go.SonicMoE.from_hf(block, lora_rank=4, lora_alpha=8.0).arrange()
    block.experts.down_proj_precision_config = None
    with pytest.raises(sonicmoe_go.ArgumentError, match="down_proj has no scales, must be loaded"):
        sonicmoe_go.SonicMoE.from_hf(block)


def test_rounding_to_mxfp4(device):
    """Each value must be rounded to the nearest of its group's values."""
    from sonicmoe_go.packed import quantised

    w = torch.randn(3, 5, 64, device=device) * torch.logspace(-6, 6, 5, base=2, device=device)[:, None]
    w[0, 0, :32] = 0
    codes, scales = quantised(w)
    assert codes.shape == (3, 5, 32) and scales.shape == (3, 5, 2)
    factors = torch.exp2(scales.float() - 127)[..., None]
    grid = E2M1.to(device) * factors  # all values of each group
    groups = w.unflatten(-1, (-1, 32))
    nibbles = torch.stack((codes % 16, codes // 16), -1).flatten(2).unflatten(-1, (-1, 32))
    got = grid.gather(-1, nibbles.long())
    best = (groups[..., None] - grid[..., None, :]).abs().amin(-1)
    assert torch.equal((got - groups).abs(), best)
    peak = (groups.abs().amax(-1) / factors[..., 0])[groups.abs().amax(-1) > 0]
    assert (peak >= 4).all() and (peak < 8).all()
    with pytest.raises(sonicmoe_go.ArgumentError, match="must have inputs in groups of 32"):
        quantised(w[..., :40])


def test_from_hf_rounds_to_mxfp4(device):
    """A layer whose weights were rounded must have the output of the block with the values of its
    codes."""
    pytest.importorskip("transformers", minversion="5")
    from sonicmoe_go.packed import quantised
    from test_modules import block_of

    for family in ("qwen3_moe", "gpt_oss"):
        block = block_of(family, device)
        layer = sonicmoe_go.SonicMoE.from_hf(block, weights="mxfp4")
        assert layer.config.weights == "mxfp4" and layer.experts.down_proj.dtype is torch.uint8
        with torch.no_grad():
            for w in (block.experts.gate_up_proj, block.experts.down_proj):
                by_row = w.transpose(1, 2) if family == "gpt_oss" else w
                codes, scales = quantised(by_row)
                nibbles = torch.stack((codes % 16, codes // 16), -1).flatten(2).long()
                values = E2M1.to(device)[nibbles] * torch.exp2(scales.float() - 127).repeat_interleave(32, -1)
                w.copy_(values.transpose(1, 2) if family == "gpt_oss" else values)
            x = torch.randn(24, 128, device=device, dtype=torch.bfloat16)
            got, want = layer(x[None]), sonicmoe_go.SonicMoE.from_hf(block)(x[None])
        assert torch.equal(*(o[0] if isinstance(o, tuple) else o for o in (got, want)))
    with pytest.raises(sonicmoe_go.ArgumentError, match="weights is 'fp8', must be None or 'plain'"):
        sonicmoe_go.SonicMoE.from_hf(block, weights="fp8")


def pack_quantized(w, group):
    """Returns a matrix [out, in] as compressed-tensors' pack-quantized format with symmetric 4 bits has
    it, weight_packed and weight_scale, and the bf16 values that they stand for."""
    groups = w.float().unflatten(-1, (-1, group))
    scales = (groups.abs().amax(-1) / 7.5).bfloat16()
    codes = (groups / scales.float()[..., None]).round().clamp(-8, 7).int()
    values = (codes.float() * scales.float()[..., None]).bfloat16().view(w.shape)
    nibbles = (codes.view(w.shape[0], -1, 8).long() + 8) << torch.arange(0, 32, 4, device=w.device)
    return nibbles.sum(-1).to(torch.int32), scales, values


def write_kimi(model, folder, group):
    """Writes the expert layers of a DeepSeek-V3 as the files of Kimi-K2-Thinking have them. The model
    gets the values of the files' weights."""
    from safetensors.torch import save_file

    tensors = {}
    for name, m in model.named_modules():
        if name.endswith(".experts"):
            for e in range(m.num_experts):
                gate, up = m.gate_up_proj.data[e].chunk(2)
                for what, w in (("gate_proj", gate), ("up_proj", up), ("down_proj", m.down_proj.data[e])):
                    at = f"{name}.{e}.{what}.weight"
                    tensors[f"{at}_packed"], tensors[f"{at}_scale"], values = pack_quantized(w, group)
                    tensors[f"{at}_shape"] = torch.tensor(w.shape)
                    w.copy_(values)
    tensors |= {n: w for n, w in model.state_dict().items() if ".experts." not in n}
    save_file({n: w.contiguous() for n, w in tensors.items()}, folder / "model.safetensors")
    fields = json.loads(model.config.to_json_string(use_diff=False))
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": group, "actorder": None}
    scheme = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}}
    ignore = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp.gate.*"]
    fields["quantization_config"] = {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed", "config_groups": scheme, "ignore": ignore,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(fields))


@pytest.mark.parametrize("group", [32, 128])
@torch.no_grad()
def test_logits_of_kimi(group, tmp_path, device):
    """A DeepSeek-V3 with INT4 experts from files in the format of Kimi-K2-Thinking must generate the
    same greedy tokens as with layers of the dequantised weights. Its logits must be about as near to
    the dequantised model in float64 as the logits of the dequantised model in bf16."""
    plain = model_of("deepseek", device)
    write_kimi(plain, tmp_path, group)
    made, twin = copy.deepcopy(plain), copy.deepcopy(plain)
    for i, (layer, of) in enumerate(zip(made.model.layers, twin.model.layers)):
        stored = tmp_path / f"layer{i}.safetensors"
        sonicmoe_go.store_layer(tmp_path, i, stored)
        layer.mlp = sonicmoe_go.SonicMoE.from_file(stored, device=device)
        assert layer.mlp.config.weights == f"int4-g{group}" and not any(p.requires_grad for p in layer.mlp.experts.parameters())
        of.mlp = sonicmoe_go.SonicMoE.from_hf(of.mlp)
    same_gradients(made.model.layers[0].mlp, twin.model.layers[0].mlp, torch.randn(2, 7, 128, dtype=torch.bfloat16, device=device))
    made.model.layers[1].mlp.arrange()
    prompt, ids = torch.randint(0, 96, (2, 4), device=device), torch.randint(0, 96, (2, 9), device=device)
    tokens = [m.generate(prompt, max_new_tokens=5, do_sample=False, pad_token_id=0, eos_token_id=None) for m in (made, twin)]
    assert tokens[0].shape == (2, 9) and torch.equal(*tokens)
    got, own, want = made(ids).logits, plain(ids).logits, copy.deepcopy(plain).double()(ids).logits
    assert distance(got, want) < 1.2 * distance(own, want)
    with pytest.raises(sonicmoe_go.Error, match="layer 7 has no experts"):
        sonicmoe_go.store_layer(tmp_path, 7, tmp_path / "none")
    with pytest.raises(sonicmoe_go.Error, match='metadata sonicmoe.layer is ""'):
        sonicmoe_go.SonicMoE.from_file(tmp_path / "model.safetensors")


@pytest.mark.parametrize("name", _table.PACKINGS)
@torch.no_grad()
def test_modules_of_every_format(name, device):
    """A SonicMoE must take the weights of every format, and keep them in its state."""
    gate_up = "apart" if name == "nvfp4" else "concatenated"
    layer = sonicmoe_go.SonicMoE(128, 128, 4, 2, weights=name, gate_up=gate_up, device=device)
    plain = sonicmoe_go.SonicMoE(128, 128, 4, 2, gate_up=gate_up, device=device)
    layer.gate.weight.copy_(plain.gate.weight)
    ups, scales = ("gate_proj", "up_proj") if gate_up == "apart" else ("gate_up_proj",), "_scale_inv" if name.startswith("fp8") else "_scales"
    for what in (*ups, "down_proj"):
        *tensors, values = packed(name, 4, 256 if what == "gate_up_proj" else 128, 128, device)
        for end, t in zip(("", scales, "_zero_points", "_global_scales"), tensors):
            if t is not None:
                getattr(layer.experts, what + end).copy_(t)
        getattr(plain.experts, what).copy_(values)
    x = torch.randn(5, 128, dtype=torch.bfloat16, device=device)
    want = plain(x)
    assert torch.equal(layer(x), want)
    other = sonicmoe_go.SonicMoE(128, 128, 4, 2, weights=name, gate_up=gate_up, device=device)
    other.load_state_dict(layer.state_dict())
    other.arrange()
    assert torch.equal(other(x), want)
    assert torch.equal(other.half().bfloat16()(x), plain.half().bfloat16()(x))  # the packed weights keep their types


@torch.no_grad()
def test_logits_of_gpt_oss(tmp_path, device):
    """A gpt-oss with MXFP4 experts from files must generate the same greedy tokens as with layers of
    the experts that transformers dequantises, and its logits must be as near to float64."""
    transformers = pytest.importorskip("transformers")
    integration = pytest.importorskip("transformers.integrations.mxfp4")
    from safetensors.torch import save_file

    torch.manual_seed(6)
    config = transformers.GptOssConfig(
        hidden_size=64, intermediate_size=96, num_local_experts=4, num_experts_per_tok=2, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, head_dim=32, vocab_size=96, max_position_embeddings=64, sliding_window=8,
    )  # fmt: skip
    plain = transformers.AutoModelForCausalLM.from_config(config, experts_implementation="eager").bfloat16().eval().to(device)
    tensors = {}
    for name, m in plain.named_modules():
        for what in ("gate_up_proj", "down_proj") if name.endswith(".experts") else ():
            e, columns, rows = getattr(m, what).shape
            blocks = torch.randint(0, 256, (e, rows, columns // 32, 16), dtype=torch.uint8)
            scales = torch.randint(122, 125, (e, rows, columns // 32), dtype=torch.uint8)
            getattr(m, what).data = integration.convert_moe_packed_tensors(blocks, scales).to(device)
            getattr(m, f"{what}_bias").data.normal_(std=0.1)
            tensors |= {f"{name}.{what}_blocks": blocks, f"{name}.{what}_scales": scales}
    tensors |= {n: w for n, w in plain.state_dict().items() if not n.endswith(("gate_up_proj", "down_proj"))}
    save_file({n: w.contiguous() for n, w in tensors.items()}, tmp_path / "model.safetensors")
    fields = json.loads(config.to_json_string(use_diff=False)) | {"quantization_config": {"quant_method": "mxfp4"}, "dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    made, twin = copy.deepcopy(plain), copy.deepcopy(plain)
    for i, (layer, of) in enumerate(zip(made.model.layers, twin.model.layers)):
        sonicmoe_go.store_layer(tmp_path, i, tmp_path / f"layer{i}")
        layer.mlp = sonicmoe_go.SonicMoE.from_file(tmp_path / f"layer{i}", pair=True, device=device)
        assert layer.mlp.config.weights == "mxfp4"
        of.mlp = sonicmoe_go.SonicMoE.from_hf(of.mlp)
    prompt, ids = torch.randint(0, 96, (2, 4), device=device), torch.randint(0, 96, (2, 9), device=device)
    tokens = [m.generate(prompt, max_new_tokens=5, do_sample=False, pad_token_id=0, eos_token_id=None) for m in (made, twin)]
    assert tokens[0].shape == (2, 9) and torch.equal(*tokens)
    got, own, want = made(ids).logits, plain(ids).logits, copy.deepcopy(plain).double()(ids).logits
    assert distance(got, want) < 1.2 * distance(own, want)


@pytest.mark.parametrize("name", _table.PACKINGS)
def test_plans_have_a_field_for_each_tensor(name):
    """A plan writes the address of each tensor to a field of the pass. Offset 0 is the pass's size."""
    from sonicmoe_go import _library, _plans

    c = sonicmoe_go.Config(128, 128, 4, 2, weights=name, gate_up="apart" if name == "nvfp4" else "concatenated")
    layer = _library.layer(c.key, "emulated")
    for routing in (_plans.ROUTER, _plans.GIVEN):
        training = _plans.Training(layer, (2, 0), routing, False, 0.0, 0.0)
        for plan in (training.forward, training.backward):
            wanted = plan._struct.wanted[: plan._struct.count]
            assert all(w.field or not w.rank for w in wanted if not w.how & _plans._KEPT)


def test_scales_that_ask_for_gradients(monkeypatch):
    """Parameters of FP8 modules of transformers ask for gradients. Passes of plans must ignore that,
    as they have none."""
    from sonicmoe_go import _plans

    if not _plans._exchange():
        pytest.skip("this torch has no DLPack functions for C")
    (w1, s1, *_), (w2, s2, *_) = packed("fp8", 4, 256, 128, "cpu"), packed("fp8", 4, 128, 128, "cpu")
    c, x, router = sonicmoe_go.Config(128, 128, 4, 2, weights="fp8"), torch.randn(9, 128, dtype=torch.bfloat16), torch.randn(4, 128, dtype=torch.bfloat16)
    got = []
    for asks in (False, True):
        if asks:
            import standin

            passes = standin.use(monkeypatch)
        xs, scales = x.clone().requires_grad_(), [s.clone().requires_grad_(asks) for s in (s1, s2)]
        sonicmoe_go.moe(xs, router, w1, w2, c, w1_scale=scales[0], w2_scale=scales[1])[0].sum().backward()
        assert all(s.grad is None for s in scales)
        got.append(xs.grad)
    assert torch.equal(*got) and [name for name, _ in passes] == ["forward", "backward"]
