"""Tests layers in fp16. The bounds are an eighth of those for bf16, because fp16 has three more
fraction bits."""

import pytest
import torch
from reference import CONFIG, distance, layer, wide

import sonicmoe_go

SIZES = CONFIG.hidden, CONFIG.intermediate, CONFIG.num_experts, CONFIG.top_k


def test_module_in_half(device):
    block = sonicmoe_go.SonicMoE(*SIZES, device=device, dtype=torch.float16)
    names = dict(block.named_parameters())
    assert all(p.dtype == torch.float16 for p in names.values())
    with torch.no_grad():
        for p in names.values():
            p.copy_(torch.randn_like(p) * p.shape[-1] ** -0.5)
    x = torch.randn(24, CONFIG.hidden, device=device, dtype=torch.float16, requires_grad=True)
    d_o = torch.randn_like(x)
    y = block(x)
    assert y.dtype == torch.float16
    (y * d_o).sum().backward()
    got = [x.grad] + [p.grad for p in names.values()]
    assert all(g.dtype == torch.float16 for g in got)
    ws = wide(x, *names.values())
    logits = (ws[0].detach() @ ws[1].detach().T).half().float()
    ids = torch.sort(logits, dim=-1, descending=True, stable=True).indices[:, : CONFIG.top_k]
    o, _ = layer(*ws, ids)
    assert distance(y, o) < 7.5e-4
    for name, g, w in zip(["x", *names], got, torch.autograd.grad((o * d_o.double().cpu()).sum(), ws), strict=True):
        assert distance(g, w) < 1.25e-3, name


def test_half_and_bfloat16_do_not_mix(device):
    block = sonicmoe_go.SonicMoE(*SIZES, device=device)
    with pytest.raises(sonicmoe_go.ArgumentError, match="x is torch.float16, must be torch.bfloat16"):
        block(torch.randn(4, CONFIG.hidden, device=device, dtype=torch.float16))
