"""Runs experts of transformers 5 on the library's kernels, through the registry of experts
implementations in transformers."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

from . import adapters
from ._blocks import activation
from ._library import ArgumentError, Config
from ._weights import DTYPES, EXPERTS
from .functional import experts_by_key
from .module import SonicMoE, autocast, config_type
from .packed import is_fp4, packing

NAME = "sonicmoe_go"


def register_with_transformers(model: nn.Module | None = None) -> str:
    """Registers experts_implementation="sonicmoe_go" for models of transformers:

        sonicmoe_go.register_with_transformers()
        model = AutoModelForCausalLM.from_pretrained(..., experts_implementation="sonicmoe_go")

    The model keeps its own router. If the library does not support the model's experts, their first
    call raises an error. Experts of Llama-4 and DBRX never look for an implementation in the
    registry, and run eager without a warning. If a model is given, it gets the implementation, or
    an error that names experts of both kinds. FP8 experts in blocks of 128 x 128 and FP4 experts stay packed, and their
    tokens are bf16. LoRA of the experts' parameters by PEFT (target_parameters) runs in the same
    products. Returns the registered name.
    """
    from transformers.integrations import finegrained_fp8, moe

    _find_usual_gate()
    adapters.leave_to(NAME)
    moe.ALL_EXPERTS_FUNCTIONS.register(NAME, _forward)
    if hasattr(finegrained_fp8, "ALL_FP8_EXPERTS_FUNCTIONS"):  # earlier versions of transformers have only one registry
        finegrained_fp8.ALL_FP8_EXPERTS_FUNCTIONS.register(NAME, _forward)
    if model is not None:
        _check_model(model)
        model.set_experts_implementation(NAME)
    return NAME


def _check_model(model: nn.Module) -> None:
    """Raises an error if experts of a model do not look for an implementation in the registry, or
    have a part that no kernel computes."""
    blocks = [m for m in model.modules() if isinstance(getattr(m, "experts", None), nn.Module) and not isinstance(m, SonicMoE)]
    every = [_inner(m.experts) for m in blocks]
    silent = sorted({type(e).__name__ for e in every if not hasattr(e, "has_gate")})
    if silent:
        raise ArgumentError(f"{', '.join(silent)} of {type(model).__name__} would run eager, must ask for an experts_implementation: try SonicMoE.from_hf(block)")
    reasons = sorted({reason for e in every if (reason := unsupported(e)) is not None})
    if reasons:
        raise ArgumentError(f"experts of {type(model).__name__} cannot run here: {'; '.join(reasons)}")


def _inner(experts: nn.Module) -> nn.Module:
    """Returns the experts that wrappers of PEFT enclose."""
    while "base_layer" in experts._modules:
        experts = experts.base_layer
    return experts


_usual_gate = None  # the gate function of most experts


# torch.compile traces _formula, so _formula does not import.
def _find_usual_gate() -> None:
    from transformers.integrations import moe

    global _usual_gate
    _usual_gate = moe._default_apply_gate


_cached = functools.lru_cache(maxsize=4096)(Config)


# torch.compile traces into a cached function and ignores its markers, so this function is a
# separate one.
@torch.compiler.assume_constant_result
def _config(*sizes: int, **config) -> Config:
    return _cached(*sizes, **config)


def _run(self: nn.Module, x: Tensor, top_k_index: Tensor, top_k_weights: Tensor, c: Config, up: str, given: dict[str, Tensor]) -> Tensor:
    """Runs experts with weights that are given by name, and with the adapters of PEFT's
    wrappers."""
    adapters.leave_to(NAME)  # PEFT may have been imported after the registration
    if found := adapters.held(self):
        c, factors = adapters.adapted(c, {"w1": up, "w2": "down_proj"}, found)
        given = given | factors
    x = x.to(DTYPES[c.type]).contiguous()
    scores, ids = top_k_weights.float().contiguous(), top_k_index.int().contiguous()
    return experts_by_key(x, scores, ids, None, [given.get(name) for name in EXPERTS], c.key)


# Experts with a gate of their own: its activation, and the names of its fields for alpha and limit.
_GATES = {
    "BeamExperts": ("swiglu", None, None),
    "DeepseekV4Experts": ("swiglu", None, "limit"),
    "Glm5NextTextExperts": ("swiglu", None, "swiglu_limit"),
    "GptOssExperts": ("swiglu-oai", "alpha", "limit"),
    "HYV4Experts": ("swiglu", None, "swiglu_limit"),
    "MiniMaxM3VLExperts": ("swiglu-oai", "swiglu_alpha", "swiglu_limit"),
    "OpenAIPrivacyFilterExperts": ("swiglu-oai", "alpha", "limit"),
}


def _formula(experts: nn.Module) -> dict:
    """Returns the activation of experts as fields of Config."""
    kind = type(experts).__name__
    if not experts.has_gate or type(experts)._apply_gate is _usual_gate:
        return {"activation": activation(experts)}
    if kind in _GATES:
        name, alpha, limit = _GATES[kind]
        if name == "swiglu" and hasattr(experts, "act_fn") and activation(experts) != name:
            raise ArgumentError(f"{kind} has the activation {activation(experts)}, must have {name}")
        given = {field: float(getattr(experts, of)) for field, of in (("alpha", alpha), ("limit", limit)) if of}
        if not given.get("limit", 1.0) > 0:
            raise ArgumentError(f"{kind} has {limit} {given['limit']}, must be above 0")
        return {"activation": name, **given}
    if "FP8Experts" in (k.__name__ for k in type(experts).__mro__) and getattr(experts, "gate_softcap", None) is None:
        limit = float(experts.swiglu_limit or 0)
        if experts.swiglu_alpha is not None:
            return {"activation": "swiglu-oai", "alpha": float(experts.swiglu_alpha), "limit": limit}
        return {"activation": activation(experts), "limit": limit}
    raise ArgumentError(f"{kind} has a gate of its own, must have that of most models or of {', '.join(_GATES)}")


def _check(experts: nn.Module) -> None:
    """Raises an error if experts have a part that no kernel computes."""
    if getattr(experts, "has_post_expert_norm", False):  # transformers added this attribute after the registry
        raise ArgumentError(f"{type(experts).__name__} has a norm after its experts, must have none")


def unsupported(experts: nn.Module) -> str | None:
    """Returns the reason why experts of transformers cannot run here by registration, or None if
    they can."""
    experts = _inner(experts)
    if not hasattr(experts, "has_gate"):  # transformers sets it on experts that look for an implementation
        return "they never ask for an experts_implementation"
    _find_usual_gate()
    try:
        _check(experts)
        _formula(experts)
    except ArgumentError as err:
        return str(err)
    return None


def _forward(self: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """The forward of an experts module of transformers."""
    _check(self)
    up = "gate_up_proj" if self.has_gate else "up_proj"
    w1, w2 = getattr(self, up), self.down_proj
    if w1.dtype is torch.float8_e4m3fn or is_fp4(self):
        return _packed(self, hidden_states, top_k_index, top_k_weights, up)
    b1 = b2 = None
    if self.has_bias:
        b1, b2 = self.gate_up_proj_bias if self.has_gate else self.up_proj_bias, self.down_proj_bias
    w1, w2, b1, b2 = autocast(w1, w2, b1, b2)
    num_experts, intermediate, hidden = w2.shape
    if not self.is_transposed:
        intermediate, hidden = hidden, intermediate
    layout = {
        "type": config_type(w1.dtype),
        "weight_order": "in-out" if self.is_transposed else "out-in",
        "gate_up": "concatenated" if self.is_concatenated else "interleaved",
        "bias": self.has_bias,
    }
    c = _config(hidden, intermediate, num_experts, top_k_index.shape[-1], **layout, **_formula(self))
    given = {"w1": w1, "w2": w2, "b1": b1, "b2": b2}
    return _run(self, hidden_states, top_k_index, top_k_weights, c, up, given).to(hidden_states.dtype)


def _packed(self: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor, up: str) -> Tensor:
    """The forward of FP8 and FP4 experts in transformers."""
    if nn.utils.parametrize.is_parametrized(self):
        adapters.leave_to(NAME)
        raise ArgumentError(f"{type(self).__name__} has codes to which PEFT itself has added an adapter. Let the kernels add it: ranks that add up to at most 128, and peft imported before the first call")
    if (word := packing(self)) == "plain":
        raise ArgumentError(f"{type(self).__name__} has blocks of {self.block_size}, must have blocks of (128, 128)")
    num_experts, hidden, intermediate = self.down_proj.shape
    if word == "mxfp4":
        intermediate *= 2  # a byte has two codes
    c = _config(hidden, intermediate, num_experts, top_k_index.shape[-1], weights=word, **_formula(self))
    given = {"w1": getattr(self, up), "w2": self.down_proj, "w1_scale": getattr(self, f"{up}_scale_inv"), "w2_scale": self.down_proj_scale_inv}
    for name, t in given.items():
        given[name] = t.detach() if t.dtype is torch.float32 else t.detach().view(torch.uint8)
    return _run(self, hidden_states, top_k_index, top_k_weights, c, up, given).to(hidden_states.dtype)
