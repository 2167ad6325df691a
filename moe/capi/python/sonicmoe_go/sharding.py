"""Spreads the experts of layers over the ranks of a DeviceMesh."""

from __future__ import annotations

import torch
from torch import nn

from ._library import ArgumentError
from ._weights import PER_EXPERT, WEIGHTS
from .module import SonicMoE


@torch.no_grad()
def shard_experts(module: nn.Module, mesh, *, max_tokens: int, chunks: int = 0, deadline: float = 60.0, partial_sums: bool = False) -> nn.Module:
    """Spreads the experts of every SonicMoE in a module over ranks, and returns the module:

        mesh = torch.distributed.init_device_mesh("cuda", (8,))
        sonicmoe_go.shard_experts(model, mesh, max_tokens=4096)

    mesh is a DeviceMesh of one dimension, or a process group. All ranks must have the same weights.
    Each rank keeps its part of the experts and of their adapter. With a mesh, the experts' parameters become DTensors
    with the placement Shard(0), so torch.distributed.checkpoint saves them on one number of ranks
    and loads them on another. All other parameters stay as they are. See SonicMoE for the other
    arguments.

    The gradients of a spread layer are complete: sums over the tokens of all ranks. FSDP and DDP must leave its
    parameters out, because they would add these gradients, or give all ranks the experts of one. DDP leaves them out
    if it wraps this module. FSDP has an argument for it. If DDP or fully_shard holds the experts nevertheless, a
    forward pass raises an error:

        spread = {p for m in model.modules() if isinstance(m, SonicMoE) for p in m.parameters()}
        fully_shard(model, mesh=mesh, ignored_params=spread)
        model.set_gradient_divide_factor(1.0)

    All gradients are then sums over the ranks, if each rank divides its loss by the number of tokens of all ranks.
    """
    layers = [m for m in module.modules() if isinstance(m, SonicMoE)]
    if not layers:
        raise ArgumentError(f"{type(module).__name__} has no SonicMoE, must have one at least")
    for layer in layers:
        if layer._spread is not None:
            raise ArgumentError("the experts of a SonicMoE are spread over ranks already, must be whole")
        if any(WEIGHTS[i] in PER_EXPERT for i, *_ in layer._reads):
            raise ArgumentError("the experts of a DbrxFFN are rows of one matrix, must have a dimension of their own to be spread")
        layer._spread_over(mesh, max_tokens, chunks, deadline, partial_sums)
        first, count = layer._spread.experts(layer.config)
        layer._factors = tuple((i, dtype, (count, *shape[1:])) for i, dtype, shape in layer._factors)
        for i, (modules, name) in layer._paths:
            if WEIGHTS[i] in PER_EXPERT:
                of = layer.get_submodule(".".join(modules))
                w = getattr(of, name)
                part = w.detach()[first : first + count].clone()
                of.register_parameter(name, nn.Parameter(part, requires_grad=w.requires_grad))
                layer._place(WEIGHTS[i])
    spread = [f"{path}.{name}".lstrip(".") for path, m in module.named_modules() if isinstance(m, SonicMoE) for name, _ in m.named_parameters()]
    # DDP reads this attribute of the module that it wraps.
    module._ddp_params_and_buffers_to_ignore = [*getattr(module, "_ddp_params_and_buffers_to_ignore", ()), *spread]
    return module
