"""Packed weights have the bits of plain weights with the values that the codes mean."""

import dataclasses
import inspect

import pytest
import torch

import sonicmoe_go
from sonicmoe_go import _table, _weights

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def packed(name, e, rows, columns, device):
    """Random weights [e, rows, columns], as the tensors of codes, scales, zero points and global scales
    (None without them), and the bf16 values that they mean."""
    bits, high, wide, kind, has_zeros, has_global = _table.PACKINGS[name]
    down, across = -(-rows // high), -(-columns // wide)
    codes = torch.randint(0, 256, (e, rows, columns * bits // 8), dtype=torch.uint8)
    zeros = torch.randint(0, 16, (e, down, across), dtype=torch.uint8) if has_zeros else None
    every = (torch.rand(e) + 0.5) if has_global else None
    rows_of, columns_of = torch.arange(rows) // high, torch.arange(columns) // wide
    if bits == 8:
        codes[codes % 128 == 127] = 0  # no NaN
        numbers = codes.view(torch.float8_e4m3fn).float()
    else:
        nibbles = torch.stack((codes % 16, codes // 16), -1).flatten(2).long()
        zero = zeros[:, rows_of][:, :, columns_of].long() if has_zeros else 8
        numbers = E2M1[nibbles] if name in ("mxfp4", "nvfp4") else (nibbles - zero).float()
    if has_global:  # scales of E4M3
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
    """The functions take all tensors of the table."""
    assert set(_weights.WEIGHTS) < set(inspect.signature(sonicmoe_go.moe).parameters)
    assert set(_weights.EXPERTS) < set(inspect.signature(sonicmoe_go.moe_experts).parameters)
