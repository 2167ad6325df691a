"""The operators sonicmoe_go::*: what torch.compile, autograd and CUDA graphs see."""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from ._device import Emulated, Gpu, name_of
from ._library import ArgumentError, Config, Layer, layer

_DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
_TYPES = {torch.bfloat16: 0, torch.float32: 1}

# sm_forward_pass and sm_backward_pass.
_FORWARD = struct.Struct("=QqQQq 4Q 3Q 2Q qQ 4Q")
_BACKWARD = struct.Struct("=QqQQq 4Q 3Q 2Q 4Q QiiQiiQii 2d qQ 4Q QiiQiiQiiQii")

# The weights of experts, in the operators' order. What a configuration has none of is None.
WEIGHTS = ("w1", "w3", "w2", "b1", "b3", "b2")
_SCHEMA = "Tensor w1, Tensor? w3, Tensor w2, Tensor? b1, Tensor? b3, Tensor? b2"
_INTO = tuple("into_" + w for w in WEIGHTS)
_INTO_SCHEMA = ", ".join(f"Tensor({'abcdef'[i]}!)? {name}" for i, name in enumerate(_INTO))


def _want(field: str, t: Tensor, dtype: torch.dtype, shape: tuple, device: torch.device) -> None:
    """Refuses a tensor that the kernels would misread."""
    if t.dtype is not dtype:
        raise ArgumentError(f"{field} is {t.dtype}, must be {dtype}")
    if t.shape != shape:
        raise ArgumentError(f"{field} is {list(t.shape)}, must be {list(shape)}")
    if t.device != device:
        raise ArgumentError(f"{field} is on {t.device}, must be on {device}, where x is")
    if not t.is_contiguous():
        raise ArgumentError(f"{field} has strides {t.stride()}, must be contiguous")


def weight_shapes(c: Config) -> tuple[tuple | None, ...]:
    """The shapes of WEIGHTS; None is what the configuration has none of."""
    e, d, n, apart = c.num_experts, c.hidden, c.intermediate, c.gate_up == "apart"
    rows = n if apart else c.h_width
    turned = c.weight_order == "in-out"
    up, down = ((e, d, rows), (e, n, d)) if turned else ((e, rows, d), (e, d, n))
    b1, b2 = ((e, rows), (e, d)) if c.bias else (None, None)
    return up, up if apart else None, down, b1, b1 if apart else None, b2


def _check_experts(c: Config, x: Tensor, weights: tuple[Tensor | None, ...]) -> None:
    dtype = _DTYPES[c.type]
    if x.dim() != 2:
        raise ArgumentError(f"x is {list(x.shape)}, must be [T, {c.hidden}]")
    _want("x", x, dtype, (x.shape[0], c.hidden), x.device)
    for name, w, shape in zip(WEIGHTS, weights, weight_shapes(c)):
        if shape is None:
            if w is not None:
                why = f"gate_up {c.gate_up!r}" if name.endswith("3") else "bias False"
                raise ArgumentError(f"{name} is {list(w.shape)}, must be None with {why}")
        elif w is None:
            raise ArgumentError(f"{name} is None, must be {list(shape)}")
        else:
            _want(name, w, dtype, shape, x.device)


def _check_routing(c: Config, x: Tensor, scores: Tensor, expert_ids: Tensor, tokens: Tensor | None) -> None:
    shape = (x.shape[0], c.top_k) if tokens is None else (scores.numel(),)
    _want("scores", scores, torch.float32, shape, x.device)
    _want("expert_ids", expert_ids, torch.int32, shape, x.device)
    if tokens is not None:
        _want("token_indices", tokens, torch.int32, shape, x.device)
        if not shape[0]:
            raise ArgumentError("scores is [0], must have an entry at least: one of expert -1 adds nothing")


def _entries(tokens: Tensor | None) -> int:
    return 0 if tokens is None else tokens.shape[0]


def _check_router(c: Config, x: Tensor, router: Tensor) -> None:
    _want("router", router, torch.float32 if c.router_f32 else x.dtype, (c.num_experts, c.hidden), x.device)


def _place(l: Layer, x: Tensor) -> Gpu | Emulated:
    return Gpu(x) if x.is_cuda else Emulated(l.device)


def _run_forward(l: Layer, routed: bool, x, router, weights, scores, expert_ids, logits, o, h, tokens=None) -> None:
    """Without scores and expert_ids the routing lies behind the workspace and is forgotten:
    every allocation costs the host as much as two kernels."""
    t, entries = x.shape[0], _entries(tokens)
    need = l.sizes(t, entries).workspace + 15 & -16
    each = 0 if scores is not None else 4 * t * l.config.top_k + 15 & -16
    workspace = torch.empty(need + 2 * each, dtype=torch.uint8, device=x.device)
    with _place(l, x) as p:
        routing, scratch = p.read if routed else p.written, p.written(workspace)
        w1, w3, w2, b1, b3, b2 = map(p.read, weights)
        l.forward(
            _FORWARD.pack(
                _FORWARD.size, t, p.stream, scratch, need,
                p.read(x), p.read(router), w1, w2,
                scratch + need if scores is None else routing(scores),
                scratch + need + each if scores is None else routing(expert_ids),
                p.written(logits), p.written(o), p.written(h), entries, p.read(tokens), w3, b1, b3, b2,
            ),
            routed=routed,
        )  # fmt: skip


def _run_backward(
    l: Layer, routed: bool, d_o, x, router, weights, scores, expert_ids, logits, h, d_logits,
    dx, d_scores, gradients, into, balance=0.0, z_loss=0.0, tokens=None,
) -> None:  # fmt: skip
    """gradients are those of router and weights to write, into those to add to instead."""
    need = l.sizes(x.shape[0], _entries(tokens)).backward_workspace
    workspace = torch.empty(need, dtype=torch.uint8, device=x.device)
    with _place(l, x) as p:
        packed = []
        for g, added in zip(gradients, into):
            to = g if added is None else added
            packed.append((0, 0, 0) if to is None else (p.written(to), _TYPES[to.dtype], added is not None))
        d_router, d_w1, d_w3, d_w2, d_b1, d_b3, d_b2 = packed
        w1, w3, w2, b1, b3, b2 = map(p.read, weights)
        l.backward(
            _BACKWARD.pack(
                _BACKWARD.size, x.shape[0], p.stream, p.written(workspace), need,
                p.read(x), p.read(router), w1, w2,
                p.read(scores), p.read(expert_ids), p.read(logits), p.read(d_o), p.read(h),
                p.written(dx), p.written(d_scores), p.read(d_logits), 0, *d_router, *d_w1, *d_w2, balance, z_loss,
                _entries(tokens), p.read(tokens), w3, b1, b3, b2, *d_w3, *d_b1, *d_b3, *d_b2,
            ),
            routed=routed,
        )  # fmt: skip


def _absent(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Stands for a tensor that was not wanted: operators always give all of theirs."""
    return x.new_empty((0,), dtype=dtype or x.dtype)


def _present(t: Tensor) -> Tensor | None:
    return t if t.dim() > 1 else None


def _new_logits(c: Config, x: Tensor) -> Tensor:
    return x.new_empty((x.shape[0], c.num_experts), dtype=_DTYPES[c.logits])


def _forward_outputs(c: Config, x: Tensor, save: bool, logits: bool) -> tuple[Tensor, ...]:
    t = x.shape[0]
    return (
        torch.empty_like(x),
        x.new_empty((t * c.top_k, c.h_width)) if save else _absent(x),
        x.new_empty((t, c.top_k), dtype=torch.float32),
        x.new_empty((t, c.top_k), dtype=torch.int32),
        _new_logits(c, x) if logits else _absent(x, _DTYPES[c.logits]),
    )


def _check(c: Config, x: Tensor, router: Tensor, weights: tuple[Tensor | None, ...]) -> None:
    _check_experts(c, x, weights)
    _check_router(c, x, router)


def _forward_shape(x, router, w1, w3, w2, b1, b3, b2, config, save, logits, balance, z_loss) -> tuple[Tensor, ...]:
    """The checked operator without its work: what torch runs on tensors without content."""
    c = Config.of(config)
    _check(c, x, router, (w1, w3, w2, b1, b3, b2))
    return _forward_outputs(c, x, save, logits)


def infer(
    x: Tensor, router: Tensor, weights: tuple[Tensor | None, ...], c: Config, logits: bool
) -> tuple[Tensor, Tensor | None]:
    """Output and logits of forward, past torch's dispatcher, for calls that nothing follows."""
    _check(c, x, router, weights)
    l = layer(c.key, name_of(x))
    o, l_out = torch.empty_like(x), _new_logits(c, x) if logits else None
    _run_forward(l, False, x, router, weights, None, None, l_out, o, None)
    return o, l_out


def _forward(x, router, w1, w3, w2, b1, b3, b2, config, save, logits, balance, z_loss):
    weights = w1, w3, w2, b1, b3, b2
    outputs = o, h, scores, expert_ids, l_out = _forward_shape(x, router, *weights, config, save, logits, balance, z_loss)
    l = layer(config, name_of(x))
    _run_forward(l, False, x, router, weights, scores, expert_ids, _present(l_out), o, _present(h))
    return outputs


forward = torch.library.custom_op(
    "sonicmoe_go::forward", _forward, mutates_args=(),
    schema=f"(Tensor x, Tensor router, {_SCHEMA}, str config, bool save, bool logits, float balance, float z_loss)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)  # fmt: skip


forward.register_fake(_forward_shape)


# An operator that writes to its inputs can't return a list, so all gradients are there.
_GRADIENTS = "(" + ", ".join(["Tensor"] * (2 + len(WEIGHTS))) + ")"


def _new_gradients(wanted: int, *of: Tensor | None) -> tuple[Tensor, ...]:
    """Room for the gradients that bits of wanted name, nothing for the others."""
    return tuple(torch.empty_like(t) if wanted & 1 << i else _absent(of[0]) for i, t in enumerate(of))


def _chosen(wanted: int, gradients: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
    """Those gradients that wanted names, None for the others."""
    return tuple(g if wanted & 1 << i else None for i, g in enumerate(gradients))


@torch.library.custom_op(
    "sonicmoe_go::backward", mutates_args=("into_router", *_INTO),
    schema=f"(Tensor d_o, Tensor? d_logits, Tensor x, Tensor router, {_SCHEMA}, Tensor h, Tensor scores,"
    " Tensor expert_ids, Tensor? logits, str config, int wanted, float balance, float z_loss,"
    f" Tensor(g!)? into_router, {_INTO_SCHEMA}) -> {_GRADIENTS}",
)  # fmt: skip
def backward(
    d_o, d_logits, x, router, w1, w3, w2, b1, b3, b2, h, scores, expert_ids, logits, config, wanted, balance, z_loss,
    into_router, into_w1, into_w3, into_w2, into_b1, into_b3, into_b2,
):  # fmt: skip
    """Gradients of forward: those that bits of wanted name, of x, router and WEIGHTS. A
    weight's is added to its into, f32 or bf16, where that is given."""
    c, weights = Config.of(config), (w1, w3, w2, b1, b3, b2)
    _want("the gradient of o", d_o, x.dtype, x.shape, x.device)
    if d_logits is not None:
        _want("the gradient of logits", d_logits, torch.float32, (x.shape[0], c.num_experts), x.device)
    into = into_router, into_w1, into_w3, into_w2, into_b1, into_b3, into_b2
    _check_into(("router", *WEIGHTS), (router, *weights), into)
    out = _new_gradients(wanted, x, router, *weights)
    dx, *gradients = _chosen(wanted, out)
    _run_backward(
        layer(config, name_of(x)), False, d_o, x, router, weights, scores, expert_ids, logits, h, d_logits,
        dx, None, gradients, into, balance, z_loss,
    )  # fmt: skip
    return out


@backward.register_fake
def _(d_o, d_logits, x, router, w1, w3, w2, b1, b3, b2, h, scores, expert_ids, logits, config, wanted, balance, z_loss, *into):
    return _new_gradients(wanted, x, router, w1, w3, w2, b1, b3, b2)


def _check_into(names: tuple[str, ...], weights: tuple[Tensor | None, ...], into: tuple[Tensor | None, ...]) -> None:
    for name, weight, to in zip(names, weights, into):
        if to is not None:
            if to.dtype not in _TYPES:
                raise ArgumentError(f"main_grad of {name} is {to.dtype}, must be torch.float32 or torch.bfloat16")
            _want(f"main_grad of {name}", to, to.dtype, weight.shape, weight.device)


def _main_grads(wanted: int, first: int, weights: tuple[Tensor | None, ...]) -> tuple[int, list[Tensor | None]]:
    """Weights with a main_grad, as Megatron and others give them, have their gradient added
    to that, and none of autograd's. first is the bit of the first weight."""
    into = []
    for i, weight in enumerate(weights, first):
        main = getattr(weight, "main_grad", None) if wanted & 1 << i else None
        if main is not None:
            wanted &= ~(1 << i)
            weight.grad_added_to_main_grad = True
        into.append(main)
    return wanted, into


def _save(ctx, inputs, output):
    *tensors, config, save, wants_logits, balance, z_loss = inputs
    o, h, scores, expert_ids, logits = output
    ctx.mark_non_differentiable(scores, expert_ids, h)
    ctx.save_for_backward(*tensors, h, scores, expert_ids, logits)
    ctx.config, ctx.saved_h, ctx.has_logits, ctx.losses = config, save, wants_logits, (balance, z_loss)
    ctx.set_materialize_grads(False)


def _wanted(needs) -> int:
    return sum(1 << i for i, need in enumerate(needs) if need)


def _gradients(ctx, d_o, d_h, d_scores, d_expert_ids, d_logits):
    *tensors, h, scores, expert_ids, logits = ctx.saved_tensors
    wanted = _wanted(ctx.needs_input_grad[:8])
    none = (None,) * 5
    if not wanted or d_o is None and d_logits is None:
        return (None,) * 8 + none
    if not ctx.saved_h:
        raise ArgumentError("forward ran with save=False and has no gradients, must have save=True")
    d_o = torch.zeros_like(tensors[0]) if d_o is None else d_o.contiguous()
    if d_logits is not None:
        d_logits = d_logits.float().contiguous()
    wanted, into = _main_grads(wanted, 1, tensors[1:])
    got = backward(
        d_o, d_logits, *tensors, h, scores, expert_ids, logits if ctx.has_logits else None,
        ctx.config, wanted, *ctx.losses, *into,
    )  # fmt: skip
    return (*_chosen(wanted, got), *none)


forward.register_autograd(_gradients, setup_context=_save)


def _check_given(c: Config, x, scores, expert_ids, tokens, weights) -> None:
    _check_experts(c, x, weights)
    _check_routing(c, x, scores, expert_ids, tokens)


def _experts_shape(x, scores, expert_ids, tokens, w1, w3, w2, b1, b3, b2, config, save) -> tuple[Tensor, Tensor]:
    c = Config.of(config)
    _check_given(c, x, scores, expert_ids, tokens, (w1, w3, w2, b1, b3, b2))
    return torch.empty_like(x), x.new_empty((scores.numel(), c.h_width)) if save else _absent(x)


def infer_experts(
    x: Tensor, scores: Tensor, expert_ids: Tensor, tokens: Tensor | None, weights: tuple[Tensor | None, ...], config: str
) -> Tensor:
    """Output of experts, past torch's dispatcher, for calls that nothing follows."""
    _check_given(Config.of(config), x, scores, expert_ids, tokens, weights)
    o = torch.empty_like(x)
    _run_forward(layer(config, name_of(x)), True, x, None, weights, scores, expert_ids, None, o, None, tokens)
    return o


def _experts(x, scores, expert_ids, tokens, w1, w3, w2, b1, b3, b2, config, save):
    weights = w1, w3, w2, b1, b3, b2
    outputs = o, h = _experts_shape(x, scores, expert_ids, tokens, *weights, config, save)
    _run_forward(layer(config, name_of(x)), True, x, None, weights, scores, expert_ids, None, o, _present(h), tokens)
    return outputs


experts = torch.library.custom_op(
    "sonicmoe_go::experts", _experts, mutates_args=(),
    schema=f"(Tensor x, Tensor scores, Tensor expert_ids, Tensor? tokens, {_SCHEMA}, str config, bool save)"
    " -> (Tensor, Tensor)",
)  # fmt: skip


experts.register_fake(_experts_shape)


@torch.library.custom_op(
    "sonicmoe_go::experts_backward", mutates_args=_INTO,
    schema=f"(Tensor d_o, Tensor x, Tensor scores, Tensor expert_ids, Tensor? tokens, {_SCHEMA}, Tensor h,"
    f" str config, int wanted, {_INTO_SCHEMA}) -> {_GRADIENTS}",
)  # fmt: skip
def experts_backward(
    d_o, x, scores, expert_ids, tokens, w1, w3, w2, b1, b3, b2, h, config, wanted,
    into_w1, into_w3, into_w2, into_b1, into_b3, into_b2,
):  # fmt: skip
    """Gradients of experts: those that bits of wanted name, of x, scores and WEIGHTS. A
    weight's is added to its into, f32 or bf16, where that is given."""
    weights = w1, w3, w2, b1, b3, b2
    _want("the gradient of o", d_o, x.dtype, x.shape, x.device)
    into = into_w1, into_w3, into_w2, into_b1, into_b3, into_b2
    _check_into(WEIGHTS, weights, into)
    out = _new_gradients(wanted, x, scores, *weights)
    dx, d_scores, *gradients = _chosen(wanted, out)
    _run_backward(
        layer(config, name_of(x)), True, d_o, x, None, weights, scores, expert_ids, None, h, None,
        dx, d_scores, (None, *gradients), (None, *into), tokens=tokens,
    )  # fmt: skip
    return out


@experts_backward.register_fake
def _(d_o, x, scores, expert_ids, tokens, w1, w3, w2, b1, b3, b2, h, config, wanted, *into):
    return _new_gradients(wanted, x, scores, w1, w3, w2, b1, b3, b2)


def _experts_save(ctx, inputs, output):
    *tensors, config, save = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*tensors, output[1])
    ctx.config, ctx.saved_h = config, save
    ctx.set_materialize_grads(False)


def _experts_autograd(ctx, d_o, d_h):
    x, scores, expert_ids, tokens, *weights, h = ctx.saved_tensors
    needs = ctx.needs_input_grad
    wanted = _wanted((*needs[:2], *needs[4:10]))
    if not wanted or d_o is None:
        return (None,) * 12
    if not ctx.saved_h:
        raise ArgumentError("experts ran with save=False and has no gradients, must have save=True")
    wanted, into = _main_grads(wanted, 2, weights)
    got = experts_backward(d_o.contiguous(), x, scores, expert_ids, tokens, *weights, h, ctx.config, wanted, *into)
    dx, d_scores, *gradients = _chosen(wanted, got)
    return dx, d_scores, None, None, *gradients, None, None


experts.register_autograd(_experts_autograd, setup_context=_experts_save)


def eager(*tensors: Tensor | None) -> bool:
    """Whether a call may go past the dispatcher: nobody watches, no gradients are wanted."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return False
    return not (torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors))
