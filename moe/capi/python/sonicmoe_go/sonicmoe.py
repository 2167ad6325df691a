"""The names of SonicMoE's own Python package (arXiv 2512.14080), for programs that change one
import:

    from sonicmoe_go.sonicmoe import MoE, KernelBackendMoE, ActivationType

The constructor, names and layouts of weights, and results are the same as in that package.
"""

from __future__ import annotations

import functools
from enum import Enum

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ._library import ArgumentError, Config
from .functional import moe, moe_experts
from .module import autocast, config_type, rows

__all__ = ["ActivationType", "Experts", "KernelBackendMoE", "MoE", "moe_TC_softmax_topk_layer", "moe_general_routing_inputs"]


class KernelBackendMoE(Enum):
    """SonicMoE's choice of kernels. This library has one."""

    scattermoe = "scattermoe"
    torch = "torch"
    sonicmoe = "sonicmoe"


class ActivationType(Enum):
    """The activation of the experts."""

    SWIGLU = "swiglu"
    GEGLU = "geglu"
    REGLU = "reglu"
    RELU_SQ = "relu_sq"
    RELU = "relu"
    GELU = "gelu"
    SILU = "silu"


_ACTIVATIONS = {
    ActivationType.SWIGLU: "swiglu",
    ActivationType.GEGLU: "geglu-erf",
    ActivationType.REGLU: "reglu",
    ActivationType.RELU_SQ: "relu2",
    ActivationType.RELU: "relu",
    ActivationType.GELU: "gelu-erf",
    ActivationType.SILU: "silu",
}
_GATED = (ActivationType.SWIGLU, ActivationType.GEGLU, ActivationType.REGLU)


def _experts_of(w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns weights [2n, d, E] and [d, n, E], the layout of SonicMoE's functions, as [E, 2n, d] and
    [E, d, n]. Views of that layout are not copied."""
    if (b1 is None) != (b2 is None):
        raise ArgumentError("one of b1 and b2 is missing, must be both there or none")
    return w1.permute(2, 0, 1).contiguous(), w2.permute(2, 0, 1).contiguous()


_made = functools.lru_cache(maxsize=4096)(Config)


# torch.compile cannot trace the making of a Config.
@torch.compiler.assume_constant_result
def _constant(*sizes: int, **fields) -> Config:
    return _made(*sizes, **fields)


def _activation(activation: Enum | str) -> ActivationType:
    """Returns an activation of this package, of SonicMoE's own, or of a name."""
    return ActivationType(getattr(activation, "value", activation))


def _config(w1: Tensor, w2: Tensor, k: int, bias: bool, activation: Enum | str, lists: bool = False) -> Config:
    e, d, n = w2.shape
    kind = _activation(activation)
    gate_up = "interleaved" if kind in _GATED else "concatenated"
    return _constant(d, n, e, k, type=config_type(w2.dtype), gate_up=gate_up, bias=bias, activation=_ACTIVATIONS[kind], lists=lists)


def _frequency(expert_ids: Tensor, e: int) -> Tensor:
    """Counts the slots of each expert without a host wait. An id outside [0, e) is not counted."""
    ids = expert_ids.flatten().long()
    ids = torch.where((ids >= 0) & (ids < e), ids, e)
    return torch.zeros(e + 1, dtype=torch.int32, device=ids.device).scatter_add_(0, ids, torch.ones_like(ids, dtype=torch.int32))[:e]


def moe_TC_softmax_topk_layer(
    x: Tensor, router_w: Tensor, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor | None, K: int, stream_id: int,
    activation_type: ActivationType | str = ActivationType.SWIGLU, is_inference_mode_enabled: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The whole layer. Returns its output, the router's logits and the number of tokens of each
    expert.

    stream_id is ignored: the work is queued on torch's current stream.
    """
    w1, w2 = _experts_of(w1, b1, w2, b2)
    c = _config(w1, w2, K, b1 is not None, activation_type)
    with torch.set_grad_enabled(torch.is_grad_enabled() and not is_inference_mode_enabled):
        o, logits = moe(x, router_w, w1, w2, c, b1=b1, b2=b2, logits=True)
    ids = logits.detach().topk(K, dim=-1).indices
    return o, logits, _frequency(ids, c.num_experts)


def moe_general_routing_inputs(
    x: Tensor, router_scores: Tensor, token_indices: Tensor, expert_indices: Tensor, w1: Tensor, b1: Tensor | None,
    w2: Tensor, b2: Tensor | None, E: int, stream_id: int, activation_type: ActivationType,
    is_inference_mode_enabled: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Experts of a list of (token, expert, score) entries. Returns the output and the number of
    entries of each expert.

    A token may have any number of entries, in any order. The host does not wait. stream_id is
    ignored.
    """
    w1, w2 = _experts_of(w1, b1, w2, b2)
    c = _config(w1, w2, 1, b1 is not None, activation_type, lists=True)
    ids, tokens, scores = expert_indices.int(), token_indices.int(), router_scores.float()
    if not ids.numel():  # the shortest list has one entry, without an expert
        ids, tokens, scores = F.pad(ids, (0, 1), value=-1), F.pad(tokens, (0, 1)), F.pad(scores, (0, 1))
    with torch.set_grad_enabled(torch.is_grad_enabled() and not is_inference_mode_enabled):
        o = moe_experts(x, scores, ids, w1, w2, c, b1=b1, b2=b2, token_indices=tokens)
    return o, _frequency(expert_indices, c.num_experts)


class Experts(nn.Module):
    """One of the two weights of all experts, [E, out, in]."""

    def __init__(
        self, num_experts: int, in_features: int, out_features: int, add_bias: bool = True, std: float | None = None
    ):
        super().__init__()
        self.num_experts, self.in_features, self.out_features, self.std = num_experts, in_features, out_features, std
        self.weight = nn.Parameter(torch.empty(num_experts, out_features, in_features))
        self.bias = nn.Parameter(torch.empty(num_experts, out_features)) if add_bias else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            nn.init.normal_(self.weight, mean=0, std=0.02 if self.std is None else self.std)
        if self.bias is not None:
            self.bias.zero_()

    def extra_repr(self) -> str:
        return f"num_experts={self.num_experts}, in_features={self.in_features}, out_features={self.out_features}"


class MoE(nn.Module):
    """SonicMoE's layer. It takes tokens and returns tokens and the Switch loss, which has no
    gradients with is_inference_mode. Gate and up of a neuron are neighbouring rows of c_fc.weight."""

    def __init__(
        self, num_experts: int, num_experts_per_tok: int, hidden_size: int, intermediate_size: int,
        activation_function: ActivationType | str, add_bias: bool, std: float,
    ):  # fmt: skip
        super().__init__()
        self.num_experts, self.top_k = num_experts, num_experts_per_tok
        self.hidden_size, self.intermediate_size = hidden_size, intermediate_size
        self.activation_function = _activation(activation_function)
        rows = 2 * intermediate_size if self.activation_function in _GATED else intermediate_size
        self.router = nn.Linear(hidden_size, num_experts, bias=False)
        self.c_fc = Experts(num_experts, hidden_size, rows, add_bias, std)
        self.c_proj = Experts(num_experts, intermediate_size, hidden_size, add_bias, std)

    def forward(
        self, hidden_states: Tensor, kernel_backend_moe: KernelBackendMoE = KernelBackendMoE.sonicmoe,
        is_inference_mode: bool = False,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        if getattr(kernel_backend_moe, "value", None) != KernelBackendMoE.sonicmoe.value:
            raise ArgumentError(f"kernel_backend_moe is {kernel_backend_moe}, must be {KernelBackendMoE.sonicmoe}")
        x, router, w1, w2, b1, b2 = autocast(
            hidden_states, self.router.weight, self.c_fc.weight, self.c_proj.weight, self.c_fc.bias, self.c_proj.bias
        )
        o, logits, frequency = moe_TC_softmax_topk_layer(
            rows(x, self.hidden_size), router, w1.permute(1, 2, 0), b1,
            w2.permute(1, 2, 0), b2, self.top_k, 0, self.activation_function,
            is_inference_mode or not self.training,
        )  # fmt: skip
        o = o.view(hidden_states.shape)
        probs = F.softmax(logits, dim=-1, dtype=torch.float32).sum(0)
        shares = F.normalize(probs, p=1, dim=0) * F.normalize(frequency.float(), p=1, dim=0)
        return o, self.num_experts * shares.sum()
