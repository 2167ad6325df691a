"""Experts of transformers 5 on the library's kernels, by that package's own registry."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

from ._library import ArgumentError, Config
from ._weights import EXPERTS
from .functional import experts_by_key
from .module import SonicMoE, _activation, autocast, config_type

NAME = "sonicmoe_go"


def register_with_transformers(model: nn.Module | None = None) -> str:
    """Registers experts_implementation="sonicmoe_go" for models of transformers:

        sonicmoe_go.register_with_transformers()
        model = AutoModelForCausalLM.from_pretrained(..., experts_implementation="sonicmoe_go")

    The model keeps its own router. If the library does not cover its experts, their first call
    raises an error. Experts of Llama-4 and DBRX never ask for an implementation, and run eager without a word.
    A given model gets the implementation, or an error that names such experts. Returns the registered name.
    """
    from transformers.integrations import moe

    global _usual_gate
    _usual_gate = moe._default_apply_gate
    moe.ALL_EXPERTS_FUNCTIONS.register(NAME, _forward)
    if model is not None:
        _check_asks(model)
        model.set_experts_implementation(NAME)
    return NAME


def _check_asks(model: nn.Module) -> None:
    """Refuses a model whose experts ask transformers for no implementation."""
    blocks = [m for m in model.modules() if isinstance(getattr(m, "experts", None), nn.Module) and not isinstance(m, SonicMoE)]
    silent = sorted({type(m.experts).__name__ for m in blocks if not hasattr(m.experts, "has_gate")})
    if silent:
        raise ArgumentError(f"{', '.join(silent)} of {type(model).__name__} would run eager, must ask for an experts_implementation: try SonicMoE.from_hf(block)")


_usual_gate = None  # the gate of most experts


_config = functools.lru_cache(maxsize=4096)(Config)


# torch.compile traces into a cached function and ignores its markers: keep this one separate.
@torch.compiler.assume_constant_result
def _key(*sizes: int, **config) -> str:
    return _config(*sizes, **config).key


def _formula(experts: nn.Module) -> dict:
    """Returns the experts' activation as fields of Config."""
    if not experts.has_gate or type(experts)._apply_gate is _usual_gate:
        return {"activation": _activation(experts)}
    if type(experts).__name__ == "GptOssExperts":
        return {"activation": "swiglu-oai", "alpha": float(experts.alpha), "limit": float(experts.limit)}
    raise ArgumentError(f"{type(experts).__name__} has a gate of its own, must have that of most models or of gpt-oss")


_W1, _W2, _B1, _B2 = map(EXPERTS.index, ("w1", "w2", "b1", "b2"))


def _forward(self: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """The forward of an experts module of transformers."""
    if getattr(self, "has_post_expert_norm", False):  # added to transformers after its registry
        raise ArgumentError(f"{type(self).__name__} has a norm after its experts, must have none")
    w1, w2 = self.gate_up_proj if self.has_gate else self.up_proj, self.down_proj
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
    key = _key(hidden, intermediate, num_experts, top_k_index.shape[-1], **layout, **_formula(self))
    x = hidden_states.to(w1.dtype).contiguous()
    scores, ids = top_k_weights.float().contiguous(), top_k_index.int().contiguous()
    weights: list[Tensor | None] = [None] * len(EXPERTS)
    weights[_W1], weights[_W2], weights[_B1], weights[_B2] = w1, w2, b1, b2
    return experts_by_key(x, scores, ids, None, weights, key).to(hidden_states.dtype)
