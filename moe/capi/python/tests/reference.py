"""The layer in float64, and relative distances from it."""

import torch
import torch.nn.functional as F

import sonicmoe_go

CONFIG = sonicmoe_go.Config(hidden=128, intermediate=64, num_experts=4, top_k=2)


def tensors(device, config=CONFIG, tokens=24):
    """Returns x, router, w1 and w2, scaled so that outputs are of order 1."""
    c = config
    shapes = (tokens, c.hidden), (c.num_experts, c.hidden), (c.num_experts, c.h_width, c.hidden), (c.num_experts, c.hidden, c.intermediate)
    scales = 1, c.hidden**-0.5, c.hidden**-0.5, c.intermediate**-0.5
    return [(torch.randn(s) * f).bfloat16().to(device).requires_grad_() for s, f in zip(shapes, scales)]


def wide(*ts):
    return [t.detach().double().cpu().requires_grad_(t.requires_grad) for t in ts]


def experts(x, scores, ids, w1, w2, b1=None, b2=None, act=F.silu, interleaved=False):
    """Computes Σ_k s_k · (W2_e act(W1_e x + b1_e) + b2_e), one expert after another."""
    o = torch.zeros_like(x)
    for e in range(w1.shape[0]):
        token, slot = torch.where(ids == e)
        h = x[token] @ w1[e].T + (0 if b1 is None else b1[e])
        gate, up = (h[:, ::2], h[:, 1::2]) if interleaved else h.chunk(2, dim=-1)
        y = (act(gate) * up) @ w2[e].T + (0 if b2 is None else b2[e])
        o = o.index_add(0, token, y * scores[token, slot, None])
    return o


def layer(x, router, w1, w2, ids, **how):
    """Computes the layer with the given experts. Returns the output and the logits."""
    logits = x @ router.T
    scores = torch.softmax(logits.gather(1, ids), dim=-1)
    return experts(x, scores, ids, w1, w2, **how), logits


def topk(x, router, k):
    """Returns the experts that bf16 logits choose. If logits are equal, the lower expert wins."""
    logits = (x.detach().double() @ router.detach().double().T).bfloat16().float()
    return torch.sort(logits, dim=-1, descending=True, stable=True).indices[:, :k]


def distance(got, want):
    """Returns the relative distance of two tensors, by norms."""
    got, want = got.detach().double().cpu(), want.detach().double().cpu()
    assert got.shape == want.shape
    return ((got - want).norm() / want.norm()).item()
