"""The weights of a layer: their order in the operators, their shapes, and checks of them."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ._library import ArgumentError, Config
from ._table import EXPERT_ROWS, PACKINGS, ROUTER_ROWS

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "u8": torch.uint8}

# The names of weights in the order of the operators. A weight that a configuration does not have is
# passed as None.
ROUTER = tuple(name for name, *_ in ROUTER_ROWS)
EXPERTS = tuple(name for name, *_ in EXPERT_ROWS)
WEIGHTS = ROUTER + EXPERTS
# Weights that every configuration has, and weights that have no gradient.
ALWAYS = tuple(name for name, _, _, needs, *_ in ROUTER_ROWS + EXPERT_ROWS if not needs)
# Weights whose first dimension is the experts, of which a rank of a group has a part.
PER_EXPERT = tuple(name for name, _, dims, *_ in EXPERT_ROWS if dims[0] in ("E", "F"))
CONSTANT = tuple(name for name, *_, gradient in ROUTER_ROWS + EXPERT_ROWS if not gradient)

Weights = tuple[Tensor | None, ...]
# The name, type and shape of each tensor. The type is None if the configuration does not have the
# tensor.
Shapes = tuple[tuple[str, torch.dtype | None, tuple[int, ...]], ...]


def _lacks(c: Config, field: str) -> bool:
    """Whether a configuration does not have the feature that a field names."""
    if field == "gate_up":
        return c.gate_up != "apart"
    if field in ("weights", "zeros", "global_scale"):
        packed = PACKINGS.get(c.weights)
        return not packed or field != "weights" and not packed[4 if field == "zeros" else 5]
    return not (c.gated if field == "activation" else getattr(c, field))


@functools.lru_cache(maxsize=4096)
def shapes(c: Config) -> Shapes:
    """Returns names, types and shapes of WEIGHTS."""
    e, d, n = c.num_experts, c.hidden, c.intermediate
    extents = {"E": e, "d": d, "n": n, "w1": n if c.gate_up == "apart" else c.h_width, "sn": n * c.shared_experts, "r": c.lora_rank, "F": e * max(1, c.lora_adapters)}
    types = {"layer": DTYPES[c.type], "router": torch.float32 if c.router_f32 else DTYPES[c.type], "f32": torch.float32}
    types["codes"], types["scales"], types["zeros"] = types["layer"], None, torch.uint8
    if packed := PACKINGS.get(c.weights):
        bits, rows, columns, scales, *_ = packed
        types["codes"], types["scales"] = torch.uint8, DTYPES[scales]
    found = []
    for name, kind, dims, needs, ordered, _ in ROUTER_ROWS + EXPERT_ROWS:
        shape = tuple(extents[dim] for dim in dims)
        if ordered and c.weight_order == "in-out" and not (dims[0] == "F" and c.lora_adapters):
            shape = shape[0], shape[2], shape[1]
        if packed and kind == "codes":
            shape = shape[0], shape[1], shape[2] * bits // 8
        elif packed and kind in ("scales", "zeros"):
            shape = shape[0], -(-shape[1] // rows), -(-shape[2] // columns)
        found.append((name, None if any(_lacks(c, field) for field in needs) else types[kind], shape))
    return tuple(found)


@functools.lru_cache(maxsize=4096)
def expert_shapes(c: Config) -> Shapes:
    """Returns names, types and shapes of EXPERTS."""
    return shapes(c)[len(ROUTER) :]


def _of_others(t: Tensor) -> bool:
    """Whether a tensor wraps other tensors, as the shards of FSDP and quantised weights do."""
    return t.__class__ not in (Tensor, nn.Parameter) and is_traceable_wrapper_subclass(t)


def want(field: str, t: Tensor, dtype: torch.dtype, shape: tuple, device: torch.device) -> None:
    """Raises an error for a tensor that the kernels would misread."""
    if _of_others(t):
        raise ArgumentError(f"{field} is a {type(t).__name__}, must be a plain tensor (FSDP has to gather the layer as one, not modules in it)")
    if t.dtype is not dtype:
        raise ArgumentError(f"{field} is {t.dtype}, must be {dtype}")
    if t.shape != shape:
        raise ArgumentError(f"{field} is {list(t.shape)}, must be {list(shape)}")
    if t.device != device:
        raise ArgumentError(f"{field} is on {t.device}, must be on {device}, where x is")
    if not t.is_contiguous():
        raise ArgumentError(f"{field} has strides {t.stride()}, must be contiguous")


def _why(c: Config, name: str) -> str:
    """Returns the field of a configuration because of which a tensor must be absent."""
    needs = next(row[3] for row in ROUTER_ROWS + EXPERT_ROWS if row[0] == name)
    field = next(field for field in needs if _lacks(c, field))
    if field in ("zeros", "global_scale"):
        field = "weights"
    return f"{field} {getattr(c, field)!r}"


def check(c: Config, x: Tensor, of: Shapes, weights: Weights) -> None:
    """Raises an error if x or a weight does not fit a configuration."""
    dtype, device = DTYPES[c.type], x.device
    if x.dim() != 2:
        raise ArgumentError(f"x is {list(x.shape)}, must be [T, {c.hidden}]")
    want("x", x, dtype, (x.shape[0], c.hidden), device)
    for (name, dtype, shape), w in zip(of, weights):
        if w is None:
            if dtype is not None:
                raise ArgumentError(f"{name} is None, must be {list(shape)}")
        elif dtype is None:
            raise ArgumentError(f"{name} is {list(w.shape)}, must be None with {_why(c, name)}")
        elif w.dtype is not dtype or w.shape != shape or w.device != device or _of_others(w) or not w.is_contiguous():
            want(name, w, dtype, shape, device)


def check_adapters(c: Config, x: Tensor, adapter_ids: Tensor | None, lora_scales: Tensor | None) -> None:
    """Raises an error if the adapters of tokens do not fit x and a configuration."""
    for name, t, dtype, n in (("adapter_ids", adapter_ids, torch.int32, x.shape[0]), ("lora_scales", lora_scales, torch.float32, c.lora_adapters)):
        if t is not None and not c.lora_adapters:
            raise ArgumentError(f"{name} is {list(t.shape)}, must be None with lora_adapters 0")
        if t is None and c.lora_adapters:
            raise ArgumentError(f"{name} is None, must be [{n}] with lora_adapters {c.lora_adapters}")
        if t is not None:
            want(name, t, dtype, (n,), x.device)


def check_routing(c: Config, x: Tensor, scores: Tensor, expert_ids: Tensor, tokens: Tensor | None) -> None:
    """Raises an error if a routing does not fit x. If tokens is given, the routing is a list of
    entries."""
    shape = (x.shape[0], c.top_k) if tokens is None else (scores.numel(),)
    want("scores", scores, torch.float32, shape, x.device)
    want("expert_ids", expert_ids, torch.int32, shape, x.device)
    if tokens is not None:
        want("token_indices", tokens, torch.int32, shape, x.device)
        if not shape[0]:
            raise ArgumentError("scores is [0], must have an entry at least: one of expert -1 adds nothing")


# The types that a gradient may be added to, with their numbers in sm_gradient.
GRADIENT_TYPES = {torch.bfloat16: 0, torch.float32: 1, torch.float16: 3}


def check_into(names: Sequence[str], weights: Sequence[Tensor | None], into: Sequence[Tensor | None]) -> None:
    """Raises an error for a tensor to which the gradient of a weight cannot be added."""
    for name, weight, to in zip(names, weights, into, strict=True):
        if to is not None:
            if to.dtype not in (weight.dtype, torch.float32):
                raise ArgumentError(f"main_grad of {name} is {to.dtype}, must be {torch.float32} or {weight.dtype}")
            want(f"main_grad of {name}", to, to.dtype, weight.shape, weight.device)
