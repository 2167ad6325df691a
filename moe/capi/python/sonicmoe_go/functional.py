"""The layer as functions of tensors."""

from __future__ import annotations

from torch import Tensor

from . import _ops
from ._library import Config


def moe(
    x: Tensor, router: Tensor, w1: Tensor, w2: Tensor, config: Config, *, balance: float = 0.0, z_loss: float = 0.0,
    logits: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Router, top-K, experts and their weighted sum of tokens x [T, d].

    Gives o [T, d] and, if wanted, the router's logits [T, E], both differentiable.
    balance and z_loss are coefficients of the load balancing loss and the z-loss: their
    gradients are added in backward, as if the losses had been added to the loss.
    """
    if _ops.eager(x, router, w1, w2):
        return _ops.infer(x, router, w1, w2, config, logits)
    losses = balance != 0 or z_loss != 0
    o, _, _, _, l = _ops.forward(x, router, w1, w2, config.key, True, logits or losses, balance, z_loss)
    return o, l if logits else None


def moe_experts(
    x: Tensor, scores: Tensor, expert_ids: Tensor, w1: Tensor, w2: Tensor, config: Config, *, token_indices: Tensor | None = None
) -> Tensor:
    """Experts of tokens x [T, d], and their sum with scores [T, K] f32 of expert_ids
    [T, K] i32, from whatever router. An id outside [0, E) adds nothing.

    With token_indices [L] i32 and a config with lists, scores and expert_ids are [L]: entry
    i is an expert of token token_indices[i], in any order, any number a token."""
    return experts_by_key(x, scores, expert_ids, token_indices, w1, w2, config.key)


def experts_by_key(
    x: Tensor, scores: Tensor, expert_ids: Tensor, tokens: Tensor | None, w1: Tensor, w2: Tensor, key: str
) -> Tensor:
    """moe_experts of a configuration's key."""
    if _ops.eager(x, scores, w1, w2):
        return _ops.infer_experts(x, scores, expert_ids, tokens, w1, w2, key)
    return _ops.experts(x, scores, expert_ids, tokens, w1, w2, key, True)[0]
