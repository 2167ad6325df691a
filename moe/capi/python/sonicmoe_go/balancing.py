"""Load balancing without a loss, by a hook of an optimiser's steps."""

from __future__ import annotations

import torch
from torch import nn

from ._library import ArgumentError
from .module import SonicMoE


def balance_selection(model: nn.Module, optimizer: torch.optim.Optimizer, rate: float = 1e-3, group=None):
    """Balances the experts of every SonicMoE of a model that has a selection bias, as DeepSeek-V3
    does:

        sonicmoe_go.balance_selection(model, optimizer, rate=1e-3)

    Training passes count the tokens of each expert. After each step of the optimiser, the bias of
    an expert with fewer tokens than the mean grows by rate. The bias of an expert with more tokens
    falls by rate. The host does not wait, and a CUDA graph can capture passes and steps.

    Only passes with gradients enabled count tokens. Activation checkpointing may repeat a pass,
    which then counts its tokens twice. This changes no step, because it doubles the count of every
    expert.

    If torch.distributed is initialised, the loads are summed over the ranks of group; None means
    all ranks. Biases must be torch.float32. Returns a handle whose remove() ends the updates.
    """
    layers = [m for m in model.modules() if isinstance(m, SonicMoE) and m.config.selection_bias]
    if not layers:
        raise ArgumentError("the model has no SonicMoE with a selection bias, must have one at least")
    for layer in layers:
        layer.count_loads()

    @torch.no_grad()
    def step(*_) -> None:
        _sum_over_ranks(layers, group)
        for layer in layers:
            layer.update_selection_bias(rate)

    return optimizer.register_step_post_hook(step)


def _sum_over_ranks(layers: list[SonicMoE], group) -> None:
    """Replaces the loads of the layers by their sums over the ranks of a group."""
    ranks = torch.distributed
    if not (ranks.is_available() and ranks.is_initialized()) or ranks.get_world_size(group) == 1:
        return
    total = torch.cat([layer.loads for layer in layers])
    ranks.all_reduce(total, group=group)
    for layer, sum in zip(layers, total.split([layer.config.num_experts for layer in layers])):
        layer.loads.copy_(sum)
