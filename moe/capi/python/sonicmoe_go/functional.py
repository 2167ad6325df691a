"""The layer as functions of tensors."""

from __future__ import annotations

from torch import Tensor

from . import _ops
from ._library import Config


def moe(
    x: Tensor, router: Tensor, w1: Tensor, w2: Tensor, config: Config, *, w3: Tensor | None = None,
    b1: Tensor | None = None, b3: Tensor | None = None, b2: Tensor | None = None,
    balance: float = 0.0, z_loss: float = 0.0, logits: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Router, top-K, experts and their weighted sum of tokens x [T, d].

    w3 is the up-projection where gate_up is "apart"; b1, b3 and b2 are the biases of w1, w3
    and w2, of a config with bias. Gives o [T, d] and, if wanted, the router's logits [T, E],
    both differentiable. balance and z_loss are coefficients of the load balancing loss and the
    z-loss: their gradients are added in backward, as if the losses had been added to the loss.
    """
    weights = w1, w3, w2, b1, b3, b2
    if _ops.eager(x, router, *weights):
        return _ops.infer(x, router, weights, config, logits)
    losses = balance != 0 or z_loss != 0
    o, _, _, _, l = _ops.forward(x, router, *weights, config.key, True, logits or losses, balance, z_loss)
    return o, l if logits else None


def moe_experts(
    x: Tensor, scores: Tensor, expert_ids: Tensor, w1: Tensor, w2: Tensor, config: Config, *, w3: Tensor | None = None,
    b1: Tensor | None = None, b3: Tensor | None = None, b2: Tensor | None = None, token_indices: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Experts of tokens x [T, d], and their sum with scores [T, K] f32 of expert_ids
    [T, K] i32, from whatever router. An id outside [0, E) adds nothing. w3 and biases are
    those of moe.

    With token_indices [L] i32 and a config with lists, scores and expert_ids are [L]: entry
    i is an expert of token token_indices[i], in any order, any number a token."""
    return experts_by_key(x, scores, expert_ids, token_indices, (w1, w3, w2, b1, b3, b2), config.key)


def experts_by_key(
    x: Tensor, scores: Tensor, expert_ids: Tensor, tokens: Tensor | None, weights: tuple[Tensor | None, ...], key: str
) -> Tensor:
    """moe_experts of a configuration's key, with weights in the order of the operators."""
    if _ops.eager(x, scores, *weights):
        return _ops.infer_experts(x, scores, expert_ids, tokens, weights, key)
    return _ops.experts(x, scores, expert_ids, tokens, *weights, key, True)[0]
