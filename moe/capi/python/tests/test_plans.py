"""Tests passes for which the library reads torch's tensors itself. CPU tensors replace those of a
GPU."""

import contextlib
import copy
import ctypes
import dataclasses
import os
import pickle
import struct
import sys
import threading
import time
import warnings

import pytest
import reference
import standin
import test_balancing
import test_half
import test_layer
import test_modules
import torch
from torch import nn

import sonicmoe_go
from sonicmoe_go import _library, _ops, _passes, _plans, _weights

CONFIG = sonicmoe_go.Config(128, 64, 4, 2, bias=True)
TOKENS = 24
BYTES = _passes.size_of(backward=False)

pytestmark = pytest.mark.skipif(not _plans._exchange(), reason="this torch has no DLPack functions for C")


@pytest.fixture
def passes(monkeypatch):
    """Returns the list of passes that used plans. Every pass that can use a plan uses it."""
    sonicmoe_go.emulate()
    return standin.use(monkeypatch)


# Tests of other files whose passes use plans, with the numbers of these passes.
WHOLE = {
    (test_layer.test_forward_and_gradients, 128, 64): 2,
    (test_layer.test_forward_and_gradients, 144, 80): 2,
    (test_layer.test_losses_on_the_router,): 2,
    (test_balancing.test_loss_of_sequences, 8): 2,
    (test_balancing.test_loads_of_micro_batches, True): 3,
    (test_layer.test_logits_are_differentiable,): 2,
    (test_layer.test_logits_alone,): 2,
    (test_modules.test_sonicmoes_layer, "constructor", True): 2,
    (test_layer.test_experts_with_given_routing,): 2,
    (test_layer.test_only_wanted_gradients,): 2,
    (test_layer.test_biases_into_main_grad,): 4,
    (test_layer.test_accumulation_into_grad_and_main_grad,): 10,
    (test_layer.test_training_and_inference_give_the_same_bits,): 2,
    (test_layer.test_checkpointing,): 5,
    (test_layer.test_token_counts, 0): 2,
    (test_layer.test_token_counts, 129): 2,
    (test_layer.test_biases_and_orders, "apart", "in-out", False): 2,
    (test_layer.test_biases_and_orders, "concatenated", "out-in", True): 2,
    (test_modules.test_module_trains,): 2,
    (test_modules.test_from_hf, "deepseek_v3"): 2,
    (test_modules.test_from_hf, "qwen2_moe"): 2,
    (test_modules.test_from_hf, "gpt_oss"): 2,
    (test_modules.test_from_hf_in_a_model, "gpt_oss"): 14,
    (test_half.test_module_in_half,): 2,
    (test_modules.test_general_routing,): 4,
}


@pytest.mark.parametrize("test", WHOLE, ids=lambda t: "-".join([t[0].__name__, *map(str, t[1:])]))
def test_whole_passes(passes, test):
    """Runs tests of other files with plans, and compares results and gradients. The tensors are
    copied to the emulated device."""
    test[0]("cpu", *test[1:])
    assert len(passes) == WHOLE[test]


def tensors():
    """Returns x, o, None instead of logits, and the weights of CONFIG."""
    rows = [torch.randn(TOKENS, CONFIG.hidden).bfloat16() for _ in range(2)]
    weights = [None if dtype is None else torch.randn(shape).to(dtype) for _, dtype, shape in _weights.shapes(CONFIG)]
    weights[0] = nn.Parameter(weights[0])
    return [*rows, None, *weights]


class Noted(standin.StandIn):
    """A layer that records its passes and does not run them."""

    def _run(self, function, address):
        self.passes.append(standin.fields(function, address)[1])
        return 0


@pytest.fixture
def plan():
    """Returns a plan for inference, and the list of the passes that it queues."""
    sonicmoe_go.emulate()
    made = _plans.Inference(layer := Noted(CONFIG.key), (1, 0), _plans.ROUTER, False)
    made.layer = layer
    return made, layer.passes


def workspace_of(made, tokens):
    """Returns the workspace of a plan's forward pass, in bytes."""
    return made.layer.real.sizes(tokens).workspace + 255 & -256


def test_pass(plan):
    made, queued = plan
    given = tensors()
    assert made.queue(*given) == 0
    (got,) = queued
    need = workspace_of(made, TOKENS)
    assert (got["size"], got["tokens"], got["workspace_bytes"], got["stream"]) == (BYTES, TOKENS, need, 0)
    names = ["x", "o", "logits", *_weights.WEIGHTS]
    assert {n: got[n] for n in names} == {n: 0 if t is None else t.data_ptr() for n, t in zip(names, given, strict=True)}
    assert got["workspace"] and got["scores"] == got["workspace"] + need
    assert got["expert_ids"] == got["scores"] + 256
    rest = set(_passes.FORWARD) - set(names) - {"size", "tokens", "workspace_bytes", "workspace", "scores", "expert_ids"}
    assert not any(got[n] for n in rest)


def test_plans_have_room_for_every_tensor():
    """A plan must have room for the tensors of a backward pass: five tensors, dx, and each weight
    with its gradient, twice (written and added to)."""
    assert 6 + 3 * len(_weights.WEIGHTS) <= _plans._TENSORS


def test_training_keeps_its_parts_in_one_tensor():
    c = dataclasses.replace(CONFIG, shared_experts=1, score="sigmoid", selection_bias=True)
    made = _plans.Training(layer := Noted(c.key), (1, 0), _plans.ROUTER, False, 0.5, 0.25)
    x, o, *_ = tensors()
    weights = {name: torch.randn(shape).to(dtype) for name, dtype, shape in _weights.shapes(c) if dtype}
    bytes_of = {"h": 2 * TOKENS * 128 * 2, "shared_h": TOKENS * 128 * 2, "scores": TOKENS * 2 * 4, "expert_ids": TOKENS * 2 * 4, "logits": TOKENS * 4 * 2}
    kept = torch.empty(made.kept_bytes(TOKENS), dtype=torch.uint8)
    assert kept.numel() == sum(b + 255 & -256 for b in bytes_of.values())
    assert made.forward.queue(x, o, None, kept[:-1], *weights.values()) == -1 and not layer.passes
    assert made.forward.queue(x, o, None, kept, *weights.values()) == 0
    (forward,) = layer.passes
    assert {n: forward[n] for n in weights} == {n: w.data_ptr() for n, w in weights.items()}

    del weights["selection_bias"]
    given, none = (None, x, None, kept, *weights.values()), [None] * len(weights)
    assert made.names == [*weights]
    into = {n: torch.zeros_like(w, dtype=torch.float32) for n, w in weights.items()}
    gradients = {n: None if i % 2 else torch.empty_like(w) for i, (n, w) in enumerate(weights.items())}
    assert made.backward.queue(o, *given, None, *gradients.values(), *none) == 0
    assert made.backward.queue(o, *given, x, *none, *into.values()) == 0
    _, backward, added = layer.passes
    at = kept.data_ptr()
    for name, size in bytes_of.items():
        assert forward[name] == backward[name] == at, name
        at += size + 255 & -256
    assert (backward["d_o"], backward["dx"], added["dx"]) == (o.data_ptr(), 0, x.data_ptr())
    assert struct.unpack("=2d", struct.pack("=2Q", backward["balance"], backward["z_loss"])) == (0.5, 0.25)
    for name, g in gradients.items():
        d = "d_" + name
        assert (backward[d], backward[d, "how"]) == (0 if g is None else g.data_ptr(), (0, 0)), name
        assert (added[d], added[d, "how"]) == (into[name].data_ptr(), (1, 1)), name
    for wrong in (x.float(), x[1:], None):
        assert made.backward.queue(wrong, *given, None, *gradients.values(), *none) == -1
    into["router"] = into["router"].half()
    assert made.backward.queue(o, *given, None, *gradients.values(), *into.values()) == -1
    assert len(layer.passes) == 3


def test_lists():
    """The length of a list determines sizes and the rows of h. All tensors of the list must have
    this length."""
    c = dataclasses.replace(CONFIG, lists=True)
    layer = Noted(c.key)
    inference = _plans.Inference(layer, (1, 0), _plans.LISTED, False)
    training = _plans.Training(layer, (1, 0), _plans.LISTED, False, 0.0, 0.0)
    weights = [None if dtype is None else torch.randn(shape).to(dtype) for _, dtype, shape in _weights.expert_shapes(c)]
    there = [w for w in weights if w is not None]

    def given(tokens, entries):
        rows = [torch.zeros(tokens, c.hidden, dtype=torch.bfloat16) for _ in range(2)]
        return rows, [torch.zeros(entries, dtype=dtype) for dtype in (torch.float32, torch.int32, torch.int32)]

    for tokens, entries in ((3, 7), (7, 3), (3, 71), (3, 7)):
        rows, routing = given(tokens, entries)
        kept = torch.empty(training.kept_bytes(tokens, entries), dtype=torch.uint8)
        assert kept.numel() == entries * c.h_width * 2 + 255 & -256
        assert inference.queue(*rows, None, *routing, *weights) == 0
        assert training.forward.queue(*rows, None, kept, *routing, *there) == 0
        none = [None] * (3 + len(there))
        assert training.backward.queue(rows[0], None, rows[1], None, kept, *routing, *there, None, *none, *none) == 0
        sizes = layer.real.sizes(tokens, entries)
        for got, need in zip(layer.passes[-3:], (sizes.workspace, sizes.workspace, sizes.backward_workspace), strict=True):
            assert (got["tokens"], got["entries"], got["workspace_bytes"]) == (tokens, entries, need + 255 & -256)
            assert [got[n] for n in ("scores", "expert_ids", "token_indices")] == [t.data_ptr() for t in routing]
    queued = len(layer.passes)
    rows, (scores, ids, at) = given(3, 7)
    empty = [t[:0] for t in (scores, ids, at)]
    for wrong in ((scores, ids[1:], at), (scores, ids, at[1:]), (scores[1:], ids, at), (scores, ids, None), (scores[:, None], ids, at), empty):
        assert inference.queue(*rows, None, *wrong, *weights) == -1
    assert len(layer.passes) == queued


def test_weights_of_another_configuration_do_not_train_by_a_plan(passes):
    """A bias that has the type and the shape of another bias must not be taken for it."""
    c = dataclasses.replace(CONFIG, bias=False, router_bias=True, score="sigmoid")
    x, router, w1, w2 = reference.tensors("cpu", c)
    bias = torch.zeros(4, requires_grad=True)
    with pytest.raises(sonicmoe_go.ArgumentError, match="router_bias is None, must be"):
        sonicmoe_go.moe(x, router, w1, w2, c, selection_bias=bias)
    assert not passes


def test_batches_of_sequences(plan):
    made, queued = plan
    x, o, *rest = tensors()
    assert made.queue(x.view(2, 3, 4, -1), o.view(1, TOKENS, -1), *rest) == 0
    assert queued[0]["tokens"] == TOKENS
    assert made.queue(x.view(2, 12, -1).transpose(0, 1), o, *rest) == -1


def test_workspace_of_each_number_of_tokens(plan):
    """Numbers of tokens that share an entry of the plan's table must still get their own sizes."""
    made, queued = plan
    x, o, *rest = tensors()
    for t in (1, 65, 1, 129, 0, 64, 65):
        x, o = torch.zeros(t, 128, dtype=torch.bfloat16), torch.zeros(t, 128, dtype=torch.bfloat16)
        assert made.queue(x, o, *rest) == 0
        got, need = queued[-1], workspace_of(made, t)
        assert (got["tokens"], got["workspace_bytes"]) == (t, need)
        assert got["expert_ids"] - got["workspace"] == need + (4 * t * CONFIG.top_k + 255 & -256)


def test_the_workspace_goes_back(plan):
    made, queued = plan
    x, o, *rest = tensors()
    x, o = (t.new_zeros(1 << 14, 128) for t in (x, o))

    def reserved():
        """Returns the size of this process's address space, in KiB."""
        with open("/proc/self/status") as f:
            return next(int(line.split()[1]) for line in f if line.startswith("VmSize"))

    assert made.queue(x, o, *rest) == 0
    before = reserved()
    for _ in range(100):
        assert made.queue(x, o, *rest) == 0
    assert reserved() - before < 10 * queued[0]["workspace_bytes"] >> 10


class Other(torch.Tensor):
    """A subclass of Tensor, with which the functions of DLPack must not be called."""


def _with(i, change):
    def changed(ts):
        ts[i] = change(ts[i])
        return ts

    return changed


@pytest.mark.parametrize(
    "change",
    [
        _with(0, lambda x: x.float()), _with(0, lambda x: x.half()), _with(0, lambda x: x[:, :32].contiguous()),
        _with(0, lambda x: x.t().contiguous().t()), _with(0, lambda x: x.flatten()), _with(0, lambda x: x.to("meta")),
        _with(0, lambda x: x.as_subclass(Other)), _with(1, lambda o: o[1:]), _with(1, lambda o: None), _with(1, lambda o: [o]),
        _with(1, lambda o: o.to_sparse()), _with(2, lambda _: torch.zeros(TOKENS, 4)), _with(3, lambda r: r[:, ::2]),
        _with(4, lambda _: torch.zeros(4)), _with(7, lambda w: w.transpose(1, 2)), _with(7, lambda w: "w1"),
        _with(7, lambda w: w.flatten(0, 1)), lambda ts: ts[:-1], lambda ts: [],
    ],
)  # fmt: skip
def test_what_does_not_fit_is_not_queued(plan, change):
    made, queued = plan
    assert made.queue(*change(tensors())) == -1
    assert not queued
    assert made.queue(*tensors()) == 0  # the patch has ended


def test_a_pass_of_another_device_is_not_queued(plan):
    made, queued = plan
    other = _plans.Inference(made.layer, (1, 1), _plans.ROUTER, False)
    assert other.queue(*tensors()) == -1 and not queued


def test_other_threads_run_during_a_pass(plan):
    """The pass is libc's usleep: it takes the layer's handle, here a number of microseconds."""
    made, _ = plan
    made._struct.queue = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p).value
    made._struct.layer, made._struct.known[TOKENS] = 300_000, (TOKENS, 0, 1)
    times, done = [], threading.Event()

    def note():
        while not done.wait(0.01):
            times.append(time.monotonic())

    other = threading.Thread(target=note)
    other.start()
    try:
        given = tensors()
        begun = time.monotonic()
        assert made.queue(*given) == 0
        ended = time.monotonic()
    finally:
        done.set()
        other.join()
    assert any(begun + 0.05 < t < ended - 0.05 for t in times)


def test_error_of_a_pass(plan, monkeypatch):
    """An error of the library must be raised with the library's text."""
    made, _ = plan
    refused = _plans.Inference(made.layer.real, (1, 0), _plans.ROUTER, False)
    refused._struct.layer, refused._struct.known[TOKENS] = 0, (TOKENS, 0, 1)
    monkeypatch.setattr(_plans, "find", lambda *_: refused)
    x, _, _, router, *weights = tensors()
    with torch.no_grad(), pytest.raises(sonicmoe_go.ArgumentError, match="layer is 0, must be the handle of an open layer"):
        _ops.short(x, (router, *weights), dataclasses.replace(CONFIG), False, 0.0, 0.0, 0, None)


def test_a_gradient_that_does_not_fit_is_said(passes):
    """Like test_wrong_tensors, for tensors to which gradients are written."""
    block = sonicmoe_go.SonicMoE(128, 64, 4, 2)
    x = torch.randn(2, 12, 128, dtype=torch.bfloat16)
    for main, words in (
        (torch.zeros(4, 128, dtype=torch.float64), "main_grad of router is torch.float64, must be"),
        (torch.zeros(4, 64), "main_grad of router is \\[4, 64\\], must be"),
        (torch.zeros(4, 128).as_subclass(Other), "is not a plain tensor"),
    ):
        block.gate.weight.main_grad = main
        with pytest.raises(sonicmoe_go.Error, match=words):
            block(x).sum().backward()
    assert [f for f, _ in passes] == ["forward"] * 3


@pytest.mark.parametrize(
    "config, found",
    [
        ({}, True), ({"bias": True}, True), ({"shared_experts": 2}, True), ({"activation": "relu2"}, True),
        ({"score": "sigmoid", "selection_bias": True, "router_bias": True, "expert_scale": True}, True),
        ({"score": "softmax", "shared_experts": 1, "shared_gate": True}, False), ({"rounding_rule": "nearest", "rounding_tile": 8}, False),
    ],
)  # fmt: skip
@torch.no_grad()
def test_modules_whose_weights_the_library_finds(passes, monkeypatch, config, found):
    """The bits must be the same as with the search in Python. If weights or modules are replaced,
    the new ones must be used."""
    block = sonicmoe_go.SonicMoE(128, 64, 4, 2, **config).eval()
    x, searched = torch.randn(2, 12, 128, dtype=torch.bfloat16), []
    search = sonicmoe_go.SonicMoE.with_logits
    monkeypatch.setattr(sonicmoe_go.SonicMoE, "with_logits", lambda *args: searched.append(1) or search(*args))

    def gives(block, want):
        before = len(passes)
        got = block(x)
        assert torch.equal(got, want) and len(passes) == before + 1 and bool(searched) != found
        searched.clear()
        return got

    first = gives(block, search(block, x, False)[0])
    other = copy.deepcopy(block)
    for p in other.parameters():
        p.copy_(torch.randn_like(p) * 0.1)
    second = gives(other, search(other, x, False)[0])
    assert not torch.equal(first, second)
    gives(block, first)
    block.experts.down_proj = other.experts.down_proj
    gives(block, search(block, x, False)[0])
    for name, module in other.named_children():
        setattr(block, name, module)
    gives(block, second)


@torch.no_grad()
def test_modules_whose_weights_the_library_does_not_find(passes):
    """A missing weight must raise an error, and a module that needs the search in Python must get
    it."""
    block = sonicmoe_go.SonicMoE(128, 64, 4, 2)
    x = torch.randn(12, 128, dtype=torch.bfloat16)
    want = block(x)
    for wrong, words in ((x.float(), "x is torch.float32"), (x[:, :64], "x is \\[12, 64\\]"), (x.as_subclass(Other).half(), "x is torch.float16")):
        with pytest.raises(sonicmoe_go.ArgumentError, match=words):
            block(wrong)
    assert torch.equal(block(x.t().contiguous().t()), want) and torch.equal(block(x.as_subclass(Other)), want)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(block(x), want)
    made = _plans.find(_plans.Inference, x, block.config.key, _plans.ROUTER, False)
    paths = block._paths
    queued = len(passes)
    held = [sys.getrefcount(p) for p in block.parameters()]
    nowhere = ((0, (("gate",), "bias")),), ((0, (("other",), "weight")),), ((0, (("gate", "gate"), "weight")),), ((0, ((), "gate")),), ((99, paths[0][1]),), ((-4, paths[0][1]),)
    kept = vars(block)
    for of in (*((x, kept, places) for places in (*nowhere, paths[1:], None)), (x, {}, paths), (x, None, paths), (x, kept), (None, kept, paths), (x.float(), kept, paths)):
        assert made.infer_module(*of) is None
    assert held == [sys.getrefcount(p) for p in block.parameters()]
    del block.gate
    with pytest.raises((KeyError, AttributeError)):
        block(x)
    assert len(passes) == queued


def _given(block):
    return block.gate.weight, None, None, None, block.experts.gate_up_proj, None, block.experts.down_proj, *[None] * (len(_weights.WEIGHTS) - 7)


@torch.no_grad()
def test_passes_of_moe_that_the_library_takes_whole(passes):
    """The library runs a whole call once the configuration has a plan. Other calls and wrong calls
    must go through Python, which raises the errors."""
    block = sonicmoe_go.SonicMoE(128, 64, 4, 2)
    c, weights = block.config, _given(block)
    x = torch.randn(12, 128, dtype=torch.bfloat16)
    of = (x, block.gate.weight, block.experts.gate_up_proj, block.experts.down_proj, c)
    assert c.plan is None
    want, _ = sonicmoe_go.moe(*of)
    plan, queued = c.plan, len(passes)
    held = [sys.getrefcount(t) for t in (None, x, *block.parameters())]
    for _ in range(100):
        assert torch.equal(plan.infer(x, weights), want)
    for wrong in ((x,), (x, weights[:-1]), (x, list(weights)), (x, None), (x[None], weights), (x[0], weights), (x.tolist(), weights), (x.float(), weights), (x, (None, *weights[1:]))):
        assert plan.infer(*wrong) is None
    assert all(after - before < 50 for before, after in zip(held, (sys.getrefcount(t) for t in (None, x, *block.parameters())), strict=True))
    assert len(passes) == queued + 100
    assert torch.equal(sonicmoe_go.moe(*of)[0], want) and len(passes) == queued + 101
    with pytest.raises(sonicmoe_go.ArgumentError, match="x is \\[1, 12, 128\\]"):
        sonicmoe_go.moe(x[None], *of[1:])
    assert torch.equal(sonicmoe_go.moe(*of, logits=True)[0], want)
    for other in (copy.deepcopy(c), pickle.loads(pickle.dumps(c)), dataclasses.replace(c)):
        assert other == c and other.plan is None


def test_calls_that_more_follows(passes, monkeypatch):
    """Gradients, hooks, modes and replaced methods must take effect although a plan exists."""
    block = sonicmoe_go.SonicMoE(128, 64, 4, 2)
    x, seen = torch.randn(12, 128, dtype=torch.bfloat16), []

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    class Own(sonicmoe_go.SonicMoE):
        def forward(self, x):
            seen.append("forward")
            return super().forward(x)

    def note(*_):
        seen.append("hook")

    def replaced(x):
        seen.append("replaced")
        return sonicmoe_go.SonicMoE.forward(block, x)

    with torch.no_grad():
        want = block(x)
        assert block.config.plan.infer_module(x, vars(block), block._paths) is not None
        hooks = [lambda: block.register_forward_hook(note), lambda: block.register_forward_pre_hook(note)]
        hooks += [lambda: nn.modules.module.register_module_forward_hook(note), lambda: nn.modules.module.register_module_forward_pre_hook(note)]
        for hook in hooks:
            handle = hook()
            assert torch.equal(block(x), want) and seen == ["hook"]
            handle.remove()
            assert torch.equal(block(x), want) and seen.pop() == "hook" and not seen
        with Mode():
            assert torch.equal(block(x), want) and torch.ops.sonicmoe_go.forward.default in seen
        block.forward = replaced
        assert torch.equal(block(x), want) and seen[-1] == "replaced"
        del block.forward
        with monkeypatch.context() as m:
            kept = sonicmoe_go.SonicMoE.forward
            m.setattr(sonicmoe_go.SonicMoE, "forward", lambda self, x: seen.append("of all") or kept(self, x))
            assert torch.equal(block(x), want) and seen[-1] == "of all"
        own = Own(128, 64, 4, 2)
        own.load_state_dict(block.state_dict())
        assert all(torch.equal(own(x), want) and seen.pop() == "forward" for _ in range(2))
        assert torch.equal(block(hidden_states=x), want)
        with pytest.raises(TypeError, match="positional argument"):
            block(x, x)
    for y in (block(x), sonicmoe_go.moe(x, block.gate.weight, block.experts.gate_up_proj, block.experts.down_proj, block.config)[0]):
        assert torch.equal(y, want) and y.requires_grad


@pytest.fixture
def slow(monkeypatch):
    """Returns the list of module calls whose weights Python finds."""
    calls, run = [], sonicmoe_go.SonicMoE._run
    monkeypatch.setattr(sonicmoe_go.SonicMoE, "_run", lambda self, *of: calls.append(of) or run(self, *of))
    return calls


def _trained(block, x):
    y = block(x)
    return y, *torch.autograd.grad(y.float().sum(), [p for p in block.parameters() if p.requires_grad])


def test_training_passes_of_a_module_that_the_library_takes_whole(passes, slow):
    """From the second pass on, the library must find the weights, also new ones. It must not keep
    them alive longer than autograd does."""
    block = sonicmoe_go.SonicMoE(128, 64, 4, 2, balance=0.1, router_bias=True, score="sigmoid", selection_bias=True)
    x = torch.randn(2, 12, 128, dtype=torch.bfloat16)
    first = _trained(block, x)
    assert len(slow) == 1 and len(passes) == 2
    held = [sys.getrefcount(p) for p in block.parameters()]
    for _ in range(20):
        again = _trained(block, x)
        assert all(map(torch.equal, first, again))
    del again
    assert len(slow) == 1 and len(passes) == 42 and held == [sys.getrefcount(p) for p in block.parameters()]
    block.experts.down_proj = nn.Parameter(2 * block.experts.down_proj.detach())
    assert torch.equal(block(x), 2 * first[0]) and len(slow) == 1
    for other in (copy.deepcopy(block), pickle.loads(pickle.dumps(block))):
        assert torch.equal(_trained(other, x)[0], 2 * first[0])
    block.requires_grad_(False)
    assert not block(x).requires_grad and block(x.requires_grad_()).requires_grad


def _autocast(block):
    return torch.autocast("cpu", torch.bfloat16)


def _hook(block):
    block.register_forward_hook(lambda *_: None)


def _z_loss(block):
    block.z_loss = 0.5


def _sequences(block):
    block.balance, block.balance_by = 0.1, "sequence"


def _buffer(block):
    weight = block.experts.down_proj
    del block.experts.down_proj
    block.experts.down_proj = weight.detach()


@pytest.mark.parametrize("change", [_autocast, _hook, _z_loss, _sequences, _buffer, sonicmoe_go.SonicMoE.count_loads], ids=lambda f: f.__name__)
def test_training_passes_that_more_follows(passes, slow, change):
    """Python must find the weights if something else has to happen, too. The result must then be
    the same."""
    block = sonicmoe_go.SonicMoE(128, 64, 4, 2)
    x = torch.randn(2, 12, 128, dtype=torch.bfloat16)
    want = _trained(block, x)[0]
    with change(block) or contextlib.nullcontext():
        assert torch.equal(block(x), want) and len(slow) == 2


def test_training_passes_that_do_not_fit(passes, slow):
    block = sonicmoe_go.SonicMoE(128, 64, 4, 2)
    x = torch.randn(2, 12, 128, dtype=torch.bfloat16)
    _trained(block, x)
    for wrong, words in ((x[..., :64], "must be \\[..., 128\\]"), (x.float(), "x is torch.float32"), (None, "x is None, must be a tensor")):
        with pytest.raises(sonicmoe_go.ArgumentError, match=words):
            block(wrong)
    block.gate.weight.data = block.gate.weight.data.half()
    with pytest.raises(sonicmoe_go.ArgumentError, match="router is torch.float16"):
        block(x)


@torch.no_grad()
def test_plans_end_with_a_fork(passes):
    block = sonicmoe_go.SonicMoE(128, 64, 4, 2)
    x = torch.randn(12, 128, dtype=torch.bfloat16)
    block(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        plan = block.config.plan
        os._exit(plan.infer_module(x, vars(block), block._paths) is not None or plan.infer(x, _given(block)) is not None)
    assert os.waitpid(child, 0)[1] == 0
    assert block.config.plan.infer(x, _given(block)) is not None


def test_what_plans_do_not_take_trains_all_the_same(passes):
    """A subclass of Tensor must train through the operators."""
    block = sonicmoe_go.SonicMoE(128, 64, 4, 2)
    x = torch.randn(12, 128, dtype=torch.bfloat16)
    block(x.as_subclass(Other)).sum().backward()
    assert not passes and all(p.grad.any() for p in block.parameters())


def test_plans_of_losses_that_change(monkeypatch):
    """Plans with changing coefficients must not be kept until the process ends."""

    class OnGpu:
        is_cuda = True
        get_device = staticmethod(lambda: 0)

    monkeypatch.setattr(_plans, "_PLAIN", [type])
    monkeypatch.setattr(_plans, "_current_device", lambda: 0)
    monkeypatch.setattr(_library, "layer", lambda *_: None)
    monkeypatch.setattr(_library.current, "plans", plans := {})
    for step in range(5000):
        assert _plans.find(lambda *of: of, OnGpu, CONFIG.key, _plans.ROUTER, False, step / 5000, 0.0)
    assert len(plans) <= 1024
