"""Layers whose experts are spread over the ranks of a process group of torch.distributed.

On GPUs with an NCCL group, the library has an NCCL communicator of its own. With other groups, such
as gloo, the bytes go through host memory and the group's all_to_all_single.
"""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
import os
import secrets
import socket
import time
import weakref

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn.parallel import DistributedDataParallel

from . import _ops, _passes
from ._blocks import at
from ._device import name_of
from ._library import ArgumentError, Config, Error, _ConfigStruct, check, current, device, library
from ._weights import DTYPES, GRADIENT_TYPES, PER_EXPERT, ROUTER, WEIGHTS, Shapes, Weights, check_into, expert_shapes, shapes, want
from ._weights import check as check_weights

_Exchange = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int64), ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_int32),
)  # fmt: skip

# The coefficients of the balance loss and the z-loss, and the length of sequences.
Losses = tuple[float, float, int]

_Allocate = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int64)
_ALLOCATE = 1  # SM_ALLOCATE


class _Joining(ctypes.Structure):
    """The C struct sm_joining."""

    _fields_ = [
        ("size", ctypes.c_uint64),
        *((name, ctypes.c_int64) for name in ("rank", "ranks", "max_tokens", "chunks", "deadline_ms")),
        ("address", ctypes.c_char_p),
        ("token", ctypes.c_char_p),
        ("exchange", _Exchange),
        ("context", ctypes.c_void_p),
        ("allocate", _Allocate),
        ("partial_sums", ctypes.c_int64),
    ]


class _Sizes(ctypes.Structure):
    """The C struct sm_rank_sizes_of."""

    _fields_ = [("size", ctypes.c_uint64)] + [
        (name, ctypes.c_int64) for name in ("workspace", "backward_workspace", "saved", "counts", "first_expert", "experts")
    ]


@dataclasses.dataclass(frozen=True)
class Spread:
    """How a layer's experts are spread: the process group, the largest number of tokens of a rank,
    the number of chunks of an exchange (0 for a choice by size), the deadline in seconds, and whether
    ranks send partial sums."""

    group: dist.ProcessGroup
    max_tokens: int
    chunks: int = 0
    deadline: float = 60.0
    partial_sums: bool = False

    def experts(self, c: Config) -> tuple[int, int]:
        """Returns the number of this rank's first expert, and the number of its experts."""
        rank, ranks = dist.get_rank(self.group), dist.get_world_size(self.group)
        first, end = (r * c.num_experts // ranks for r in (rank, rank + 1))
        return first, end - first

    def shapes(self, c: Config) -> Shapes:
        """Returns names, types and shapes of WEIGHTS on this rank."""
        count = self.experts(c)[1]
        if not count:
            raise ArgumentError(f"num_experts is {c.num_experts}, must be at least {dist.get_world_size(self.group)}, the number of ranks")
        own = dataclasses.replace(c, num_experts=count, top_k=min(c.top_k, count), groups=0, top_groups=0)
        return shapes(c)[: len(ROUTER)] + expert_shapes(own)


def spread(c: Config, group, max_tokens: int, chunks: int, deadline: float, partial_sums: bool) -> tuple[Spread, DeviceMesh | None]:
    """Returns how the experts of a layer are spread over a process group or a mesh, and the
    mesh."""
    mesh = group if isinstance(group, DeviceMesh) else None
    if mesh is not None:
        if mesh.ndim != 1:
            raise ArgumentError(f"the mesh has {mesh.ndim} dimensions, must have 1: give a part of it, such as mesh['experts']")
        group = mesh.get_group()
        if c.num_experts % mesh.size():
            raise ArgumentError(f"num_experts is {c.num_experts}, must be a multiple of the mesh's {mesh.size()} ranks: a DTensor has equal parts")
    if not isinstance(group, dist.ProcessGroup):
        raise ArgumentError(f"group is {group!r:.60}, must be a process group or a DeviceMesh of torch.distributed")
    if not isinstance(max_tokens, int) or max_tokens < 1:
        raise ArgumentError(f"max_tokens is {max_tokens!r}, must be the largest number of tokens of a rank in a pass")
    of = Spread(group, max_tokens, chunks, deadline, partial_sums)
    of.shapes(c)  # raises if a rank would have no expert
    return of, mesh


def placed(w: Tensor, mesh: DeviceMesh) -> DTensor:
    """Returns a DTensor of the experts of all ranks. w is this rank's part of it."""
    return DTensor.from_local(w, mesh, [Shard(0)], run_check=False)


def backend(group: dist.ProcessGroup, device: str) -> str:
    """Returns the backend of a group for tensors on a kind of device, such as "nccl" for "cuda", or "". A group made
    without the name of a backend, as init_device_mesh makes it, has one for each kind."""
    return dict(pair.split(":") for pair in dist.get_backend_config(group).split(",")).get(device, "")


def equalise(layer, group: dist.ProcessGroup) -> None:
    """Gives the weights of a SonicMoE that all ranks have, the router and the shared experts, the values of rank 0."""
    src = dist.get_global_rank(group, 0)
    for i, path in layer._paths:
        w = at(layer, path)
        if WEIGHTS[i] in PER_EXPERT or w.is_meta:
            continue
        if not backend(group, w.device.type):  # such as a CPU tensor in a group of NCCL
            of = [w.detach()]
            dist.broadcast_object_list(of, src=src, group=group)
            w.data.copy_(of[0])
        else:
            dist.broadcast(w.data, src=src, group=group)


def _own_address() -> str:
    """Returns the address of this host in the network of the job's master."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect((os.environ.get("MASTER_ADDR") or "127.0.0.1", 1))  # sends nothing
        return s.getsockname()[0]


def _meeting(group: dist.ProcessGroup) -> tuple[str, str]:
    """Returns the address on which the library of rank 0 listens, and a token that the ranks
    know."""
    of: list[str | None] = [None, None]
    if dist.get_rank(group) == 0:
        host = _own_address()
        with socket.create_server((host, 0)) as s:
            of = [f"{host}:{s.getsockname()[1]}", secrets.token_hex(16)]
    dist.broadcast_object_list(of, src=dist.get_global_rank(group, 0), group=group)
    return of[0], of[1]


class Rank:
    """This rank's part of a layer on one device. It exists until the process ends."""

    def __init__(self, c: Config, of: Spread, name: str):
        self.config, self.of, self.failed = c, of, None
        self.rank, self.ranks = dist.get_rank(of.group), dist.get_world_size(of.group)
        self.device = device(name)
        address, token = _meeting(of.group)
        by_nccl = name.startswith("cuda") and backend(of.group, "cuda") == "nccl"
        # The library keeps the addresses of the functions, so the functions must not be freed.
        self._exchange = _Exchange() if by_nccl else _Exchange(self._exchanged)
        self._allocate = _Allocate(self._allocated)
        joining = _Joining(
            size=ctypes.sizeof(_Joining), rank=self.rank, ranks=self.ranks, max_tokens=of.max_tokens, chunks=of.chunks,
            deadline_ms=int(of.deadline * 1000), address=address.encode(), token=token.encode(), exchange=self._exchange,
            allocate=self._allocate, partial_sums=int(of.partial_sums),
        )  # fmt: skip
        lib, out = library(), ctypes.c_uint64()
        self._check(lib.sm_join(self.device, _ConfigStruct.of(c), ctypes.byref(joining), out))
        self.handle = out.value
        atexit.register(lib.sm_close, self.handle)
        self.sizes = _Sizes(size=ctypes.sizeof(_Sizes))
        check(lib.sm_rank_sizes(self.handle, ctypes.byref(self.sizes)))

    def _check(self, status: int) -> None:
        """Raises the library's error, with the reason why the group's exchange failed."""
        try:
            check(status)
        except Error as err:
            raise err from self.failed

    def _exchanged(self, _, send, send_bytes, receive, receive_bytes, stop) -> int:
        """Exchanges host memory by all_to_all_single. Returns 0, or 1 if it fails or must stop."""
        try:
            out, into = send_bytes[: self.ranks], receive_bytes[: self.ranks]
            # A stopped exchange may go on after the library has freed its memory, so the exchange has
            # tensors of its own.
            sent, got = torch.empty(sum(out), dtype=torch.uint8), torch.empty(sum(into), dtype=torch.uint8)
            ctypes.memmove(sent.data_ptr(), send, sum(out))
            work = dist.all_to_all_single(got, sent, into, out, group=self.of.group, async_op=True)
            pause = 1e-5
            while not work.is_completed():
                if stop[0]:
                    return 1
                time.sleep(pause)
                pause = min(pause * 1.5, 1e-3)
            work.wait()
            ctypes.memmove(receive, got.data_ptr(), sum(into))
            return 0
        except Exception as err:  # no exception may reach the library
            self.failed = err
            return 1

    def _allocated(self, _, size: int) -> int:
        """Allocates what the present pass saves. Returns its address, or 0 if it fails."""
        try:
            self._saved = self._x.new_empty(size, dtype=torch.uint8)
            return self._place.written(self._saved)
        except Exception as err:  # no exception may reach the library
            self.failed = err
            return 0

    def forward(self, x: Tensor, weights: Weights, saves: bool, logits: bool):
        """Runs a forward pass. Returns o, scores, ids, logits, and the buffer and the counts that
        the pass saves."""
        c, t = self.config, x.shape[0]
        if t > self.of.max_tokens:
            raise ArgumentError(f"x has {t} tokens, must have {self.of.max_tokens} at most, the layer's max_tokens")
        o, scores = torch.empty_like(x), x.new_empty((t, c.top_k), dtype=torch.float32)
        ids, l_out = torch.empty_like(scores, dtype=torch.int32), x.new_empty((t, c.num_experts), dtype=DTYPES[c.logits]) if logits else None
        counts = torch.empty(self.sizes.counts, dtype=torch.int64)
        workspace = x.new_empty(self.sizes.workspace, dtype=torch.uint8)
        self._x, self._saved = x, x.new_empty(0, dtype=torch.uint8) if saves else None
        with _passes.place(self, x) as p:
            self._place = p
            packed = _passes.packed_forward(
                tokens=t, stream=p.stream, workspace=p.written(workspace), workspace_bytes=workspace.numel(), x=p.read(x), scores=p.written(scores),
                expert_ids=p.written(ids), logits=p.written(l_out), o=p.written(o), h=_ALLOCATE if saves else 0, **dict(zip(WEIGHTS, p.read_all(weights))),
            )  # fmt: skip
            self._check(library().sm_rank_forward(self.handle, packed, counts.data_ptr()))
        saved, self._x, self._saved, self._place = self._saved, None, None, None
        return o, scores, ids, l_out, saved, counts

    def backward(self, d_o, d_logits, x, weights: Weights, kept, losses, dx, gradients: Weights, into: Weights) -> None:
        """Runs a backward pass. The gradients of WEIGHTS are written to the tensors of gradients, or
        added to the tensors of into. losses has the coefficients of the losses and the length of
        sequences."""
        scores, ids, logits, saved, counts = kept
        workspace = x.new_empty(self.sizes.backward_workspace, dtype=torch.uint8)
        with _passes.place(self, x) as p:
            given = {name: at for name, at in zip(WEIGHTS, p.read_all(weights)) if name in _passes.BACKWARD}
            for name, g, added in zip(WEIGHTS, gradients, into, strict=True):
                to = g if added is None else added
                if to is not None:
                    given["d_" + name] = p.written(to), GRADIENT_TYPES[to.dtype], added is not None
            packed = _passes.packed_backward(
                tokens=x.shape[0], stream=p.stream, workspace=p.written(workspace), workspace_bytes=workspace.numel(), x=p.read(x), scores=p.read(scores),
                expert_ids=p.read(ids), logits=p.read(logits), d_o=p.read(d_o), h=p.read(saved), dx=p.written(dx), d_logits=p.read(d_logits),
                balance=losses[0], z_loss=losses[1], sequence=losses[2], **given,
            )  # fmt: skip
            self._check(library().sm_rank_backward(self.handle, packed, counts.data_ptr()))

    def wait(self, x: Tensor) -> None:
        """Waits for the passes on the current stream of x's device."""
        with _passes.place(self, x) as p:
            self._check(library().sm_rank_wait(self.handle, p.stream))


def rank_of(c: Config, of: Spread, x: Tensor) -> Rank:
    """Returns this rank's part of a layer on the device of x. All layers of one configuration have the
    same Rank. The first call joins the group, so all ranks must make this call."""
    key = c.key, of, name_of(x)
    found = current.ranks.get(key)
    if found is None:
        found = current.ranks[key] = Rank(c, of, name_of(x))
    return found


class _Pass(torch.autograd.Function):
    """A pass over ranks, with its gradients."""

    @staticmethod
    def forward(ctx, rank: Rank, saves: bool, logits: bool, losses: Losses, loads: Tensor | None, x: Tensor, *weights: Tensor | None):
        c = rank.config
        o, scores, ids, l_out, saved, counts = rank.forward(x, weights, saves, logits or saves and (c.saves_logits or any(losses[:2])))
        if loads is not None:
            _ops.loads(ids, loads, c.key)
        if saves:
            ctx.save_for_backward(x, *weights, scores, ids, l_out, saved, counts)
        ctx.rank, ctx.losses = rank, losses
        ctx.set_materialize_grads(False)
        return o, l_out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_o, d_logits):
        x, *tensors = ctx.saved_tensors
        weights, kept = tensors[: len(WEIGHTS)], tensors[len(WEIGHTS) :]
        _, _, _, _, _, wants_dx, *wanted = ctx.needs_input_grad
        into = [getattr(w, "main_grad", None) if wants else None for w, wants in zip(weights, wanted)]
        check_into(WEIGHTS, weights, into)
        gradients = [torch.empty_like(w) if wants and main is None else None for w, wants, main in zip(weights, wanted, into)]
        d_o = torch.zeros_like(x) if d_o is None else d_o.contiguous()
        want("the gradient of o", d_o, x.dtype, x.shape, x.device)
        if d_logits is not None:
            d_logits = d_logits.float().contiguous()
        dx = torch.empty_like(x) if wants_dx else None
        ctx.rank.backward(d_o, d_logits, x, weights, kept, ctx.losses, dx, gradients, into)
        for w, main in zip(weights, into):
            if main is not None:
                w.grad_added_to_main_grad = True
        return None, None, None, None, None, dx, *gradients


# The ids of the parameters that each DDP module holds.
_held: weakref.WeakKeyDictionary[nn.Module, frozenset[int]] = weakref.WeakKeyDictionary()


def refuse_wrappers(layer) -> None:
    """Raises an error if DDP or FSDP holds the experts of a spread SonicMoE: DDP gives all ranks the experts of rank 0,
    and FSDP mixes the experts of all ranks. The function reads private names of torch. If torch lacks one, the function
    does not raise the error."""
    ddp = getattr(DistributedDataParallel, "_get_active_ddp_module", lambda: None)()
    if ddp is not None and ddp not in _held:
        _held[ddp] = frozenset(map(id, getattr(ddp, "_module_parameters", ())))
    for i, (modules, name) in layer._paths:
        if WEIGHTS[i] not in PER_EXPERT:
            continue
        m = layer.get_submodule(".".join(modules))
        path = ".".join((*modules, name))
        if ddp is not None and id(m._parameters.get(name)) in _held[ddp]:
            raise ArgumentError(
                f"DistributedDataParallel holds {path} of a SonicMoE whose experts are spread over ranks, must leave it out: all ranks have the experts of "
                "rank 0. Make the layer without group, and give the module that DistributedDataParallel will wrap to shard_experts"
            )
        # FSDP registers a hook with the module of each parameter that it shards.
        if any("fsdp" in getattr(hook, "__module__", "") for hook in m._load_state_dict_post_hooks.values()):
            raise ArgumentError(
                f"FSDP holds {path} of a SonicMoE whose experts are spread over ranks, must leave it out: each rank has a mixture of all ranks' experts. "
                "Call fully_shard with ignored_params=set(layer.parameters())"
            )


@torch.compiler.disable
def moe_over_ranks(
    layer, x: Tensor, weights: Weights, c: Config, of: Spread, logits: bool, losses: Losses, loads: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Returns output and logits of a pass of a layer over ranks, for this rank's tokens x [T, d] and weights.
    The backward pass adds the gradients of losses. Unless loads is None, the pass adds to it the number of this rank's tokens that chose each expert.
    torch.compile does not compile the pass, but the code before and after it."""
    refuse_wrappers(layer)
    weights = [w.to_local() if isinstance(w, DTensor) else w for w in weights]
    check_weights(c, x, of.shapes(c), weights)
    # Within a Function, autograd is off, and its needs_input_grad does not tell whether it was on.
    saves = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, *weights))
    o, l_out = _Pass.apply(rank_of(c, of, x), saves, logits, losses, loads, x, *weights)
    return o, l_out if logits else None
