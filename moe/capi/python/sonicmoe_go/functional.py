"""The layer as functions of tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from . import _ops
from ._library import ArgumentError, Config
from ._weights import EXPERTS, WEIGHTS, Weights


def _tensors(names: tuple[str, ...], values: Weights) -> Weights:
    """Returns arrays of any library with DLPack as tensors, which share the arrays' memory. Only
    the inputs in _NEEDED must not be None."""
    return tuple(v if isinstance(v, Tensor) or v is None and n not in _NEEDED else _tensor(n, v) for n, v in zip(names, values))


_NEEDED = ("x", "scores", "expert_ids")


def _tensor(name: str, value) -> Tensor:
    """Returns an array with DLPack as a tensor."""
    if not hasattr(value, "__dlpack__"):
        raise ArgumentError(f"{name} is {value!r:.60}, must be a tensor, or an array with DLPack")
    return torch.from_dlpack(value)


def moe(
    x: Tensor, router: Tensor, w1: Tensor, w2: Tensor, config: Config, *, w3: Tensor | None = None,
    b1: Tensor | None = None, b3: Tensor | None = None, b2: Tensor | None = None,
    router_bias: Tensor | None = None, selection_bias: Tensor | None = None, expert_scale: Tensor | None = None,
    shared_w1: Tensor | None = None, shared_w3: Tensor | None = None, shared_w2: Tensor | None = None,
    shared_gate: Tensor | None = None, w1_scale: Tensor | None = None, w3_scale: Tensor | None = None, w2_scale: Tensor | None = None,
    w1_zero: Tensor | None = None, w3_zero: Tensor | None = None, w2_zero: Tensor | None = None,
    w1_global: Tensor | None = None, w3_global: Tensor | None = None, w2_global: Tensor | None = None,
    lora_a1: Tensor | None = None, lora_b1: Tensor | None = None, lora_b3: Tensor | None = None,
    lora_a2: Tensor | None = None, lora_b2: Tensor | None = None,
    adapter_ids: Tensor | None = None, lora_scales: Tensor | None = None,
    balance: float = 0.0, z_loss: float = 0.0, logits: bool = False, rounds: bool = False, seed: int | None = None,
    sequence: int = 0, loads: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Returns the weighted sum of the experts of tokens x [T, d], which the router [E, d] chooses by
    top-K. w1 [E, 2n, d] is gate and up of the experts, and w2 [E, d, n] is down; see Config.

    The config decides which other weights there are. w3 is the up-projection if gate_up is "apart".
    b1, b3 and b2 are the biases of w1, w3 and w2. router_bias, selection_bias and expert_scale are
    [E] f32. Shared experts have the gate (or only) projection shared_w1 [sn, d], the up-projection
    shared_w3 [sn, d], the down-projection shared_w2 [d, sn], and shared_gate [d], where sn is the
    width of all shared experts. All weights are differentiable except selection_bias and packed
    weights. Packed weights need w1_scale, w3_scale and w2_scale. If their format has zero points or
    global scales, they also need w1_zero or w1_global, and the same for w3 and w2.

    With lora_rank the experts have an adapter: lora_a1 [E, r, d] and lora_b1 [E, 2n, r] are added to
    w1 as lora_b1·lora_a1, lora_a2 [E, r, n] and lora_b2 [E, d, r] to w2. lora_b3 is for w3. With
    weight_order "in-out" their last two dimensions are swapped. w1, w3, w2 and their biases are then
    frozen: their gradients are an error.

    With lora_adapters the layer has a table of adapters, for inference. The factors are [lora_adapters
    * E, ...]: adapter 0 for all experts, then adapter 1. weight_order does not change them.
    adapter_ids [T] i32 has the place of each token's adapter, or -1 for none. lora_scales
    [lora_adapters] f32 has the adapters' scales, and 0 for a place without an adapter. Tokens without
    an adapter have the bits of the layer without the table. To add or remove an adapter, write to
    these tensors.

    Returns o [T, d] and, if wanted, the router's logits [T, E]. Both are differentiable. balance
    and z_loss are the coefficients of the load balancing loss and of the z-loss. Backward adds the
    gradients of these losses as if they were part of the caller's loss, but without a loss scale:
    if the caller's loss is scaled, scale the coefficients, too. sequence must divide T. If it is
    set, the balance loss is the mean over sequences of that many tokens.

    The number of tokens that chose each expert is added to loads [E] i32, if it is given, for
    update_selection_bias.

    Tensors may be arrays of other libraries, such as JAX and CuPy. Their memory is shared by
    DLPack, without a copy. The results are torch tensors, which these libraries can take in the
    same way.

    With rounds, for training, the config's rounding_rule decides which tokens an expert gets. seed
    is for rules that draw random numbers. If it is None, a seed is drawn from torch's CPU
    generator.
    """
    weights = (
        router, router_bias, selection_bias, expert_scale,
        w1, w3, w2, b1, b3, b2, shared_w1, shared_w3, shared_w2, shared_gate, w1_scale, w3_scale, w2_scale,
        w1_zero, w3_zero, w2_zero, w1_global, w3_global, w2_global, lora_a1, lora_b1, lora_b3, lora_a2, lora_b2,
    )  # fmt: skip
    # The library itself detects every observer except torch.compile, which traces this line.
    if not (logits or rounds or loads is not None or config.lora_adapters or torch.compiler.is_dynamo_compiling()):
        plan = config.plan
        given = plan and plan.infer(x, weights)
        if given is not None:
            return given, None
    x, loads, adapter_ids, lora_scales, *weights = _tensors(
        ("x", "loads", "adapter_ids", "lora_scales", *WEIGHTS), (x, loads, adapter_ids, lora_scales, *weights)
    )
    if config.lora_adapters or adapter_ids is not None or lora_scales is not None:
        if rounds or loads is not None:
            raise ArgumentError("rounds or loads is set, must not be with a table of adapters")
        return _ops.infer_with_table(x, (), weights, config, logits, adapter_ids, lora_scales)
    return moe_of(x, weights, config, balance, z_loss, logits, rounds, seed, sequence, loads)


def moe_of(
    x: Tensor, weights: Weights, config: Config, balance: float, z_loss: float, logits: bool, rounds: bool, seed: int | None,
    sequence: int, loads: Tensor | None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Runs moe with the weights in the order of the operators."""
    if sequence and (sequence < 0 or x.shape[0] % sequence):
        raise ArgumentError(f"sequence is {sequence}, must be 0, or a divisor of the {x.shape[0]} tokens")
    sequence = sequence if balance else 0
    if rounds and not config.rounds:
        raise ArgumentError("rounds is True, must be False with Config.rounding_rule 'none'")
    if not rounds and not _ops.watched():
        given = _ops.short(x, weights, config, logits, balance, z_loss, sequence, loads) if x.dim() == 2 else None
        if given is not None:
            return given
        if _ops.eager(x, *weights):
            return _ops.infer(x, weights, config, logits, loads)
    kept = logits or rounds or balance != 0 or z_loss != 0 or config.saves_logits
    o, _, _, _, ids, l, *_ = _ops.forward(x, *weights, config.key, True, kept, balance, z_loss, sequence, rounds, seed)
    if loads is not None:
        _ops.loads(ids, loads, config.key)
    return o, l if logits else None


def update_selection_bias(loads: Tensor, selection_bias: Tensor, config: Config, rate: float = 1e-3) -> None:
    """Makes one step of load balancing without a loss (arXiv 2408.15664). The selection bias [E]
    f32 of an expert grows by rate if its load is below the mean of loads [E] i32, and falls by rate
    if its load is above the mean. Both tensors are changed in place: loads become 0.

    Call it after each step of the optimiser, or let balance_selection do so for a whole model. If
    ranks share the layer, loads must be the sum over the ranks. A CUDA graph can capture the step.
    """
    _ops.update_selection_bias(loads, selection_bias, config.key, rate)


def moe_experts(
    x: Tensor, scores: Tensor, expert_ids: Tensor, w1: Tensor, w2: Tensor, config: Config, *, w3: Tensor | None = None,
    b1: Tensor | None = None, b3: Tensor | None = None, b2: Tensor | None = None,
    shared_w1: Tensor | None = None, shared_w3: Tensor | None = None, shared_w2: Tensor | None = None,
    shared_gate: Tensor | None = None, w1_scale: Tensor | None = None, w3_scale: Tensor | None = None, w2_scale: Tensor | None = None,
    w1_zero: Tensor | None = None, w3_zero: Tensor | None = None, w2_zero: Tensor | None = None,
    w1_global: Tensor | None = None, w3_global: Tensor | None = None, w2_global: Tensor | None = None,
    lora_a1: Tensor | None = None, lora_b1: Tensor | None = None, lora_b3: Tensor | None = None,
    lora_a2: Tensor | None = None, lora_b2: Tensor | None = None,
    adapter_ids: Tensor | None = None, lora_scales: Tensor | None = None,
    token_indices: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Returns the weighted sum of experts of tokens x [T, d] for a routing from any router: scores
    [T, K] f32 of experts expert_ids [T, K] i32. An id outside [0, E) adds nothing. The other
    weights are the same as for moe.

    If the config has lists and token_indices [L] i32 is given, scores and expert_ids are [L]. Entry
    i is then expert expert_ids[i] for token token_indices[i]. Entries may be in any order, and a
    token may have any number of them. Arrays of other libraries are accepted, as for moe.
    """
    weights = (
        w1, w3, w2, b1, b3, b2, shared_w1, shared_w3, shared_w2, shared_gate, w1_scale, w3_scale, w2_scale,
        w1_zero, w3_zero, w2_zero, w1_global, w3_global, w2_global, lora_a1, lora_b1, lora_b3, lora_a2, lora_b2,
    )  # fmt: skip
    x, scores, expert_ids, token_indices, adapter_ids, lora_scales, *weights = _tensors(
        ("x", "scores", "expert_ids", "token_indices", "adapter_ids", "lora_scales", *EXPERTS),
        (x, scores, expert_ids, token_indices, adapter_ids, lora_scales, *weights),
    )
    if config.lora_adapters or adapter_ids is not None or lora_scales is not None:
        return _ops.infer_with_table(x, (scores, expert_ids, token_indices), weights, config, False, adapter_ids, lora_scales)[0]
    return experts_by_key(x, scores, expert_ids, token_indices, weights, config.key)


def experts_by_key(x: Tensor, scores: Tensor, expert_ids: Tensor, tokens: Tensor | None, weights: Weights, key: str) -> Tensor:
    """Runs moe_experts for the key of a configuration, with the weights in the order of the
    operators."""
    if not _ops.watched():
        given = _ops.short_experts(x, scores, expert_ids, tokens, weights, key) if x.dim() == 2 else None
        if given is not None:
            return given
    if _ops.eager(x, scores, *weights):
        return _ops.infer_experts(x, scores, expert_ids, tokens, weights, key)
    return _ops.experts(x, scores, expert_ids, tokens, *weights, key, True)[0]
