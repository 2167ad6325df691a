"""Tests LoRA of the experts' parameters by PEFT, on layers that replace a model's blocks."""

import copy

import pytest
import torch
from reference import distance
from test_modules import BLOCKS, model_of

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
    assert abs(losses[0] - losses[1]) < 1e-3 * losses[1]
    grads = [{n.replace("router", "gate"): p.grad for n, p in m.named_parameters() if p.grad is not None} for m in (got, want)]
    assert grads[0].keys() == grads[1].keys() and grads[0]
    for name, g in grads[0].items():
        assert distance(g, grads[1][name].double().cpu()) < 0.03, name
    with torch.no_grad():
        with_adapter = got(text).logits
        with got.disable_adapter():
            assert torch.equal(got(text).logits, plain(text).logits)
        assert distance(with_adapter, plain(text).logits.double().cpu()) > 0.01
        assert torch.equal(got(text).logits, with_adapter)
        assert distance(got.merge_and_unload()(text).logits, with_adapter.double().cpu()) < 0.02
