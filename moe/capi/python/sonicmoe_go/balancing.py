"""Load balancing without a loss, at the steps of an optimiser."""

from __future__ import annotations

import torch
from torch import nn

from ._library import ArgumentError
from .module import SonicMoE


def balance_selection(model: nn.Module, optimizer: torch.optim.Optimizer, rate: float = 1e-3, group=None):
    """Balances the experts of every SonicMoE of a model that has a selection bias, as DeepSeek-V3 does:

        sonicmoe_go.balance_selection(model, optimizer, rate=1e-3)

    Training passes count the tokens of each expert. After each step of the optimiser, the bias of
    an expert that had less than the mean grows by rate, and that of one that had more falls by
    rate. The host does not wait, and a CUDA graph can capture passes and steps.

    Passes count with gradients enabled; a pass that activation checkpointing repeats may count
    twice, which changes no step because it does so for every expert. If torch.distributed is initialised,
    the loads are summed over the ranks of group; None means all ranks. Biases must be
    torch.float32. Returns a handle whose remove() ends the updates.
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
    """Replaces the layers' loads by their sums over the ranks of a group."""
    ranks = torch.distributed
    if not (ranks.is_available() and ranks.is_initialized()) or ranks.get_world_size(group) == 1:
        return
    total = torch.cat([layer.loads for layer in layers])
    ranks.all_reduce(total, group=group)
    for layer, sum in zip(layers, total.split([layer.config.num_experts for layer in layers])):
        layer.loads.copy_(sum)
