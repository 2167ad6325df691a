"""Passes of a layer over torch's tensors: workspaces, addresses, and the structs of the interface."""

from __future__ import annotations

import itertools
import struct

import torch
from torch import Tensor

from ._device import Emulated, Gpu
from ._library import Layer
from ._weights import GRADIENT_TYPES, ROUTER, WEIGHTS, Weights


def _laid_out(fields: str) -> tuple[struct.Struct, dict[str, int]]:
    """A struct of the interface, and where its fields lie. Those of weights' gradients are sm_gradient."""
    names, floats = fields.split(), ("balance", "z_loss")
    kinds = ["Qii" if n.startswith("d_") and n[2:] in WEIGHTS else "d" if n in floats else "Q" for n in names]
    ends = itertools.accumulate((struct.calcsize("=" + k) for k in kinds), initial=0)
    return struct.Struct("=" + "".join(kinds)), dict(zip(names, ends))


# sm_forward_pass and sm_backward_pass.
_FORWARD, FORWARD = _laid_out(
    "size tokens stream workspace workspace_bytes x router w1 w2 scores expert_ids logits o h entries token_indices w3 b1 b3 b2"
    " list_expert_ids list_scores seed router_bias selection_bias expert_scale shared_w1 shared_w3 shared_w2 shared_gate shared_h"
)
_BACKWARD, BACKWARD = _laid_out(
    "size tokens stream workspace workspace_bytes x router w1 w2 scores expert_ids logits d_o h dx d_scores d_logits router_losses"
    " d_router d_w1 d_w2 balance z_loss entries token_indices w3 b1 b3 b2 d_w3 d_b1 d_b3 d_b2 list_expert_ids list_scores"
    " router_bias expert_scale d_router_bias d_expert_scale shared_w1 shared_w3 shared_w2 shared_gate shared_h"
    " d_shared_w1 d_shared_w3 d_shared_w2 d_shared_gate"
)


def size_of(backward: bool) -> int:
    """The bytes of a pass's struct."""
    return (_BACKWARD if backward else _FORWARD).size


NO_ROUTER: Weights = (None,) * len(ROUTER)


def _place(l: Layer, x: Tensor) -> Gpu | Emulated:
    return Gpu(x) if x.is_cuda else Emulated(l.device)


def _entries(tokens: Tensor | None) -> int:
    return 0 if tokens is None else tokens.shape[0]


def room(l: Layer, tokens: int, entries: int, inner_routing: bool) -> tuple[int, int]:
    """Bytes of a forward pass's workspace, and with the scores and ids that may lie behind it."""
    need = l.sizes(tokens, entries).workspace + 15 & -16
    return need, need + 2 * (4 * tokens * l.config.top_k + 15 & -16) if inner_routing else need


def forward(
    l: Layer, routed: bool, x, weights: Weights, scores, expert_ids, logits, o, h, shared_h, *,
    tokens=None, list_ids=None, list_scores=None, seed=0,
) -> None:  # fmt: skip
    """Queues a forward pass, with the caller's routing where that is given, of WEIGHTS.

    Without scores and expert_ids the routing lies behind the workspace and is forgotten:
    every allocation costs the host as much as two kernels. With list_ids the pass rounds.
    """
    t, entries = x.shape[0], _entries(tokens)
    need, whole = room(l, t, entries, scores is None)
    each = (whole - need) // 2
    workspace = torch.empty(whole, dtype=torch.uint8, device=x.device)
    with _place(l, x) as p:
        routing, scratch = p.read if routed else p.written, p.written(workspace)
        router, router_bias, selection_bias, expert_scale, w1, w3, w2, b1, b3, b2, s1, s3, s2, sg = p.read_all(weights)
        l.forward(
            _FORWARD.pack(
                _FORWARD.size, t, p.stream, scratch, need, p.read(x), router, w1, w2,
                scratch + need if scores is None else routing(scores),
                scratch + need + each if scores is None else routing(expert_ids),
                p.written(logits), p.written(o), p.written(h),
                entries, routing(tokens), w3, b1, b3, b2, p.written(list_ids), p.written(list_scores), seed & 2**64 - 1,
                router_bias, selection_bias, expert_scale, s1, s3, s2, sg, p.written(shared_h),
            ),
            routed=routed,
        )  # fmt: skip


def backward(
    l: Layer, routed: bool, d_o, x, weights: Weights, scores, expert_ids, logits, h, shared_h, d_logits,
    dx, d_scores, gradients: Weights, into: Weights, balance=0.0, z_loss=0.0, *, tokens=None, list_ids=None, list_scores=None,
) -> None:  # fmt: skip
    """Queues a backward pass. gradients are those of WEIGHTS to write, into those to add to instead."""
    need = l.sizes(x.shape[0], _entries(tokens)).backward_workspace
    workspace = torch.empty(need, dtype=torch.uint8, device=x.device)
    with _place(l, x) as p:
        packed = {}
        for name, g, added in zip(WEIGHTS, gradients, into, strict=True):
            to = g if added is None else added
            packed[name] = (0, 0, 0) if to is None else (p.written(to), GRADIENT_TYPES[to.dtype], added is not None)

        def d(*names):
            return [v for name in names for v in packed[name]]

        router, router_bias, _, expert_scale, w1, w3, w2, b1, b3, b2, s1, s3, s2, sg = p.read_all(weights)
        l.backward(
            _BACKWARD.pack(
                _BACKWARD.size, x.shape[0], p.stream, p.written(workspace), need, p.read(x), router, w1, w2,
                p.read(scores), p.read(expert_ids), p.read(logits), p.read(d_o), p.read(h),
                p.written(dx), p.written(d_scores), p.read(d_logits), 0, *d("router", "w1", "w2"), balance, z_loss,
                _entries(tokens), p.read(tokens), w3, b1, b3, b2, *d("w3", "b1", "b3", "b2"),
                p.read(list_ids), p.read(list_scores), router_bias, expert_scale, *d("router_bias", "expert_scale"),
                s1, s3, s2, sg, p.read(shared_h), *d("shared_w1", "shared_w3", "shared_w2", "shared_gate"),
            ),
            routed=routed,
        )  # fmt: skip
