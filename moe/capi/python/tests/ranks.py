"""One rank of a group over gloo, on the emulated device: the functions that test_ranks.py runs in
processes."""

import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate

import sonicmoe_go


def main(body: str, rank: int, ranks: int, folder: str) -> None:
    """Joins the group, runs a function of this file, and stores its result or its error."""
    sonicmoe_go.emulate()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    try:
        torch.save(globals()[body](rank, ranks, Path(folder)), f"{folder}/result{rank}")
    except Exception:
        Path(folder, f"error{rank}").write_text(traceback.format_exc())
        raise


SIZES = dict(hidden=64, intermediate=48, num_experts=8, top_k=3)
TOKENS = [13, 0, 21, 9]


def inputs(rank: int, ranks: int):
    """Returns this rank's tokens and the gradient of its outputs, which are parts of the same
    numbers for all ranks."""
    torch.manual_seed(7)
    counts = TOKENS[: ranks - 1] + [sum(TOKENS[ranks - 1 :])] if ranks else [sum(TOKENS)]
    x, d_o = (torch.randn(sum(TOKENS), SIZES["hidden"]).bfloat16() for _ in range(2))
    if not ranks:
        return x, d_o
    return x.split(counts)[rank], d_o.split(counts)[rank]


def step(layer, x, d_o) -> dict:
    """Returns the output of a training pass, and all gradients."""
    x = x.clone().requires_grad_()
    o = layer(x)
    o.backward(d_o)
    return {"o": o.detach(), "x": x.grad} | {name: p.grad for name, p in layer.named_parameters() if p.grad is not None}


def whole(**config) -> sonicmoe_go.SonicMoE:
    torch.manual_seed(3)
    return sonicmoe_go.SonicMoE(**(SIZES | config))


def local(t: torch.Tensor) -> torch.Tensor:
    return t.to_local() if hasattr(t, "to_local") else t


def train(rank, ranks, folder):
    """Trains a layer with biases and expert scales for one step."""
    return step(sonicmoe_go.shard_experts(whole(bias=True, router_bias=True, expert_scale=True), dist.group.WORLD, max_tokens=64), *inputs(rank, ranks))


def sums(rank, ranks, folder):
    """Trains a layer whose ranks send partial sums for one step."""
    return step(sonicmoe_go.shard_experts(whole(), dist.group.WORLD, max_tokens=64, partial_sums=True), *inputs(rank, ranks))


def sharded(ranks) -> sonicmoe_go.SonicMoE:
    return sonicmoe_go.shard_experts(whole(), dist.init_device_mesh("cpu", (ranks,)), max_tokens=64)


def save(rank, ranks, folder):
    """Trains a layer of DTensors with an optimiser for two steps, compiled, and saves it after the
    first one. Returns the second step."""
    layer = sharded(ranks)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, foreach=False)
    x, d_o = inputs(rank, ranks)
    compiled = torch.compile(lambda x: layer(x * 2) + 1, backend="aot_eager")
    compiled(x / 2).backward(d_o)
    optimizer.step()
    checkpoint.save({"layer": layer.state_dict()}, checkpoint_id=folder / "saved")
    return after(layer, x, d_o)


def load(rank, ranks, folder):
    """Loads what save has saved on another number of ranks, and makes the second step."""
    layer = sharded(ranks)
    with torch.no_grad():
        for p in layer.parameters():
            local(p).fill_(float("nan"))
    state = {"layer": layer.state_dict()}
    checkpoint.load(state, checkpoint_id=folder / "saved")
    layer.load_state_dict(state["layer"])
    return after(layer, *inputs(rank, ranks))


def after(layer, x, d_o):
    layer.zero_grad()
    return {name: local(t) for name, t in step(layer, x, d_o).items()}


def fresh(rank, ranks, folder):
    """Makes layers by the constructor. Returns their experts, the loads of a pass, and the error of logits."""
    torch.manual_seed(5)
    layer = sonicmoe_go.SonicMoE(**SIZES, selection_bias=True, score="sigmoid", group=dist.group.WORLD, max_tokens=64)
    layer.count_loads()
    x, d_o = inputs(rank, ranks)
    layer(x).backward(d_o)
    with torch.no_grad():
        o, logits = layer.with_logits(x)
    dist.all_reduce(layer.loads)
    want = x.float() @ layer.gate.weight.float().T
    return {"w1": layer.experts.gate_up_proj.detach(), "loads": layer.loads, "logits": (logits - want).abs().max() if len(x) else 0, "next": torch.rand(3)}


class Between(torch.nn.Module):
    """A module between two linear modules."""

    def __init__(self, moe):
        super().__init__()
        self.moe = moe
        self.first, self.last = (torch.nn.Linear(SIZES["hidden"], SIZES["hidden"]).bfloat16() for _ in range(2))

    def forward(self, x):
        return self.last(x + self.moe(self.first(x)))


def sharded_by_fsdp(mesh) -> Between:
    """Returns Between, whose linear modules FSDP shards, with gradients that are sums over the ranks."""
    model = sonicmoe_go.shard_experts(Between(whole()), mesh, max_tokens=64)
    fully_shard(model, mesh=mesh, ignored_params=set(model.moe.parameters()))
    model.set_gradient_divide_factor(1.0)
    model.set_force_sum_reduction_for_comms(True)  # gloo cannot divide
    return model


def fsdp(rank, ranks, folder):
    """Trains Between with FSDP for one step. Returns whole gradients, but this rank's experts."""
    got = step(sharded_by_fsdp(dist.init_device_mesh("cpu", (ranks,))), *inputs(rank, ranks))
    return {name: local(t) if "experts" in name or not hasattr(t, "full_tensor") else t.full_tensor() for name, t in got.items()}


def ddp(rank, ranks, folder):
    """Trains Between, whose linear modules DDP copies, for one step. DDP's gradients are means over the ranks."""
    model = sonicmoe_go.shard_experts(Between(whole()), dist.group.WORLD, max_tokens=64)
    got = step(torch.nn.parallel.DistributedDataParallel(model), *inputs(rank, ranks))
    return {name.removeprefix("module."): t if name in ("o", "x") or "moe." in name else t * ranks for name, t in got.items()}


def unseeded(rank, ranks, folder):
    """Makes layers whose random numbers differ by rank. Returns their weights that all ranks have."""
    torch.manual_seed(rank)
    config = SIZES | dict(shared_experts=1, selection_bias=True, score="sigmoid")
    new, old = sonicmoe_go.SonicMoE(**config, group=dist.group.WORLD, max_tokens=64), sonicmoe_go.SonicMoE(**config)
    for layer in (new, old):
        layer.gate.e_score_correction_bias.fill_(rank)
    first, config_of = old.gate.weight.clone(), dist.get_backend_config
    dist.get_backend_config = lambda group: "cuda:nccl"  # NCCL does not move the memory of CPU tensors
    sonicmoe_go.shard_experts(old, dist.group.WORLD, max_tokens=64)
    dist.get_backend_config = config_of
    shared = {n + str(i): t for i, layer in enumerate((new, old)) for n, t in layer.state_dict().items() if not n.startswith("experts.")}
    return {"first": first, "experts": new.experts.down_proj.detach(), "shared": shared}


def clip(rank, ranks, folder):
    """Trains models for one step and clips their gradients. Returns the norm and this rank's gradients of each model."""
    mesh = dist.init_device_mesh("cpu", (ranks,))
    found = {}
    for name, model in (("fsdp", sharded_by_fsdp(mesh)), ("mesh", sharded(ranks)), ("group", sonicmoe_go.shard_experts(whole(), dist.group.WORLD, max_tokens=64))):
        step(model, *inputs(rank, ranks))
        norm = sonicmoe_go.clip_grad_norm_(model, 2.0)
        grads = {n: p.grad for n, p in model.named_parameters()}
        found[name] = norm, {n: local(g) if "experts" in n or not hasattr(g, "full_tensor") else g.full_tensor() for n, g in grads.items()}
    one = torch.nn.Module()  # a parameter that all ranks have, and a gradient that is the sum of the ranks' tensors
    one.w = torch.nn.Parameter(DTensor.from_local(torch.ones(4, dtype=torch.float64), mesh, [Replicate()]))
    one.w.grad = DTensor.from_local(torch.full((4,), rank + 1.0, dtype=torch.float64), mesh, [Partial()])
    found["partial"] = sonicmoe_go.clip_grad_norm_(one, 1.0), one.w.grad.full_tensor()
    return found


def wrapped(rank, ranks, folder):
    """Returns the error of a forward pass of each module that DDP or FSDP wraps, or "" if there is none."""
    ddp, x = torch.nn.parallel.DistributedDataParallel, inputs(rank, ranks)[0]

    def spread():
        return sonicmoe_go.SonicMoE(**SIZES, group=dist.group.WORLD, max_tokens=64)

    def sharded(module):
        return sonicmoe_go.shard_experts(module, dist.group.WORLD, max_tokens=64)

    def without_experts(model):
        ddp._set_params_and_buffers_to_ignore_for_model(model, [n for n, _ in model.named_parameters() if "experts" in n])
        return model

    found = {}

    def run(name, module):
        try:
            module(x)
            found[name] = ""
        except sonicmoe_go.ArgumentError as err:
            found[name] = str(err)

    run("whole model", ddp(Between(spread())))
    run("layer alone", ddp(spread()))
    run("static graph", ddp(Between(spread()), static_graph=True))
    model = ddp(Between(spread()))
    with model.no_sync():
        run("no sync", model)
    with torch.no_grad():
        run("evaluation", model.eval())
    run("module within", ddp(Between(sharded(Between(whole())))))
    fsdp = Between(spread())
    fully_shard(fsdp, mesh=dist.init_device_mesh("cpu", (ranks,)))
    run("fsdp", fsdp)
    run("right", ddp(sharded(Between(whole()))))
    run("right, static graph", ddp(sharded(Between(whole())), static_graph=True))
    run("right, ignored by name", ddp(without_experts(Between(spread()))))
    run("right, after an error", spread())
    del ddp._get_active_ddp_module
    run("right, for a torch that lacks the name", model)
    return found


LOSSES = dict(shared_experts=1, shared_gate=True, balance=0.1, z_loss=0.05)


def shared(rank, ranks, folder):
    """Trains a layer with a shared expert, its gate, and losses on the router."""
    return step(sonicmoe_go.shard_experts(whole(**LOSSES), dist.group.WORLD, max_tokens=64), *inputs(rank, ranks))


def sequences(rank, ranks, folder):
    """Trains a layer with a balance loss of sequences of six tokens, each on one rank."""
    layer = sonicmoe_go.shard_experts(whole(balance=0.1, balance_by="sequence"), dist.group.WORLD, max_tokens=64)
    return step(layer, *(t.split([2, 5])[rank] for t in in_sequences()))


def in_sequences():
    return [t[:42].view(7, 6, -1) for t in inputs(0, 0)]


def adapted() -> sonicmoe_go.SonicMoE:
    """Returns a layer of random MXFP4 weights with an adapter."""
    layer = whole(weights="mxfp4", intermediate=64, shared_experts=1)
    random = torch.Generator().manual_seed(9)
    for name, p in layer.named_parameters():
        if p.dtype == torch.uint8:
            low, high = (118, 122) if "scales" in name else (0, 256)
            p.data.copy_(torch.randint(low, high, p.shape, generator=random))
    layer.add_lora(6, 12.0)
    for factor in layer.factors().values():
        factor.data.copy_(torch.randn(factor.shape, generator=random) / 8)
    return layer


def adapter(rank, ranks, folder):
    """Trains the adapter of packed experts, as DTensors."""
    layer = sonicmoe_go.shard_experts(adapted(), dist.init_device_mesh("cpu", (ranks,)), max_tokens=64)
    return {name: local(t) for name, t in step(layer, *inputs(rank, ranks)).items()}


def endless(rank, ranks, folder):
    """Trains until an error ends it."""
    layer = sonicmoe_go.shard_experts(whole(), dist.group.WORLD, max_tokens=64, deadline=DEADLINE)
    x, d_o = inputs(rank, ranks)
    while True:
        step(layer, x, d_o)
        layer.wait_for_ranks()
        Path(folder, f"ready{rank}").touch()


DEADLINE = 20.0


def asleep(rank, ranks, folder):
    """Trains until the deadline ends it. Rank 1 sleeps before its second step."""
    layer = sonicmoe_go.shard_experts(whole(), dist.group.WORLD, max_tokens=64, deadline=1.0)
    x, d_o = inputs(rank, ranks)
    for turn in range(2):
        if turn and rank == 1:
            time.sleep(3)
        layer(x)
