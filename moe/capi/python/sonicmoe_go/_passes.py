"""Passes of a layer over torch's tensors. This module allocates workspaces and fills the structs of
the C interface with addresses."""

from __future__ import annotations

import itertools
import struct

import torch
from torch import Tensor

from . import _table
from ._device import Emulated, Gpu
from ._library import ArgumentError, Layer, check, library
from ._weights import GRADIENT_TYPES, ROUTER, WEIGHTS, Weights


def _laid_out(kinds: dict[str, str]) -> tuple[struct.Struct, dict[str, int]]:
    """Returns the layout of a struct of the C interface, and the offsets of its fields."""
    ends = itertools.accumulate((struct.calcsize("=" + k) for k in kinds.values()), initial=0)
    return struct.Struct("=" + "".join(kinds.values())), dict(zip(kinds, ends))


# These are sm_forward_pass and sm_backward_pass.
_FORWARD, FORWARD = _laid_out(_table.FORWARD)
_BACKWARD, BACKWARD = _laid_out(_table.BACKWARD)


def _packed(kinds: dict[str, str], packer: struct.Struct, **values) -> bytes:
    """Returns the bytes of a pass's struct with the given values by field. A gradient is (address,
    type, accumulate). All other fields are 0."""
    flat = [packer.size]
    for name, kind in itertools.islice(kinds.items(), 1, None):
        value = values.pop(name, 0)
        if kind == "Qii":
            flat += value or (0, 0, 0)
        else:
            flat.append(value)
    if values:
        raise TypeError(f"a pass has no field {', '.join(values)}")
    return packer.pack(*flat)


def size_of(backward: bool) -> int:
    """Returns the size of a pass's struct in bytes."""
    return (_BACKWARD if backward else _FORWARD).size


def packed_forward(**values) -> bytes:
    """Returns the bytes of a sm_forward_pass with the given values by field."""
    return _packed(_table.FORWARD, _FORWARD, **values)


def packed_backward(**values) -> bytes:
    """Returns the bytes of a sm_backward_pass with the given values by field."""
    return _packed(_table.BACKWARD, _BACKWARD, **values)


NO_ROUTER: Weights = (None,) * len(ROUTER)


def place(l: Layer, x: Tensor) -> Gpu | Emulated:
    """Returns the device of x. l is the layer, or the rank, that runs the pass."""
    return Gpu(x) if x.is_cuda else Emulated(l.device)


def _entries(tokens: Tensor | None) -> int:
    return 0 if tokens is None else tokens.shape[0]


def room(l: Layer, tokens: int, entries: int, inner_routing: bool) -> tuple[int, int]:
    """Returns two sizes of a forward workspace: alone, and with the scores and ids that may follow
    it in the same memory."""
    need = l.sizes(tokens, entries).workspace + 15 & -16
    return need, need + 2 * (4 * tokens * l.config.top_k + 15 & -16) if inner_routing else need


def _lora_u(l: Layer, h: Tensor | None, at: int) -> int:
    """Returns the address of lora_u, which follows H's rows in the tensor h, whose address is at. It
    is 0 in a layer without an adapter."""
    c = l.config
    return at + h.shape[0] * c.h_width * h.itemsize if c.lora_rank and h is not None else 0


def forward(
    l: Layer, routed: bool, x, weights: Weights, scores, expert_ids, logits, o, h, shared_h, *,
    tokens=None, list_ids=None, list_scores=None, seed=0, units=None, adapter_ids=None, lora_scales=None,
) -> None:  # fmt: skip
    """Queues a forward pass with WEIGHTS, and with the caller's routing if it is given.

    Without scores and expert_ids, the routing is stored after the workspace, in the same tensor,
    and dropped with it: every allocation costs the host as much as two kernels. If list_ids is
    given, the pass rounds.
    """
    t, entries = x.shape[0], _entries(tokens)
    need, whole = room(l, t, entries, scores is None)
    each = (whole - need) // 2
    workspace = torch.empty(whole, dtype=torch.uint8, device=x.device)
    with place(l, x) as p:
        routing, scratch, at = p.read if routed else p.written, p.written(workspace), p.written(h)
        l.forward(
            _packed(
                _table.FORWARD, _FORWARD, tokens=t, stream=p.stream, workspace=scratch, workspace_bytes=need, x=p.read(x),
                scores=scratch + need if scores is None else routing(scores),
                expert_ids=scratch + need + each if scores is None else routing(expert_ids),
                logits=p.written(logits), o=p.written(o), h=at, lora_u=_lora_u(l, h, at), shared_h=p.written(shared_h), entries=entries,
                token_indices=routing(tokens), list_expert_ids=p.written(list_ids), list_scores=p.written(list_scores),
                seed=seed & 2**64 - 1, units=p.read(units), units_bytes=0 if units is None else units.numel(),
                adapter_ids=p.read(adapter_ids), lora_scales=p.read(lora_scales), **dict(zip(WEIGHTS, p.read_all(weights))),
            ),
            routed=routed,
        )  # fmt: skip


def arrange(l: Layer, weights: Weights) -> Tensor:
    """Returns packed weights in the order that the kernels for small batches read."""
    need, like = l.sizes(1).units, next(w for w in weights if w is not None)
    if not need:
        if l.config.weights == "plain":
            raise ArgumentError("Config.weights is 'plain', must be packed, such as 'mxfp4': plain weights have one order for all batches")
        raise ArgumentError(f"Config.lora_rank is {l.config.lora_rank}, must be 0 or with lora_adapters: the kernels for small batches do not add an adapter that is trained")
    units = torch.empty(need, dtype=torch.uint8, device=like.device)
    with place(l, units) as p:
        given = dict(zip(WEIGHTS, p.read_all(weights)))
        check(library().sm_arrange(l.handle, _packed(_table.FORWARD, _FORWARD, stream=p.stream, units=p.written(units), units_bytes=need, **given)))
    return units


def backward(
    l: Layer, routed: bool, d_o, x, weights: Weights, scores, expert_ids, logits, h, shared_h, d_logits,
    dx, d_scores, gradients: Weights, into: Weights, balance=0.0, z_loss=0.0, sequence=0, *, tokens=None, list_ids=None, list_scores=None,
) -> None:  # fmt: skip
    """Queues a backward pass. gradients holds tensors to which the gradients of WEIGHTS are
    written, and into those to which they are added."""
    need = l.sizes(x.shape[0], _entries(tokens)).backward_workspace
    workspace = torch.empty(need, dtype=torch.uint8, device=x.device)
    with place(l, x) as p:
        given = {name: at for name, at in zip(WEIGHTS, p.read_all(weights)) if name in BACKWARD}
        at = p.read(h)
        for name, g, added in zip(WEIGHTS, gradients, into, strict=True):
            to = g if added is None else added
            if to is not None:
                given["d_" + name] = p.written(to), GRADIENT_TYPES[to.dtype], added is not None
        l.backward(
            _packed(
                _table.BACKWARD, _BACKWARD, tokens=x.shape[0], stream=p.stream, workspace=p.written(workspace), workspace_bytes=need,
                x=p.read(x), scores=p.read(scores), expert_ids=p.read(expert_ids), logits=p.read(logits), d_o=p.read(d_o), h=at,
                lora_u=_lora_u(l, h, at), shared_h=p.read(shared_h), dx=p.written(dx), d_scores=p.written(d_scores), d_logits=p.read(d_logits),
                balance=balance, z_loss=z_loss, sequence=sequence, entries=_entries(tokens), token_indices=p.read(tokens),
                list_expert_ids=p.read(list_ids), list_scores=p.read(list_scores), **given,
            ),
            routed=routed,
        )  # fmt: skip


def loads(l: Layer, expert_ids: Tensor, to: Tensor) -> None:
    """Queues a kernel that counts the tokens of each expert and adds the counts to a tensor."""
    with place(l, to) as p:
        check(library().sm_loads(l.handle, p.stream, expert_ids.shape[0], p.read(expert_ids), p.written(to)))


def update_selection_bias(l: Layer, counted: Tensor, bias: Tensor, rate: float) -> None:
    """Queues one step of the selection bias. The loads become 0."""
    with place(l, bias) as p:
        check(library().sm_update_selection_bias(l.handle, p.stream, p.written(counted), p.written(bias), rate))
