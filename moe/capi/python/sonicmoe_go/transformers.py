"""Experts of transformers 5 on the library's kernels, by that package's own registry."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

from ._library import ArgumentError, Config
from ._weights import EXPERTS
from .functional import experts_by_key
from .module import _activation, autocast, config_type

NAME = "sonicmoe_go"


def register_with_transformers() -> str:
    """Registers experts_implementation="sonicmoe_go" for models of transformers:

        sonicmoe_go.register_with_transformers()
        model = AutoModelForCausalLM.from_pretrained(..., experts_implementation="sonicmoe_go")

    The model keeps its own router. If the library does not cover its experts, their first call
    raises an error. Returns the registered name.
    """
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(NAME, _forward)
    return NAME


_config = functools.lru_cache(maxsize=4096)(Config)


# torch.compile traces into a cached function and ignores its markers: keep this one separate.
@torch.compiler.assume_constant_result
def _key(*sizes: int, **config) -> str:
    return _config(*sizes, **config).key


def _formula(experts: nn.Module) -> dict:
    """Returns the experts' activation as fields of Config."""
    from transformers.integrations.moe import _default_apply_gate

    if not experts.has_gate or type(experts)._apply_gate is _default_apply_gate:
        return {"activation": _activation(experts)}
    if type(experts).__name__ == "GptOssExperts":
        return {"activation": "swiglu-oai", "alpha": float(experts.alpha), "limit": float(experts.limit)}
    raise ArgumentError(f"{type(experts).__name__} has a gate of its own, must have that of most models or of gpt-oss")


def _forward(self: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """The forward of an experts module of transformers."""
    if getattr(self, "has_post_expert_norm", False):  # added to transformers after its registry
        raise ArgumentError(f"{type(self).__name__} has a norm after its experts, must have none")
    w1, w2 = self.gate_up_proj if self.has_gate else self.up_proj, self.down_proj
    b1 = b2 = None
    if self.has_bias:
        b1, b2 = self.gate_up_proj_bias if self.has_gate else self.up_proj_bias, self.down_proj_bias
    w1, w2, b1, b2 = autocast(w1, w2, b1, b2)
    num_experts, intermediate, hidden = w2.shape if self.is_transposed else (w2.shape[0], w2.shape[2], w2.shape[1])
    layout = {
        "type": config_type(w1.dtype),
        "weight_order": "in-out" if self.is_transposed else "out-in",
        "gate_up": "concatenated" if self.is_concatenated else "interleaved",
        "bias": self.has_bias,
    }
    key = _key(hidden, intermediate, num_experts, top_k_index.shape[-1], **layout, **_formula(self))
    x = hidden_states.to(w1.dtype).contiguous()
    scores, ids = top_k_weights.float().contiguous(), top_k_index.int().contiguous()
    given = {"w1": w1, "w2": w2, "b1": b1, "b2": b2}
    return experts_by_key(x, scores, ids, None, [given.get(name) for name in EXPERTS], key).to(hidden_states.dtype)
