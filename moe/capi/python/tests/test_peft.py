"""Tests LoRA of the experts' parameters by PEFT, on layers that replace a model's blocks."""

import copy

import pytest
import torch
from reference import distance
from test_modules import BLOCKS, block_of, model_of

import sonicmoe_go

peft = pytest.importorskip("peft")
LORA = {"r": 4, "lora_alpha": 8, "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}


def adapted(model):
    """Returns a model with an adapter whose factors are random, by a seed."""
    torch.manual_seed(7)
    model = peft.get_peft_model(model, peft.LoraConfig(**LORA))
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.normal_(std=0.05)
    return model


def far(name, got, want):
    """Returns the median over the experts of the distance of a factor's gradients. A token that
    chooses another expert changes few of them."""
    got, want = (g.double().view(4, -1) if "lora_A" in name else g.double().view(-1, 4).T for g in (got, want))
    return ((got - want).norm(dim=-1) / want.norm(dim=-1)).nanmedian()  # an expert without tokens has no gradient


def test_registration_of_a_model_with_adapters(device):
    model = adapted(model_of("qwen3_moe", device, BLOCKS))
    assert sonicmoe_go.register_with_transformers(model) == model.config._experts_implementation == "sonicmoe_go"
    with pytest.raises(sonicmoe_go.ArgumentError, match="has experts in a ParamWrapper, must get its adapters after from_hf; register_with_transformers\\(\\) runs"):
        sonicmoe_go.SonicMoE.from_hf(model.base_model.model.model.layers[0].mlp)


def test_lora_of_blocks(device):
    """Loss and gradients must agree with those of registered experts. Disabled and merged adapters
    must work."""
    model = model_of("qwen3_moe", device, BLOCKS)
    ours = copy.deepcopy(model)
    for parent in list(ours.modules()):
        for name, block in list(parent.named_children()):
            if isinstance(getattr(block, "experts", None), torch.nn.Module):
                setattr(parent, name, sonicmoe_go.SonicMoE.from_hf(block))
    plain = copy.deepcopy(ours)
    for m in model.modules():
        if hasattr(m, "config"):
            m.config._experts_implementation = sonicmoe_go.register_with_transformers()
    text = torch.randint(1, 96, (2, 12), device=device)
    got, want = adapted(ours), adapted(model)
    losses = [m(text, labels=text).loss for m in (got, want)]
    for l in losses:
        l.backward()
    assert abs(losses[0] - losses[1]) < 5e-3 * losses[1]  # some tokens choose other experts
    grads = [{n.replace("router", "gate"): p.grad for n, p in m.named_parameters() if p.grad is not None} for m in (got, want)]
    assert grads[0].keys() == grads[1].keys() and grads[0]
    for name, g in grads[0].items():
        assert far(name, g, grads[1][name]) < 0.15, name  # the layers differ in roundings, and so do their tokens
    with torch.no_grad():
        with_adapter = got(text).logits
        with got.disable_adapter():
            assert torch.equal(got(text).logits, plain(text).logits)
        assert distance(with_adapter, plain(text).logits.double().cpu()) > 0.01
        assert torch.equal(got(text).logits, with_adapter)
        assert distance(got.merge_and_unload()(text).logits, with_adapter.double().cpu()) < 0.02


def wrapped(block, seed, adapters):
    """Returns a module whose mlp is a block with adapters, and their parameters, random by a
    seed."""
    torch.manual_seed(seed)
    holder = torch.nn.Module()
    holder.mlp = block
    for name, how in adapters.items():
        peft.inject_adapter_in_model(peft.LoraConfig(**LORA | how), holder, adapter_name=name)
    of = {n: p for n, p in holder.named_parameters() if "lora_" in n}
    for p in holder.parameters():
        p.requires_grad_(False)
    for p in of.values():
        p.data = (torch.randn(p.shape) * 0.15).to(p.device, torch.bfloat16 if p.dtype.itemsize == 1 else p.dtype)
        p.requires_grad_()
    for m in holder.modules():
        if hasattr(m, "set_adapter") and hasattr(m, "lora_A"):
            m.set_adapter(list(adapters))
    return holder, of


def refused(*_):
    raise AssertionError("PEFT has computed W + B·A")


@pytest.mark.parametrize("way", ["from_hf", "registered"])
@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss", "granitemoe"])
@pytest.mark.parametrize(
    "adapters",
    [{"default": {}}, {"default": {"use_rslora": True, "r": 8}, "other": {"r": 12, "lora_alpha": 20}}, {"default": {"target_parameters": ["mlp.experts.down_proj"]}}],
    ids=["one", "two", "down"],
)
def test_adapters_are_fused(device, family, way, adapters, monkeypatch):
    """A block must have the output and gradients of eager with PEFT's own sums in float64,
    without a sum W + B·A."""
    block = block_of(family, device)
    truth = copy.deepcopy(block).double()
    truth.experts.config = copy.deepcopy(block.experts.config)
    truth.experts.config._experts_implementation = "eager"
    if way == "registered":
        block.experts.config._experts_implementation = sonicmoe_go.register_with_transformers()
    want, of = wrapped(truth, 3, adapters)
    got, factors = wrapped(sonicmoe_go.SonicMoE.from_hf(block) if way == "from_hf" else block, 3, adapters)
    with torch.no_grad():
        for p, q in zip(factors.values(), of.values(), strict=True):
            q.copy_(p)
    x = torch.randn(2, 12, 128, device=device, dtype=torch.bfloat16, requires_grad=True)
    wide_x = x.detach().double().requires_grad_()
    truths = want.mlp(wide_x)
    truths = truths[0] if isinstance(truths, tuple) else truths
    d_o = torch.randn_like(x)
    truths.backward(d_o.double().view_as(truths))
    wrapper = type(truth.experts)
    for sum_of in ("get_delta_weight", "get_delta_factors"):
        monkeypatch.setattr(wrapper, sum_of, refused)
    out = got.mlp(x)
    out = out[0] if isinstance(out, tuple) else out
    out.backward(d_o.view_as(out))
    rows = (out.double().view(24, -1) - truths.view(24, -1)).norm(dim=-1) / truths.view(24, -1).norm(dim=-1)
    assert rows.median() < 8e-3
    for (name, p), q in zip(factors.items(), of.values(), strict=True):
        assert far(name, p.grad, q.grad) < 0.03, name


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss"])
def test_files_go_both_ways(device, family, tmp_path):
    """A layer with an adapter of its own must have the bits of the layer with PEFT's adapter, after
    either has read the other's files."""
    block = block_of(family, device)
    holder, _ = wrapped(sonicmoe_go.SonicMoE.from_hf(copy.deepcopy(block)), 3, {"default": {"r": 10, "use_rslora": True}})
    of = peft.LoraConfig(**LORA | {"r": 10, "use_rslora": True}, target_modules=[])
    tensors = {"base_model.model." + n.replace(".default", ""): p.detach().contiguous() for n, p in holder.named_parameters() if "lora_" in n}
    of.save_pretrained(tmp_path / "theirs")
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(tensors, tmp_path / "theirs" / "adapter_model.safetensors")
    x = torch.randn(24, 128, device=device, dtype=torch.bfloat16)[None]

    def run(of):
        y = of.mlp(x)
        return y[0] if isinstance(y, tuple) else y

    own = torch.nn.Module()
    own.mlp = sonicmoe_go.SonicMoE.from_hf(block)
    assert sonicmoe_go.load_adapter(own, tmp_path / "theirs") == []
    assert own.mlp.lora_rank == 10 and own.mlp.config.lora_rank == 12 and torch.equal(run(own), run(holder))
    for p in own.mlp.factors().values():
        p.data.mul_(-0.5)
    sonicmoe_go.save_adapter(own, tmp_path / "ours")
    text = torch.nn.Module()
    text.mlp = sonicmoe_go.SonicMoE.from_hf(copy.deepcopy(block_of(family, device)))
    text.mlp.load_state_dict({n: p for n, p in own.mlp.state_dict().items() if "lora" not in n})
    read = peft.PeftModel.from_pretrained(text, tmp_path / "ours").base_model.model
    assert torch.equal(run(read), run(own)) and not torch.equal(run(read), run(holder))


@pytest.mark.parametrize("way", ["from_hf", "registered", "mxfp4"])
def test_adapters_over_packed_weights(device, way, monkeypatch):
    """PEFT's adapters of packed experts must give the gradients of the same adapters over the values
    of the weights. The weights stay packed, and PEFT computes no sum."""
    import test_packed

    plain = test_packed.model_of("qwen3", device)
    made = test_packed.in_fp8(plain).to(device)
    block, of = made.model.layers[1].mlp, plain.model.layers[1].mlp
    if way == "mxfp4":
        of = plain.model.layers[0].mlp
        block = sonicmoe_go.SonicMoE.from_hf(of, weights="mxfp4")
        with torch.no_grad():
            for w in (of.experts.gate_up_proj, of.experts.down_proj):
                codes, scales = sonicmoe_go.packed.quantised(w)
                nibbles = torch.stack((codes % 16, codes // 16), -1).flatten(2).long()
                w.copy_(test_packed.E2M1.to(device)[nibbles] * torch.exp2(scales.float() - 127).repeat_interleave(32, -1))
        of = sonicmoe_go.SonicMoE.from_hf(of)
    elif way == "registered":
        for b in (block, of):
            b.experts.config._experts_implementation = sonicmoe_go.register_with_transformers()
    else:
        block, of = map(sonicmoe_go.SonicMoE.from_hf, (block, of))
    (got, factors), (want, others) = (wrapped(b, 3, {"default": {}}) for b in (block, of))
    for p, q in zip(factors.values(), others.values(), strict=True):
        p.data = q.data.clone()
    wrapper = type(got.mlp.experts)
    for sum_of in ("get_delta_weight", "get_delta_factors"):
        monkeypatch.setattr(wrapper, sum_of, refused)
    x = torch.randn(1, 24, 128, device=device, dtype=torch.bfloat16)
    outs = [b.mlp(x) for b in (got, want)]
    assert outs[0].dtype is torch.bfloat16
    for o in outs:
        o.float().square().mean().backward()
    assert torch.equal(*outs)
    for (name, p), q in zip(factors.items(), others.values(), strict=True):
        assert torch.equal(p.grad, q.grad) and p.grad.any(), name
