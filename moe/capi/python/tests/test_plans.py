"""Passes for which the library looks at torch's tensors itself, with a function of the test in
place of sm_forward and tensors of the CPU in place of a GPU's."""

import ctypes
import struct

import pytest
import torch
from torch import nn

import sonicmoe_go
from sonicmoe_go import _library, _ops, _passes, _plans

CONFIG = sonicmoe_go.Config(128, 64, 4, 2, bias=True)
TOKENS = 24
BYTES = 8 * len(_passes.FIELDS)

pytestmark = pytest.mark.skipif(not _plans._exchange(), reason="this torch has no DLPack functions for C")


def tensors():
    """x, o, no logits, and the weights of CONFIG."""
    made = [None if dtype is None else torch.randn([TOKENS if n < 0 else n for n in shape]).to(dtype)
            for _, dtype, shape in _ops._inferred(CONFIG)]  # fmt: skip
    made[3] = nn.Parameter(made[3])
    return made


@pytest.fixture
def plan():
    """A plan, and the passes that it queued."""
    sonicmoe_go.emulate()
    queued = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p)
    def queue(handle, address):
        words = struct.unpack(f"={len(_passes.FIELDS)}Q", ctypes.string_at(address, BYTES))
        queued.append((handle, dict(zip(_passes.FIELDS, words, strict=True))))
        return 0

    l = _library.layer(CONFIG.key, "emulated")
    address = ctypes.cast(queue, ctypes.c_void_p).value
    made = _plans.Plan(l, address, _ops._inferred(CONFIG), True, (1, 0))
    made.layer, made.kept = l, queue
    return made, queued


def test_pass(plan):
    made, queued = plan
    given = tensors()
    assert made.queue(*given)
    (handle, got), = queued
    need, _ = _passes.room(made.layer, TOKENS, 0, True)
    assert handle == made.layer.handle
    assert (got["size"], got["tokens"], got["workspace_bytes"], got["stream"]) == (BYTES, TOKENS, need, 0)
    names = [name for name, *_ in _ops._inferred(CONFIG)]
    assert {n: got[n] for n in names} == {n: 0 if t is None else t.data_ptr() for n, t in zip(names, given)}
    assert got["workspace"] and got["scores"] == got["workspace"] + need
    assert got["expert_ids"] == got["scores"] + 4 * TOKENS * CONFIG.top_k
    rest = set(_passes.FIELDS) - set(names) - {"size", "tokens", "workspace_bytes", "workspace", "scores", "expert_ids"}
    assert not any(got[n] for n in rest)


def test_batches_of_sequences(plan):
    made, queued = plan
    x, o, *rest = tensors()
    assert made.queue(x.view(2, 3, 4, -1), o.view(1, TOKENS, -1), *rest)
    assert queued[0][1]["tokens"] == TOKENS
    assert not made.queue(x.view(2, 12, -1).transpose(0, 1), o, *rest)


def test_workspace_of_each_number_of_tokens(plan):
    """Numbers that share a place in the plan's table have sizes of their own."""
    made, queued = plan
    x, o, *rest = tensors()
    for t in (1, 65, 1, 129, 0, 64, 65):
        x, o = torch.zeros(t, 128, dtype=torch.bfloat16), torch.zeros(t, 128, dtype=torch.bfloat16)
        assert made.queue(x, o, *rest)
        got = queued[-1][1]
        need, _ = _passes.room(made.layer, t, 0, True)
        assert (got["tokens"], got["workspace_bytes"]) == (t, need)
        assert got["expert_ids"] - got["workspace"] == need + (4 * t * CONFIG.top_k + 15 & -16)


def test_the_workspace_goes_back(plan):
    made, queued = plan
    x, o, *rest = tensors()
    x, o = (t.new_zeros(1 << 14, 128) for t in (x, o))

    def reserved():
        """KiB of this process's addresses."""
        with open("/proc/self/status") as f:
            return next(int(line.split()[1]) for line in f if line.startswith("VmSize"))

    assert made.queue(x, o, *rest)
    before = reserved()
    for _ in range(100):
        assert made.queue(x, o, *rest)
    assert reserved() - before < 10 * queued[0][1]["workspace_bytes"] >> 10


class Other(torch.Tensor):
    """A type that DLPack's functions are not asked about."""


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
    assert not made.queue(*change(tensors()))
    assert not queued
    assert made.queue(*tensors())  # nothing of it stays


def test_error_of_a_pass(plan):
    made, _ = plan
    lib = _library.library()
    refused = _plans.Plan(made.layer, ctypes.cast(lib.sm_forward, ctypes.c_void_p).value, _ops._inferred(CONFIG), True, (1, 0))
    refused._struct.layer, refused._struct.kept[TOKENS] = 0, (TOKENS, 1)
    with pytest.raises(sonicmoe_go.ArgumentError, match="layer is 0, must be the handle of an open layer"):
        refused.queue(*tensors())
