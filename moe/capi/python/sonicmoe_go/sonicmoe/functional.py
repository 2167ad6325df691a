"""The layer as functions, with the names and layouts of SonicMoE's package."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from enum import Enum

import torch
import torch.nn.functional as F
from torch import Tensor

from .._library import ArgumentError, Config
from ..functional import moe, moe_experts
from ..module import config_type
from .count_cumsum import count_cumsum
from .enums import ActivationType, activation_of, is_glu

_ACTIVATIONS = {
    ActivationType.SWIGLU: "swiglu",
    ActivationType.GEGLU: "geglu-erf",
    ActivationType.REGLU: "reglu",
    ActivationType.RELU_SQ: "relu2",
    ActivationType.RELU: "relu",
    ActivationType.GELU: "gelu-erf",
    ActivationType.SILU: "silu",
}


@contextlib.contextmanager
def enable_quack_gemm(enable: bool = True) -> Iterator[None]:
    """Does nothing. In SonicMoE it chooses another library's matrix products. This library always
    uses its own."""
    yield


def _experts_of(w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns the weights w1 [2n, d, E] and w2 [d, n, E], the layout of SonicMoE's functions, as
    [E, 2n, d] and [E, d, n]. If they are views of tensors in the second layout, nothing is
    copied."""
    if (b1 is None) != (b2 is None):
        raise ArgumentError("one of b1 and b2 is missing, must be both there or none")
    return w1.permute(2, 0, 1).contiguous(), w2.permute(2, 0, 1).contiguous()


_made = functools.lru_cache(maxsize=4096)(Config)


# torch.compile cannot trace the construction of a Config.
@torch.compiler.assume_constant_result
def _constant(*sizes: int, **fields) -> Config:
    return _made(*sizes, **fields)


def _config(w1: Tensor, w2: Tensor, k: int, bias: bool, activation: Enum | str, concat_layout: bool, **fields) -> Config:
    e, d, n = w2.shape
    kind, of = activation_of(activation), config_type(w2.dtype)
    gate_up = "concatenated" if concat_layout or not is_glu(kind) else "interleaved"
    logits = "f32" if under_f32_autocast(w2) else of
    return _constant(d, n, e, k, type=of, logits=logits, gate_up=gate_up, bias=bias, activation=_ACTIVATIONS[kind], **fields)


def under_f32_autocast(x: Tensor) -> bool:
    """Whether autocast to FP32 is on. In SonicMoE the router then has FP32 logits, but the experts
    do not change."""
    return torch.is_autocast_enabled(x.device.type) and torch.get_autocast_dtype(x.device.type) is torch.float32


def moe_TC_softmax_topk_layer(
    x: Tensor, router_w: Tensor, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor | None, K: int, stream_id: int,
    activation_type: ActivationType | str = ActivationType.SWIGLU, is_inference_mode_enabled: bool = False,
    is_softmax_over_topk: bool = True, norm_topk_probs: bool = False, concat_layout: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Computes the whole layer. Returns its output, the router's logits, and the number of tokens
    of each expert.

    The scores are a softmax over the chosen experts. With is_softmax_over_topk False they are a
    softmax over all experts, and norm_topk_probs divides the chosen scores by their sum. Gate and
    up of a neuron are neighbouring rows of w1, but with concat_layout all gates come before all
    ups. stream_id is ignored: the work is queued on torch's current stream.
    """
    w1, w2 = _experts_of(w1, b1, w2, b2)
    score = {} if is_softmax_over_topk else {"score": "softmax", "renormalize": "sum" if norm_topk_probs else "none"}
    c = _config(w1, w2, K, b1 is not None, activation_type, concat_layout, **score)
    frequency = torch.zeros(c.num_experts, dtype=torch.int32, device=x.device)
    with torch.set_grad_enabled(torch.is_grad_enabled() and not is_inference_mode_enabled):
        o, logits = moe(x, router_w, w1, w2, c, b1=b1, b2=b2, logits=True, loads=frequency)
    return o, logits, frequency


def moe_general_routing_inputs(
    x: Tensor, router_scores: Tensor, token_indices: Tensor, expert_indices: Tensor, w1: Tensor, b1: Tensor | None,
    w2: Tensor, b2: Tensor | None, E: int, stream_id: int, activation_type: ActivationType | str,
    is_inference_mode_enabled: bool = False, concat_layout: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Computes the experts of a list of (token, expert, score) entries. Returns the output and the
    number of entries of each expert.

    A token may have any number of entries, in any order. The host does not wait. stream_id is
    ignored.
    """
    w1, w2 = _experts_of(w1, b1, w2, b2)
    c = _config(w1, w2, 1, b1 is not None, activation_type, concat_layout, lists=True)
    ids, tokens, scores = expert_indices.int(), token_indices.int(), router_scores.float()
    if not ids.numel():  # a list must have at least one entry, so this one names no expert
        ids, tokens, scores = F.pad(ids, (0, 1), value=-1), F.pad(tokens, (0, 1)), F.pad(scores, (0, 1))
    with torch.set_grad_enabled(torch.is_grad_enabled() and not is_inference_mode_enabled):
        o = moe_experts(x, scores, ids, w1, w2, c, b1=b1, b2=b2, token_indices=tokens)
    return o, count_cumsum(expert_indices, c.num_experts, False)
