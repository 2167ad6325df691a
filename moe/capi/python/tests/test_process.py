"""Tests threads, forks and wrong calls. A wrong call must raise an error, and the process must
continue."""

import dataclasses
import os
import re
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
import torch
from reference import CONFIG, tensors

import sonicmoe_go
from sonicmoe_go import _weights


def at_once(device, *calls):
    """Repeats each call on a thread and a stream of its own, and compares the results with the
    first result."""
    want = [call() for call in calls]
    if device == "cuda":
        torch.cuda.synchronize()
    bad = []

    def work(call, want):
        with torch.cuda.stream(torch.cuda.Stream() if device == "cuda" else None):
            for _ in range(4):
                if not all(torch.equal(a, b) for a, b in zip(call(), want, strict=True)):
                    bad.append(1)

    threads = [threading.Thread(target=work, args=of) for of in zip(calls, want)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not bad


def test_threads_share_a_layer(device):
    ts = tensors(device)

    @torch.no_grad()
    def call():
        return sonicmoe_go.moe(*ts, CONFIG)[:1]

    at_once(device, *[call] * 8)


def test_two_layers_at_once(device):
    """Runs training steps of two layers at the same time, with two threads for each."""

    def step(c):
        ts = tensors(device)
        return lambda: torch.autograd.grad(sonicmoe_go.moe(*ts, c)[0].float().square().sum(), ts)

    at_once(device, *[step(c) for c in (CONFIG, configs(top_k=1)) for _ in range(2)])


def test_two_streams(device):
    """Runs training steps of two layers on two streams at the same time."""
    if device != "cuda":
        pytest.skip("the emulated device has one stream")
    others = sonicmoe_go.Config(hidden=128, intermediate=64, num_experts=4, top_k=1)
    given = [(tensors(device, tokens=1 << 12), c) for c in (CONFIG, others)]

    def step(ts, c):
        return torch.autograd.grad(sonicmoe_go.moe(*ts, c)[0].float().square().sum(), ts)

    want = [step(*g) for g in given]
    torch.cuda.synchronize()
    for _ in range(10):
        got = []
        for g in given:
            with torch.cuda.stream(torch.cuda.Stream()):
                got.append(step(*g))
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for w, g in zip(want, got) for a, b in zip(w, g))


def test_child_of_a_fork_is_told(device):
    if device == "cuda":
        pytest.skip("CUDA itself does not live on after a fork")
    ts = tensors(device)
    with torch.no_grad():
        sonicmoe_go.moe(*ts, CONFIG)
    out, into = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            with torch.no_grad():
                sonicmoe_go.moe(*ts, CONFIG)
            said = "nothing"
        except sonicmoe_go.Error as err:
            said = str(err)
        os.write(into, said.encode())
        os._exit(0)
    os.close(into)
    with os.fdopen(out) as pipe:
        assert "forked from one that had used sonicmoe_go" in pipe.read()
    os.waitpid(child, 0)
    with torch.no_grad():
        sonicmoe_go.moe(*ts, CONFIG)


def configs(**changes):
    return sonicmoe_go.Config(**({"hidden": 128, "intermediate": 64, "num_experts": 4, "top_k": 2} | changes))


class Shards(torch.Tensor):
    """A tensor that wraps others, like parameters of FSDP before they are gathered."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    __tensor_unflatten__ = staticmethod(lambda tensors, *_: Shards(tensors["inner"]))

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return cls(args[0].inner) if function is torch.ops.aten.detach.default else NotImplemented


# Wrong tensors, with the text of the error that they must raise.
TENSORS = [
    ("x dtype", 0, lambda t: t.float(), "x is torch.float32, must be torch.bfloat16"),
    ("x half", 0, lambda t: t.half(), "x is torch.float16"),
    ("x rank", 0, lambda t: t[None], "x is [1, 24, 128]"),
    ("x one", 0, lambda t: t[0], "x is [128]"),
    ("x width", 0, lambda t: t[:, :64], "x is [24, 64], must be [24, 128]"),
    ("x strides", 0, lambda t: t.repeat(1, 2)[:, ::2], "must be contiguous"),
    ("x turned", 0, lambda t: t.T.contiguous().T, "must be contiguous"),
    ("x shards", 0, Shards, "x is a Shards, must be a plain tensor"),
    ("router shards", 1, Shards, "router is a Shards, must be a plain tensor (FSDP has to gather the layer as one"),
    ("router dtype", 1, lambda t: t.float(), "router is torch.float32"),
    ("router experts", 1, lambda t: t[:3], "router is [3, 128], must be [4, 128]"),
    ("router strides", 1, lambda t: t.T.contiguous().T, "router has strides"),
    ("router meta", 1, lambda t: t.to("meta"), "router is on meta"),
    ("w1 dtype", 2, lambda t: t.double(), "w1 is torch.float64"),
    ("w1 rows", 2, lambda t: t[:, :64], "w1 is [4, 64, 128], must be [4, 128, 128]"),
    ("w1 flat", 2, lambda t: t.flatten(), "w1 is [65536]"),
    ("w1 turned", 2, lambda t: t.mT, "w1 has strides"),
    ("w2 dtype", 3, lambda t: t.int(), "w2 is torch.int32"),
    ("w2 turned", 3, lambda t: t.mT.contiguous(), "w2 is [4, 64, 128], must be [4, 128, 64]"),
    ("w2 experts", 3, lambda t: t[:2], "w2 is [2, 128, 64]"),
    ("w2 meta", 3, lambda t: t.to("meta"), "w2 is on meta"),
]


@pytest.mark.parametrize("name, which, change, words", TENSORS, ids=[t[0] for t in TENSORS])
@pytest.mark.parametrize("grad", [False, True])
def test_wrong_tensors(device, name, which, change, words, grad):
    ts = tensors(device)
    ts[which] = change(ts[which].detach())
    ts[which].requires_grad_(grad and ts[which].is_floating_point())
    with torch.set_grad_enabled(grad), pytest.raises(sonicmoe_go.ArgumentError) as got:
        sonicmoe_go.moe(*ts, CONFIG)
    assert words in str(got.value)


ROUTING = [
    ("scores dtype", 0, lambda t: t.bfloat16(), "scores is torch.bfloat16, must be torch.float32"),
    ("scores slots", 0, lambda t: t[:, :1], "scores is [24, 1], must be [24, 2]"),
    ("scores tokens", 0, lambda t: t[:7], "scores is [7, 2]"),
    ("scores strides", 0, lambda t: t.T.contiguous().T, "scores has strides"),
    ("ids dtype", 1, lambda t: t.long(), "expert_ids is torch.int64, must be torch.int32"),
    ("ids slots", 1, lambda t: t[:, :1], "expert_ids is [24, 1]"),
    ("ids meta", 1, lambda t: t.to("meta"), "expert_ids is on meta"),
]


@pytest.mark.parametrize("name, which, change, words", ROUTING, ids=[t[0] for t in ROUTING])
def test_wrong_routing(device, name, which, change, words):
    x, _, w1, w2 = tensors(device)
    routing = [torch.rand(24, 2, device=device), torch.zeros(24, 2, dtype=torch.int32, device=device)]
    routing[which] = change(routing[which])
    with pytest.raises(sonicmoe_go.ArgumentError, match="must be") as got:
        sonicmoe_go.moe_experts(x, *routing, w1, w2, CONFIG)
    assert words in str(got.value)


def whole(device):
    """Returns a configuration that has every weight, and the weights by name."""
    c = configs(
        bias=True, gate_up="apart", router_bias=True, score="softmax", selection_bias=True, expert_scale=True, shared_experts=2, shared_gate=True
    )
    weights = {name: torch.zeros(shape, dtype=dtype, device=device) for name, dtype, shape in _weights.shapes(c)}
    return c, weights


NAMES = ("w3", "b1", "b3", "b2", "router_bias", "selection_bias", "expert_scale", "shared_w1", "shared_w3", "shared_w2", "shared_gate")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wrong", ["missing", "type", "shape", "too many"])
def test_wrong_weights(device, wrong, name):
    """Checks the errors for each weight that only some layers have."""
    c, weights = whole(device)
    x = torch.zeros(4, 128, dtype=torch.bfloat16, device=device)
    if wrong == "missing":
        weights[name], words = None, f"{name} is None, must be ["
    elif wrong == "type":
        weights[name], words = weights[name].double(), f"{name} is torch.float64, must be torch."
    elif wrong == "shape":
        weights[name], words = weights[name][..., 1:], f"{name} is ["
    else:
        x, *needed = (t.detach() for t in tensors(device))
        weights = dict(zip(("router", "w1", "w2"), needed)) | {name: weights[name]}
        c, words = CONFIG, f"{name} is {list(weights[name].shape)}, must be None with "
    with pytest.raises(sonicmoe_go.ArgumentError) as got:
        sonicmoe_go.moe(x, config=c, **weights)
    assert words in str(got.value)


def test_a_hundred_wrong_calls():
    """Each wrong call raises an error with its own text."""
    assert 2 * len(TENSORS) + len(ROUTING) + len(CONFIGS) + 4 * len(NAMES) >= 100


CONFIGS = [
    ({"rounding_rule": "often"}, "Config.rounding_rule is 'often', must be one of none"),
    ({"rounding_tile": 8}, "Config.rounding_tile is 8"),
    ({"rounding_rule": "nearest", "rounding_tile": 5000}, "Config.rounding_tile is 5000"),
    ({"rounding_rule": "capacity-drop"}, "Config.rounding_capacity is 0"),
    ({"rounding_raw_scores": True}, "Config.rounding_raw_scores is true"),
    ({"shared_gate": True}, "Config.shared_gate"),
    ({"hidden": 100}, "Config.hidden is 100"),
    ({"hidden": 0}, "Config.hidden is 0"),
    ({"hidden": -128}, "Config.hidden is -128"),
    ({"hidden": 2**40}, "Config.hidden is 1099511627776"),
    ({"hidden": 2**70}, "Config.hidden is"),
    ({"hidden": 128.0}, "Config.hidden is 128.0, must be a whole number"),
    ({"hidden": "128"}, "Config.hidden is '128'"),
    ({"intermediate": 63}, "Config.intermediate is 63"),
    ({"num_experts": 0}, "Config.num_experts is 0"),
    ({"num_experts": 5000}, "Config.num_experts is 5000"),
    ({"top_k": 0}, "Config.top_k is 0"),
    ({"top_k": 5}, "Config.top_k is 5"),
    ({"type": "f32"}, "Config.type"),
    ({"type": "float"}, "Config.type is 'float', must be one of bf16"),
    ({"activation": "tanh"}, "Config.activation is 'tanh'"),
    ({"gate_up": 3}, "Config.gate_up is 3"),
    ({"score": "max"}, "Config.score is 'max'"),
    ({"bias": "no"}, "Config.bias is 'no', must be True or False"),
    ({"shared_gate": 2}, "Config.shared_gate is 2, must be True or False"),
    ({"limit": "7"}, "Config.limit is '7', must be a number"),
    ({"limit": -1.0}, "Config.limit is -1"),
    ({"alpha": float("nan")}, "Config.alpha"),
    ({"groups": 3, "top_groups": 1}, "Config."),
    ({"norm_epsilon": -1.0}, "Config.norm_epsilon"),
    ({"shared_experts": -1}, "Config.shared_experts"),
    ({"tokens_hint": -1}, "Config.tokens_hint"),
    ({"group_score": "sum2"}, "Config.group_score is sum2, must be best where groups is 0"),
    ({"weights": "mxfp4", "weight_order": "in-out"}, "Config.weight_order is in-out, must be out-in with weights mxfp4"),
]


@pytest.mark.parametrize("changes, words", CONFIGS, ids=[str(c[0]) for c in CONFIGS])
def test_wrong_configs(device, changes, words):
    from sonicmoe_go import _device, _library

    with pytest.raises(sonicmoe_go.ArgumentError) as got:
        _library.layer(configs(**changes).key, _device.name_of(torch.empty(0, device=device)))
    assert words in str(got.value)


def test_gate_of_no_shared_expert():
    with pytest.raises(sonicmoe_go.ArgumentError, match="shared_gate is True, must be False without shared_experts"):
        sonicmoe_go.SonicMoE(128, 64, 4, 2, shared_gate=True)


def test_config_is_documented():
    from sonicmoe_go import _library

    words = set(re.findall(r"\w+", _library.Config.__doc__))
    for field in dataclasses.fields(_library.Config):
        assert field.name in words, field.name
    for field, names in _library._ENUMS.items():
        for name in names if field != "type" else ("bf16", "f16"):
            assert f'"{name}"' in _library.Config.__doc__, name


def test_misaligned(device):
    if device != "cuda":
        pytest.skip("copies to the emulated device are aligned")
    ts = tensors(device)
    ts[0] = torch.zeros(24 * 128 + 1, dtype=torch.bfloat16, device=device)[1:].view(24, 128)
    with pytest.raises(sonicmoe_go.ArgumentError, match="multiple of 16"):
        sonicmoe_go.moe(*ts, CONFIG)


def test_cpu_is_not_emulated_in_silence():
    from sonicmoe_go import _device

    was = _device._emulated
    try:
        sonicmoe_go.emulate(False)
        with pytest.raises(sonicmoe_go.ArgumentError, match="x is on cpu, must be on a CUDA device, or sonicmoe_go.emulate"):
            sonicmoe_go.moe(*tensors("cpu"), CONFIG)
    finally:
        sonicmoe_go.emulate(was)


def test_no_gpu_is_said():
    from sonicmoe_go import _library

    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(sonicmoe_go.Error, match="no CUDA driver"):
        _library.device("cuda:0")


def test_backward_of_what_was_not_saved(device):
    from sonicmoe_go import _ops

    ts = tensors(device)
    x, router, w1, w2 = ts
    o = _ops.forward(x, router, *[None] * 3, w1, None, w2, *[None] * (len(_weights.WEIGHTS) - 7), CONFIG.key, False, False, 0.0, 0.0, 0, False, None)[0]
    with pytest.raises(sonicmoe_go.ArgumentError, match="save=True"):
        o.sum().backward()


LEAKS = """
import resource, sys
import torch
import sonicmoe_go
from conftest import DEVICE
from reference import CONFIG, tensors
from test_process import TENSORS

ts = tensors(DEVICE, tokens=1)
wrong = []
for _, which, change, _ in TENSORS:
    wrong.append([change(t.detach()) if i == which else t for i, t in enumerate(tensors(DEVICE))])

def refused(calls):
    for i in range(calls):
        try:
            sonicmoe_go.moe(*wrong[i % len(wrong)], CONFIG)
        except sonicmoe_go.ArgumentError:
            pass
        else:
            sys.exit("no error")

def done(calls):
    for _ in range(calls):
        torch.autograd.grad(sonicmoe_go.moe(*ts, CONFIG)[0].sum(), ts)
        with torch.no_grad():
            sonicmoe_go.moe(*ts, CONFIG)

def kept():  # KiB of the host, bytes of the GPU
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, torch.cuda.memory_allocated() if DEVICE == "cuda" else 0

def grown(work, calls):
    before = kept()
    work(calls)
    difference = [a - b for a, b in zip(kept(), before)]
    print(*difference)
    return difference[0]

few = 2_500 if DEVICE == "cuda" else 50
refused(1_000), done(few)
grown(refused, 10_000)
for _ in range(20):
    if grown(done, few) < 1 << 10:
        break
"""


def test_nothing_leaks():
    """Neither wrong nor right calls may leave memory behind. The test runs in a process of its
    own."""
    pytest.importorskip("resource")
    here = Path(__file__).parent
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(here), os.environ.get("PYTHONPATH"))))}
    run = subprocess.run([sys.executable, "-c", LEAKS], capture_output=True, text=True, timeout=300, env=env)
    assert run.returncode == 0, run.stderr
    (refused, *_), *done = lines = [tuple(map(int, line.split())) for line in run.stdout.splitlines()]
    assert refused < 1 << 10, "KiB of 10,000 calls"
    # The heap of Go grows for a while, while its collector waits for a busy processor. A leak grows
    # in every round.
    assert min(host for host, _ in done) < 1 << 10, "KiB of 50 calls"
    assert not any(device for _, device in lines), "bytes"
