"""The operators sonicmoe_go::*, which torch.compile, autograd and CUDA graphs see."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from . import _passes, _plans
from ._device import name_of
from ._library import ArgumentError, Config, Error, layer
from ._library import check as library_check
from ._weights import (
    ALWAYS, CONSTANT, DTYPES, EXPERTS, WEIGHTS, Weights, check, check_adapters, check_into, check_routing, expert_shapes, shapes, want,
)  # fmt: skip


def _schema(names: tuple[str, ...]) -> str:
    return ", ".join(f"Tensor{'' if n in ALWAYS else '?'} {n}" for n in names)


# The tensors to which gradients are added are one list, because torch allows 64 arguments. Bit i of
# added says that the list has a tensor for the i-th weight.
_INTO = "int added, Tensor(a!)[] into"


def _listed(into: Weights) -> tuple[int, list[Tensor]]:
    """Returns the arguments added and into of an operator."""
    return sum(1 << i for i, t in enumerate(into) if t is not None), [t for t in into if t is not None]


def _placed(names: tuple[str, ...], added: int, into: list[Tensor]) -> Weights:
    """Returns a tensor of an operator's list for each weight, or None if the list has none for it."""
    rest = iter(into)
    return tuple(next(rest) if added & 1 << i else None for i in range(len(names)))


def _filled(x: Tensor, outputs: Weights) -> tuple[Tensor, ...]:
    """Returns an operator's result, in which an empty tensor stands for None."""
    return tuple(x.new_empty((0,)) if t is None else t for t in outputs)


def _present(t: Tensor | None) -> Tensor | None:
    return t if t is not None and t.dim() > 1 else None


def _new_logits(c: Config, x: Tensor) -> Tensor:
    return x.new_empty((x.numel() // c.hidden, c.num_experts), dtype=DTYPES[c.logits])


def _new_h(c: Config, x: Tensor, rows: int) -> Weights:
    """Allocates h, which lora_u follows in the same tensor, and h of the shared experts."""
    wide = c.h_width * c.shared_experts
    return x.new_empty((rows, c.h_width + c.lora_u_width)), x.new_empty((x.shape[0], wide)) if wide else None


def _outputs(c: Config, x: Tensor, save: bool, logits: bool, rows: int | None) -> Weights:
    """Allocates the outputs of forward. With rounding, rows is the largest number of rows.
    Otherwise it is None."""
    t, i32, f32 = x.shape[0], torch.int32, torch.float32
    return (
        torch.empty_like(x),
        *(_new_h(c, x, t * c.top_k if rows is None else rows) if save else (None, None)),
        x.new_empty((t, c.top_k), dtype=f32),
        x.new_empty((t, c.top_k), dtype=i32),
        _new_logits(c, x) if logits else None,
        *(None if rows is None else x.new_empty((rows,), dtype=dtype) for dtype in (i32, i32, f32)),
    )


def short(
    x: Tensor, weights: Weights, c: Config, logits: bool, balance: float, z_loss: float, sequence: int, loads: Tensor | None
) -> tuple[Tensor, Tensor | None] | None:  # fmt: skip
    """Returns output and logits of forward on x [..., d], for calls that nothing but autograd
    observes. Returns None if the library refuses a tensor."""
    if _differentiated(x, weights):
        plan = _plans.find(_plans.Training, x, c.key, _plans.ROUTER, logits, balance, z_loss, sequence)
        if plan is not None and not (logits or sequence):
            c.keep_training((balance, z_loss), plan)
        return plan and _train(plan, loads, x, *weights)
    if loads is not None:
        return None
    plan = _plans.find(_plans.Inference, x, c.key, _plans.ROUTER, logits)
    if plan is None:
        return None
    if not logits:
        c.keep(plan)
    o, l_out = torch.empty_like(x), _new_logits(c, x) if logits else None
    status = plan.queue(x, o, l_out, *weights)
    return (o, l_out) if status == 0 else _refused(status)


def infer(x: Tensor, weights: Weights, c: Config, logits: bool, to: Tensor | None, units: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Returns output and logits of forward without torch's dispatcher, for calls that nothing
    observes. The loads of the experts are added to the tensor to, unless it is None. units are the
    weights as arrange returns them."""
    check(c, x, shapes(c), weights)
    o, l_out = torch.empty_like(x), _new_logits(c, x) if logits else None
    chosen = (None, None) if to is None else (x.new_empty((x.shape[0], c.top_k), dtype=dtype) for dtype in (torch.float32, torch.int32))
    scores, ids = chosen
    _passes.forward(layer(c.key, name_of(x)), False, x, weights, scores, ids, l_out, o, None, None, units=units)
    if to is not None:
        _loads(ids, to, c.key)
    return o, l_out


def infer_with_table(
    x: Tensor, routing: Weights, weights: Weights, c: Config, logits: bool, adapter_ids: Tensor | None, lora_scales: Tensor | None
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Returns output and logits of a layer with a table of adapters. routing is empty, or the scores,
    expert ids and tokens of experts."""
    if watched() or _differentiated(x, weights):
        raise ArgumentError("the layer has a table of adapters (lora_adapters), must run without gradients, torch.compile and tracing: see torch.no_grad")
    check_adapters(c, x, adapter_ids, lora_scales)
    if routing:
        _check_given(c, x, *routing, weights)
        weights = *_passes.NO_ROUTER, *weights
    else:
        check(c, x, shapes(c), weights)
    scores, expert_ids, tokens = routing or (None, None, None)
    o, l_out = torch.empty_like(x), _new_logits(c, x) if logits else None
    _passes.forward(
        layer(c.key, name_of(x)), bool(routing), x, weights, scores, expert_ids, l_out, o, None, None,
        tokens=tokens, adapter_ids=adapter_ids, lora_scales=lora_scales,
    )  # fmt: skip
    return o, l_out


def arrange(weights: Weights, c: Config) -> Tensor:
    """Returns packed weights in the order that the kernels for small batches read."""
    like = next(w for w in weights if w is not None)
    return _passes.arrange(layer(c.key, name_of(like)), weights)


def _forward(x, *args) -> Weights:
    *weights, config, save, logits, balance, z_loss, sequence, rounds, seed = args
    c = Config.of(config)
    check(c, x, shapes(c), weights)
    l = layer(config, name_of(x))
    outputs = _outputs(c, x, save, logits, l.rounded_rows(x.shape[0]) if rounds else None)
    o, h, shared_h, scores, expert_ids, l_out, *lists = outputs
    tokens, list_ids, list_scores = lists
    if seed is None:
        seed = torch.randint(2**63 - 1, (), device="cpu").item() if rounds and c.draws else 0
    _passes.forward(
        l, False, x, weights, scores, expert_ids, l_out, o, h, shared_h,
        tokens=tokens, list_ids=list_ids, list_scores=list_scores, seed=seed,
    )  # fmt: skip
    return outputs


_forward_op = torch.library.custom_op(
    "sonicmoe_go::forward", lambda x, *args: _filled(x, _forward(x, *args)), mutates_args=(),
    schema=f"(Tensor x, {_schema(WEIGHTS)}, str config, bool save, bool logits, float balance, float z_loss, SymInt sequence, bool rounds,"
    f" int? seed) -> ({', '.join(['Tensor'] * 9)})",
)  # fmt: skip


@_forward_op.register_fake
def _(x, *args):
    """Checks the operator's arguments and allocates its results. Torch calls it with fake
    tensors."""
    *weights, config, save, logits, balance, z_loss, sequence, rounds, seed = args
    c = Config.of(config)
    check(c, x, shapes(c), weights)
    return _filled(x, _outputs(c, x, save, logits, torch.library.get_ctx().new_dynamic_size() if rounds else None))


# Every gradient is an output, because an operator that writes to its inputs cannot return a list.
def _gradients_schema(names: tuple[str, ...]) -> str:
    return "(" + ", ".join(["Tensor"] * (1 + len(names))) + ")"


def _new_gradients(wanted: int, *of: Tensor | None) -> Weights:
    """Allocates the gradients whose bits in wanted are set. The others are None."""
    return tuple(torch.empty_like(t) if wanted & 1 << i else None for i, t in enumerate(of))


def _chosen(wanted: int, gradients: Weights) -> Weights:
    """Returns the gradients whose bits in wanted are set. The others are None."""
    return tuple(g if wanted & 1 << i else None for i, g in enumerate(gradients))


_SAVED = ("h", "shared_h", "scores", "expert_ids", "logits", "tokens", "list_ids", "list_scores")


def _backward(d_o, d_logits, x, *args) -> Weights:
    """Returns the gradients of forward for x and WEIGHTS whose bits in wanted are set. If a weight
    has a tensor in into, of type f32 or the weight's type, its gradient is added to that tensor."""
    weights, args = args[: len(WEIGHTS)], args[len(WEIGHTS) :]
    h, shared_h, scores, expert_ids, logits, tokens, list_ids, list_scores, config, wanted, balance, z_loss, sequence, added, into = args
    c, into = Config.of(config), _placed(WEIGHTS, added, into)
    want("the gradient of o", d_o, x.dtype, x.shape, x.device)
    if d_logits is not None:
        want("the gradient of logits", d_logits, torch.float32, (x.shape[0], c.num_experts), x.device)
    check_into(WEIGHTS, weights, into)
    out = dx, *gradients = _new_gradients(wanted, x, *weights)
    _passes.backward(
        layer(config, name_of(x)), False, d_o, x, weights, scores, expert_ids, logits, h, shared_h, d_logits,
        dx, None, gradients, into, balance, z_loss, sequence, tokens=tokens, list_ids=list_ids, list_scores=list_scores,
    )  # fmt: skip
    return out


_backward_op = torch.library.custom_op(
    "sonicmoe_go::backward", lambda d_o, *args: _filled(d_o, _backward(d_o, *args)), mutates_args=("into",),
    schema=f"(Tensor d_o, Tensor? d_logits, Tensor x, {_schema(WEIGHTS)}, "
    + ", ".join("Tensor? " + n for n in _SAVED)
    + f", str config, int wanted, float balance, float z_loss, SymInt sequence, {_INTO}) -> {_gradients_schema(WEIGHTS)}",
)  # fmt: skip


@_backward_op.register_fake
def _(d_o, d_logits, x, *args):
    return _filled(d_o, _new_gradients(args[len(WEIGHTS) + len(_SAVED) + 1], x, *args[: len(WEIGHTS)]))


def _main_grads(wanted: int, first: int, weights: Weights) -> tuple[int, list[Tensor | None]]:
    """Returns which gradients autograd wants and which tensors they are added to. If a weight has a
    main_grad, as in Megatron, its gradient is added to main_grad and autograd gets none. first is
    the bit of the first weight."""
    into = []
    for i, weight in enumerate(weights, first):
        main = getattr(weight, "main_grad", None) if wanted & 1 << i else None
        if main is not None:
            wanted &= ~(1 << i)
            weight.grad_added_to_main_grad = True
        into.append(main)
    return wanted, into


# The bits of weights that have no gradient.
_CONSTANT = sum(1 << 1 + WEIGHTS.index(name) for name in CONSTANT)


def _wanted(needs) -> int:
    return sum(1 << i for i, need in enumerate(needs) if need)


def _last(gradients: Weights) -> Weights:
    """Marks gradients as the result of a function without second derivatives. Otherwise autograd
    would treat them as constants with create_graph. With the mark, backward through them is an
    error."""
    if not torch.is_grad_enabled():
        return gradients
    fail = torch._C._functions.DelayedError(b"sonicmoe_go has no gradients of gradients: create_graph must be False", len(gradients))
    return fail(*(None if g is None else g.detach().requires_grad_() for g in gradients))


def _save(ctx, inputs, output):
    *tensors, config, save, logits, balance, z_loss, sequence, rounds, seed = inputs
    o, *saved = output
    ctx.mark_non_differentiable(*(t for i, t in enumerate(output) if i not in (0, 5) and t is not None))
    ctx.save_for_backward(*tensors, *saved)
    ctx.config, ctx.saved_h, ctx.has_logits, ctx.rounds, ctx.losses = config, save, logits, rounds, (balance, z_loss, sequence)
    ctx.set_materialize_grads(False)


def _gradients(ctx, d_o, *rest):
    d_logits, operands = rest[4], 1 + len(WEIGHTS)
    everything = ctx.saved_tensors  # autograd allows only one read
    tensors, (h, shared_h, scores, expert_ids, logits, *lists) = everything[:operands], everything[operands:]
    wanted = _wanted(ctx.needs_input_grad[:operands]) & ~_CONSTANT
    none = (None,) * 8
    if not wanted or d_o is None and d_logits is None:
        return (None,) * operands + none
    if not ctx.saved_h:
        raise ArgumentError("forward ran with save=False and has no gradients, must have save=True")
    d_o = torch.zeros_like(tensors[0]) if d_o is None else d_o.contiguous()
    if d_logits is not None:
        d_logits = d_logits.float().contiguous()
    wanted, into = _main_grads(wanted, 1, tensors[1:])
    got = (_backward_op if watched() else _backward)(
        d_o, d_logits, *tensors, h, _present(shared_h), scores, expert_ids, logits if ctx.has_logits else None,
        *(lists if ctx.rounds else (None, None, None)), ctx.config, wanted, *ctx.losses, *_listed(into),
    )  # fmt: skip
    return *_chosen(wanted, got), *none


_forward_op.register_autograd(_gradients, setup_context=_save)


def _direct(run, save, gradients) -> Callable[..., tuple[Tensor, ...]]:
    """Calls an operator without torch's dispatcher, which costs more host time than a layer."""

    class Direct(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *args):
            output = run(*args)
            save(ctx, args, output)
            return output

        @staticmethod
        def backward(ctx, *d_outputs):
            return _last(gradients(ctx, *d_outputs))

    return Direct.apply


_forward_direct = _direct(_forward, _save, _gradients)


def forward(*args) -> tuple[Tensor, ...]:
    """The operator. Its results are o, h, shared_h, scores, expert_ids and logits. With rounding it
    also returns a list."""
    return (_forward_op if watched() else _forward_direct)(*args)


def _loads(expert_ids: Tensor, loads: Tensor, config: str) -> None:
    c = Config.of(config)
    want("loads", loads, torch.int32, (c.num_experts,), expert_ids.device)
    _passes.loads(layer(config, name_of(expert_ids)), expert_ids, loads)


_loads_op = torch.library.custom_op(
    "sonicmoe_go::loads", _loads, mutates_args=("loads",), schema="(Tensor expert_ids, Tensor(a!) loads, str config) -> ()"
)
_loads_op.register_fake(lambda *_: None)


def loads(expert_ids: Tensor, to: Tensor, config: str) -> None:
    """Adds the number of tokens of each expert, counted from expert_ids [T, K], to the tensor to
    [E] i32."""
    (_loads_op if watched() else _loads)(expert_ids, to, config)


def _update_selection_bias(loads: Tensor, bias: Tensor, config: str, rate: float) -> None:
    c = Config.of(config)
    want("loads", loads, torch.int32, (c.num_experts,), bias.device)
    want("the selection bias", bias, torch.float32, (c.num_experts,), bias.device)
    _passes.update_selection_bias(layer(config, name_of(bias)), loads, bias, rate)


_update_op = torch.library.custom_op(
    "sonicmoe_go::update_selection_bias", _update_selection_bias, mutates_args=("loads", "bias"),
    schema="(Tensor(a!) loads, Tensor(b!) bias, str config, float rate) -> ()",
)  # fmt: skip
_update_op.register_fake(lambda *_: None)


def update_selection_bias(*args) -> None:
    """The operator that changes the bias by one step. The loads become 0."""
    (_update_op if watched() else _update_selection_bias)(*args)


def _check_given(c: Config, x, scores, expert_ids, tokens, weights) -> None:
    check(c, x, expert_shapes(c), weights)
    check_routing(c, x, scores, expert_ids, tokens)


def short_experts(x: Tensor, scores: Tensor, expert_ids: Tensor, tokens: Tensor | None, weights: Weights, config: str) -> Tensor | None:
    """Like short, for the operator experts."""
    routing, given = (_plans.GIVEN, (scores, expert_ids)) if tokens is None else (_plans.LISTED, (scores, expert_ids, tokens))
    if _differentiated(x, (scores, *weights)):
        plan = _plans.find(_plans.Training, x, config, routing, False, 0.0, 0.0)
        trained = plan and _train(plan, None, x, *given, *weights)
        return trained and trained[0]
    plan = _plans.find(_plans.Inference, x, config, routing, False)
    if plan is None:
        return None
    o = torch.empty_like(x)
    status = plan.queue(x, o, None, *given, *weights)
    return o if status == 0 else _refused(status)


def infer_experts(x: Tensor, scores: Tensor, expert_ids: Tensor, tokens: Tensor | None, weights: Weights, config: str) -> Tensor:
    """Returns the output of experts without torch's dispatcher, for calls that nothing observes."""
    _check_given(Config.of(config), x, scores, expert_ids, tokens, weights)
    o = torch.empty_like(x)
    l = layer(config, name_of(x))
    _passes.forward(l, True, x, (*_passes.NO_ROUTER, *weights), scores, expert_ids, None, o, None, None, tokens=tokens)
    return o


def _experts_outputs(x, scores, expert_ids, tokens, *args) -> Weights:
    *weights, config, save = args
    c = Config.of(config)
    _check_given(c, x, scores, expert_ids, tokens, weights)
    return torch.empty_like(x), *(_new_h(c, x, scores.numel()) if save else (None, None))


def _experts(x, scores, expert_ids, tokens, *args) -> Weights:
    outputs = o, h, shared_h = _experts_outputs(x, scores, expert_ids, tokens, *args)
    *weights, config, save = args
    l, weights = layer(config, name_of(x)), (*_passes.NO_ROUTER, *weights)
    _passes.forward(l, True, x, weights, scores, expert_ids, None, o, h, shared_h, tokens=tokens)
    return outputs


_experts_op = torch.library.custom_op(
    "sonicmoe_go::experts", lambda x, *args: _filled(x, _experts(x, *args)), mutates_args=(),
    schema=f"(Tensor x, Tensor scores, Tensor expert_ids, Tensor? tokens, {_schema(EXPERTS)}, str config, bool save)"
    " -> (Tensor, Tensor, Tensor)",
)  # fmt: skip


_experts_op.register_fake(lambda x, *args: _filled(x, _experts_outputs(x, *args)))


def _experts_backward(d_o, x, scores, expert_ids, tokens, *args) -> Weights:
    """Returns the gradients of experts for x, scores and EXPERTS whose bits in wanted are set. If a
    weight has a tensor in into, of type f32 or the weight's type, its gradient is added to that
    tensor."""
    weights, (h, shared_h, config, wanted, added, into) = args[: len(EXPERTS)], args[len(EXPERTS) :]
    into = _placed(EXPERTS, added, into)
    want("the gradient of o", d_o, x.dtype, x.shape, x.device)
    check_into(EXPERTS, weights, into)
    out = dx, d_scores, *gradients = _new_gradients(wanted, x, scores, *weights)
    none = _passes.NO_ROUTER
    _passes.backward(
        layer(config, name_of(x)), True, d_o, x, (*none, *weights), scores, expert_ids, None, h, shared_h, None,
        dx, d_scores, (*none, *gradients), (*none, *into), tokens=tokens,
    )  # fmt: skip
    return out


_experts_backward_op = torch.library.custom_op(
    "sonicmoe_go::experts_backward", lambda d_o, *args: _filled(d_o, _experts_backward(d_o, *args)), mutates_args=("into",),
    schema=f"(Tensor d_o, Tensor x, Tensor scores, Tensor expert_ids, Tensor? tokens, {_schema(EXPERTS)}, Tensor h,"
    f" Tensor? shared_h, str config, int wanted, {_INTO}) -> {_gradients_schema(('scores', *EXPERTS))}",
)  # fmt: skip


@_experts_backward_op.register_fake
def _(d_o, x, scores, expert_ids, tokens, *args):
    return _filled(d_o, _new_gradients(args[len(EXPERTS) + 3], x, scores, *args[: len(EXPERTS)]))


def _experts_save(ctx, inputs, output):
    *tensors, config, save = inputs
    ctx.mark_non_differentiable(*(t for t in output[1:] if t is not None))
    ctx.save_for_backward(*tensors, *output[1:])
    ctx.config, ctx.saved_h = config, save
    ctx.set_materialize_grads(False)


def _experts_gradients(ctx, d_o, *_):
    x, scores, expert_ids, tokens, *weights, h, shared_h = ctx.saved_tensors
    needs = ctx.needs_input_grad
    wanted = _wanted((*needs[:2], *needs[4:-2]))
    if not wanted or d_o is None:
        return (None,) * len(needs)
    if not ctx.saved_h:
        raise ArgumentError("experts ran with save=False and has no gradients, must have save=True")
    wanted, into = _main_grads(wanted, 2, weights)
    got = (_experts_backward_op if watched() else _experts_backward)(
        d_o.contiguous(), x, scores, expert_ids, tokens, *weights, h, _present(shared_h), ctx.config, wanted, *_listed(into)
    )
    dx, d_scores, *gradients = _chosen(wanted, got)
    return dx, d_scores, None, None, *gradients, None, None


_experts_op.register_autograd(_experts_gradients, setup_context=_experts_save)


_experts_direct = _direct(_experts, _experts_save, _experts_gradients)


def experts(*args) -> tuple[Tensor, ...]:
    """The operator. Its results are o, h and shared_h."""
    return (_experts_op if watched() else _experts_direct)(*args)


def watched() -> bool:
    """Whether something observes calls of operators: a compiler, a mode of torch's dispatcher, or
    the tracer of torch.jit."""
    return torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0 or _plans.is_tracing()


def _any_requires_grad(x: Tensor, weights: Weights) -> bool:
    if x.requires_grad:
        return True
    for w in weights:
        if w is not None and w.requires_grad:
            return True
    return False


def _differentiated(x: Tensor, weights: Weights) -> bool:
    """Whether gradients may be wanted. Forward-mode gradients are not supported, and autograd
    raises that error."""
    return _plans.forward_mode() or torch.is_grad_enabled() and _any_requires_grad(x, weights)


def eager(x: Tensor, *weights: Tensor | None) -> bool:
    """Whether a call may skip torch's dispatcher, because nothing observes it and no gradients are
    wanted."""
    return not watched() and not _differentiated(x, weights)


def _refused(status: int) -> None:
    """Raises the error of a pass that a plan did not queue. Returns if the status is -1: a tensor
    does not fit the plan."""
    if status > 0:
        library_check(status)


class _Refused(Exception):
    """Raised if a tensor does not fit the plan."""


class _Trained(torch.autograd.Function):
    """A pass whose tensors the library checks, with its gradients. The tensors are x, the routing
    if the caller gives it, and WEIGHTS or EXPERTS."""

    @staticmethod
    def forward(ctx, of, x, *tensors):
        plan, to = of
        c = plan.config
        o, l_out = torch.empty_like(x), _new_logits(c, x) if plan.logits else None
        entries = tensors[0].numel() if plan.listed else 0
        kept = torch.empty(plan.kept_bytes(x.numel() // c.hidden, entries), dtype=torch.uint8, device=x.device)
        if status := plan.forward.queue(x, o, l_out, kept, *tensors):
            _refused(status)
            raise _Refused
        if to is not None:
            _loads(plan.ids(kept, x.numel() // c.hidden), to, c.key)
        if plan.bias_at is not None:
            tensors = *tensors[: plan.bias_at], *tensors[plan.bias_at + 1 :]
        ctx.save_for_backward(x, l_out, kept, *tensors)
        ctx.plan = plan
        ctx.set_materialize_grads(False)
        return o, l_out

    @staticmethod
    def backward(ctx, d_o, d_logits):
        x, l_out, kept, *tensors = ctx.saved_tensors
        plan, (_, wants_dx, *wanted) = ctx.plan, ctx.needs_input_grad
        if d_o is None and d_logits is None:
            return (None,) * (2 + len(wanted))
        if plan.bias_at is not None:
            del wanted[plan.bias_at]
        gradients, into = [], []
        for t, asked, trained in zip(tensors, wanted, plan.trained):
            wants = asked and trained
            main = getattr(t, "main_grad", None) if wants else None
            if main is not None:
                t.grad_added_to_main_grad = True
            into.append(main)
            gradients.append(torch.empty_like(t) if wants and main is None else None)
        d_o = torch.zeros_like(x) if d_o is None else d_o.contiguous()
        if d_logits is not None:
            d_logits = d_logits.float().contiguous()
        dx = torch.empty_like(x) if wants_dx else None
        if status := plan.backward.queue(d_o, d_logits, x, l_out, kept, *tensors, dx, *gradients, *into):
            _refused(status)
            want("the gradient of o", d_o, x.dtype, x.shape, x.device)
            check_into(plan.names, tensors, into)
            raise Error("a gradient or a main_grad is not a plain tensor of the device of x, must be")
        if plan.bias_at is not None:
            gradients.insert(plan.bias_at, None)
        return None, *_last((dx, *gradients))


# _record is the last call that autograd.Function.apply makes. The steps before it serve transforms
# of functorch, and cost more host time than a launch.
_record = super(torch.autograd.Function, _Trained).apply


def train_module(x: Tensor, module: dict, places: tuple, c: Config, losses: tuple[float, float]) -> Tensor | None:
    """Returns the output of a module's pass that autograd records. The library finds the weights in
    the module. Returns None if the pass must take another way."""
    known, plan = c.trains
    if known != losses or torch._C._are_functorch_transforms_active():
        return None
    weights = plan.forward.weights_of(x, module, places)
    if weights is None or not _any_requires_grad(x, weights):
        return None
    try:
        return _record((plan, None), x, *weights)[0]
    except _Refused:
        return None


def _train(plan: _plans.Training, to: Tensor | None, *tensors: Tensor | None) -> tuple[Tensor, Tensor | None] | None:
    """Returns output and logits of a pass that autograd records. The loads of the experts are added
    to the tensor to, unless it is None. Returns None if a tensor does not fit the plan, or if a
    transform of functorch runs."""
    if torch._C._are_functorch_transforms_active():
        return None
    x, *operands = tensors
    there = [t for t in operands if t is not None]
    if len(there) != len(operands) and [t is not None for t in operands] != plan.there:
        return None
    try:
        return _record((plan, to), x, *there)  # to is not a tensor argument, because each costs autograd time
    except _Refused:
        return None
