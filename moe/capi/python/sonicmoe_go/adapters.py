"""Low-rank adapters (LoRA) of experts: their ranks, and the factors that PEFT's wrappers hold."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ._library import ArgumentError, Config
from ._weights import DTYPES, WEIGHTS, shapes

# Layers have ranks in steps of 4. Factors of other ranks are padded with zeros.
_STEP, _MOST = 4, 128

# For each factor of a layer, the weight that it adapts, and the end of its parameter's name.
FACTORS = {
    "lora_a1": ("w1", "_lora_A"), "lora_b1": ("w1", "_lora_B"), "lora_b3": ("w3", "_lora_B"),
    "lora_a2": ("w2", "_lora_A"), "lora_b2": ("w2", "_lora_B"),
}  # fmt: skip
PLACES = tuple(map(WEIGHTS.index, FACTORS))
# For each product, the B factor of each of its weights, and the A factor that these weights share.
_PRODUCTS = (({"w1": "lora_b1", "w3": "lora_b3"}, "lora_a1"), ({"w2": "lora_b2"}, "lora_a2"))


def fields(rank: int, alpha: float, rslora: bool) -> dict:
    """Returns the fields of Config for an adapter of any rank. With the padded rank the scale of
    the adapter stays the same."""
    if not isinstance(rank, int) or not 1 <= rank <= _MOST:
        raise ArgumentError(f"lora_rank is {rank!r}, must be 1 to {_MOST}")
    if not isinstance(alpha, (int, float)) or not alpha > 0 or math.isinf(alpha):
        raise ArgumentError(f"lora_alpha is {alpha!r}, must be a number above 0 with a lora_rank")
    padded = -(-rank // _STEP) * _STEP
    more = padded / rank
    return {"lora_rank": padded, "lora_alpha": float(alpha * (math.sqrt(more) if rslora else more)), "rslora": bool(rslora)}


def fitted(factor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Returns a factor in a layer's type, padded with zeros to the layer's rank."""
    factor = factor.to(dtype)
    if factor.shape == shape or factor.dim() != len(shape):
        return factor
    ends = [n for have, want in zip(reversed(factor.shape), reversed(shape)) for n in (0, want - have)]
    return F.pad(factor, ends)


@dataclasses.dataclass(frozen=True)
class Adapter:
    """An adapter of a weight [E, p, q]. It adds scale·left·right to the weight, with left [E, p, r]
    and right [E, r, q]."""

    left: Tensor
    right: Tensor
    scale: float


def _active(wrapper: nn.Module) -> list[str]:
    """Returns the names of the adapters that a wrapper of PEFT applies."""
    if wrapper.disable_adapters or wrapper.merged:
        return []
    return [name for name in wrapper.active_adapters if name in wrapper.lora_A]


def _of_wrapper(wrapper: nn.Module, name: str) -> Adapter:
    """Returns an adapter that a ParamWrapper of PEFT holds.

    In PEFT's A [E·r, in] the expert is the slowest index of the rows. In B [out, r·E] it is the
    fastest index of the columns.
    """
    experts = wrapper.num_experts
    a, b = wrapper.lora_A[name].weight, wrapper.lora_B[name].weight
    a = a.reshape(experts, -1, a.shape[-1])  # [E, r, in]
    b = b.reshape(b.shape[0], -1, experts).permute(2, 0, 1)  # [E, out, r]
    # Earlier versions of PEFT take the first extent of every weight for its inputs.
    if getattr(wrapper, "_did_swap_in_out_features", False):
        return Adapter(b, a, wrapper.scaling[name])
    return Adapter(a.transpose(1, 2), b.transpose(1, 2), wrapper.scaling[name])


# The adapters of experts, by the name of the parameter that they adapt.
Adapters = dict[str, list[Adapter]]


def _fits(wrapper: nn.Module, adapters: list[str]) -> bool:
    """Whether kernels can apply the adapters of a wrapper: adapters of a frozen weight of experts,
    whose ranks do not add up to too much."""
    param = wrapper.get_param()
    return param.dim() == 3 and not param.requires_grad and sum(wrapper.r[name] for name in adapters) <= _MOST


def under_wrappers(experts: nn.Module, unfused: contextlib.ExitStack) -> tuple[nn.Module, Adapters]:
    """Returns the module of experts that PEFT's wrappers enclose, and the active adapters that kernels
    can apply. PEFT itself adds all other active adapters to the parameters, until unfused is closed."""
    found: Adapters = {}
    while "base_layer" in experts._modules:
        if not hasattr(experts, "_activate_lora"):
            raise ArgumentError(f"the experts are in a {type(experts).__name__}, must be in wrappers of PEFT's target_parameters alone")
        if experts.disable_adapters and experts.merged:
            experts.unmerge()
        names = _active(experts)
        if names and _fits(experts, names):
            found.setdefault(experts.parameter_name, []).extend(_of_wrapper(experts, name) for name in names)
        elif names:
            unfused.enter_context(experts._activate_lora(names))
        experts = experts.base_layer
    return experts, found


def adapted(c: Config, names: dict[str, str], found: Adapters) -> tuple[Config, dict[str, Tensor]]:
    """Returns the Config of a layer with adapters, and the layer's factors by name. names has the name
    of the experts' parameter for w1, w3 and w2."""
    used = {w: found[n] for w, n in names.items() if n in found}
    every = [a for of in used.values() for a in of]
    if len(every) != sum(map(len, found.values())):
        raise ArgumentError(f"adapters are of {', '.join(found)}, must be of {', '.join(names.values())}")
    rank = max(sum(a.right.shape[1] for w in of for a in used.get(w, ())) for of, _ in _PRODUCTS)
    scale = every[0].scale if every[0].scale > 0 else 1.0
    config = dataclasses.replace(c, **fields(rank, scale * rank, False))
    want = {name: (dtype, shape) for name, dtype, shape in shapes(config) if dtype}
    in_out, factors = c.weight_order == "in-out", {}

    def fit(name: str, parts: list[Tensor], along: int) -> None:
        if name not in want:
            return
        dtype, shape = want[name]
        parts = [p.to(dtype) for p in parts] or [torch.zeros(shape, dtype=dtype, device=every[0].left.device)]
        joined = parts[0] if len(parts) == 1 else torch.cat(parts, along)
        if any(have != of for i, (have, of) in enumerate(zip(joined.shape, shape)) if i != along):
            raise ArgumentError(
                f"the adapter's {name} is {list(joined.shape)}, must be {list(shape)} with any rank in place of {shape[along]}. "
                "For packed experts PEFT may have taken the extents of the codes: make layers by SonicMoE.from_hf before you add the adapter"
            )
        factors[name] = fitted(joined, dtype, shape).contiguous()

    for weights, first in _PRODUCTS:
        # w1 and w3 share one A. Their adapters therefore lie one after another along the rank, and each
        # B has zeros for the adapters of the other weight.
        of = [(w, a) for w in weights for a in used.get(w, ())]
        fit(first, [a.left if in_out else a.right for _, a in of], 2 if in_out else 1)
        for w, second in weights.items():
            parts = [(a.right if in_out else a.left) * (a.scale / scale if on == w else 0.0) for on, a in of]
            fit(second, parts, 1 if in_out else 2)
    return config, factors


# PEFT's wrapper computes W + B·A before it calls the experts. With these functions the wrapper
# leaves its adapters to experts that run on the library.

_HELD = "_sonicmoe_go_adapters"


def held(experts: nn.Module) -> Adapters:
    """Returns the adapters that wrappers have left to a module of experts."""
    wrappers = experts.__dict__.get(_HELD)
    return {n: [_of_wrapper(w, a) for a in names] for n, (w, names) in wrappers.items()} if wrappers else {}


def leave_to(implementation: str) -> None:
    """Makes PEFT's wrappers of parameters leave their adapters to experts that use an implementation of
    the registry of transformers. Does nothing until a program has imported PEFT."""
    layers = sys.modules.get("peft.tuners.lora.layer")
    kind = getattr(layers, "ParamWrapper", None)
    activate = getattr(kind, "_activate_lora", None)
    if activate is None or hasattr(activate, _HELD):
        return

    @contextlib.contextmanager
    def leave(self: nn.Module, active: list[str]) -> Iterator[None]:
        experts, names = self.get_base_layer(), [name for name in active if name in self.lora_A]
        config = getattr(experts, "config", None)
        # Experts with has_gate look for an implementation in the registry of transformers.
        asks = hasattr(experts, "has_gate") and getattr(config, "_experts_implementation", None) == implementation
        if not (names and asks and _fits(self, names)):
            with activate(self, active):
                yield
            return
        wrappers = experts.__dict__.setdefault(_HELD, {})
        wrappers[self.parameter_name] = self, names
        try:
            yield
        finally:
            del wrappers[self.parameter_name]

    setattr(leave, _HELD, True)
    kind._activate_lora = leave
