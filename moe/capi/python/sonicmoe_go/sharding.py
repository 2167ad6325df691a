"""Spreads the experts of layers over the ranks of a DeviceMesh, and clips the gradients of such layers."""

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

    mesh is a DeviceMesh of one dimension, or a process group. All ranks must make this call. Each rank keeps its part
    of its experts and of their adapter. The router and the shared experts get the values of rank 0, as DDP does it for
    the other parameters, but weights on the device meta get none: give them values first. With a mesh, the experts'
    parameters become DTensors with the placement Shard(0), so torch.distributed.checkpoint saves them on one number of
    ranks and loads them on another. All other parameters stay as they are. See SonicMoE for the other arguments.

    The gradients of a spread layer are complete: sums over the tokens of all ranks. FSDP and DDP must leave its
    parameters out, because they would add these gradients, or give all ranks the experts of one. DDP leaves them out
    if it wraps this module, and makes the other gradients means, which the caller multiplies by the number of ranks.
    FSDP has an argument for it. If DDP or fully_shard holds the experts nevertheless, a forward pass raises an error:

        spread = {p for m in model.modules() if isinstance(m, SonicMoE) for p in m.parameters()}
        fully_shard(model, mesh=mesh, ignored_params=spread)
        model.set_gradient_divide_factor(1.0)

    All gradients are then sums over the ranks, if each rank divides its loss by the number of tokens of all ranks.
    """
    from ._ranks import equalise  # not every torch has torch.distributed

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
        equalise(layer, layer._spread.group)
    spread = [f"{path}.{name}".lstrip(".") for path, m in module.named_modules() if isinstance(m, SonicMoE) for name, _ in m.named_parameters()]
    # DDP reads this attribute of the module that it wraps.
    module._ddp_params_and_buffers_to_ignore = [*getattr(module, "_ddp_params_and_buffers_to_ignore", ()), *spread]
    return module


@torch.no_grad()
def clip_grad_norm_(module: nn.Module, max_norm: float) -> torch.Tensor:
    """Scales the gradients of a module with spread layers so that their norm over all ranks is at most max_norm, and
    returns the norm before, FP32. All ranks must call it, after all gradients are complete.

    torch.nn.utils.clip_grad_norm_ does not suit such a module: each rank has other experts, and so another norm and
    another factor for the parameters that all ranks share. Here the norm has each expert once. All other plain
    parameters must have the same gradient on all ranks, as under DDP, and count once. All shards of a DTensor count,
    as under FSDP. All ranks must have the same parameters that require a gradient. Gradients in main_grad do not count.
    """
    from torch.distributed.tensor import DTensor

    groups = {}  # the group of each plain expert: with a mesh experts are DTensors
    for layer in (m for m in module.modules() if isinstance(m, SonicMoE) and m._spread is not None):
        for i, (modules, name) in layer._paths:
            if WEIGHTS[i] in PER_EXPERT:
                groups[getattr(layer.get_submodule(".".join(modules)), name)] = (layer._spread.group,)
    squares, found = {}, []  # sums of squares by device and by the groups over which they are summed
    for p in module.parameters():
        if not p.requires_grad:
            continue
        over, g = groups.get(p, ()), p.grad
        if isinstance(p, DTensor):
            over = tuple(p.device_mesh.get_group(i) for i, of in enumerate(p.placements) if not of.is_replicate())
        of = squares.setdefault((p.device, over), [])
        if g is None:  # it counts as 0, so that all ranks make the same sums
            of.append(torch.zeros((), device=p.device))
            continue
        if isinstance(g, DTensor):
            found.append(g.to_local())
            g = g.redistribute(placements=p.placements).to_local()  # a gradient can be Partial where p is Replicate
        else:
            found.append(g)
        of.append(torch.linalg.vector_norm(g, dtype=torch.promote_types(g.dtype, torch.float32)).float().square())
    total = torch.zeros(())
    for (_, over), of in squares.items():
        part = torch.stack(of).sum()
        for group in over:
            torch.distributed.all_reduce(part, group=group)
        total = total.to(part.device) + part
    norm = total.sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for g in found:
        g.mul_(factor.to(g.device))
    return norm
