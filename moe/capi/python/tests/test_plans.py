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
    made.kept = queue
    return made, queued


def test_pass(plan):
    made, queued = plan
    given = tensors()
    assert made.queue(*given)
    (handle, got), = queued
    need, _ = _passes.room(made._layer, TOKENS, 0, True)
    assert handle == made._layer.handle
    assert (got["size"], got["tokens"], got["workspace_bytes"], got["stream"]) == (BYTES, TOKENS, need, 0)
    names = [name for name, *_ in _ops._inferred(CONFIG)]
    assert {n: got[n] for n in names} == {n: 0 if t is None else t.data_ptr() for n, t in zip(names, given)}
    assert got["workspace"] and got["scores"] == got["workspace"] + need
    assert got["expert_ids"] == got["scores"] + 4 * TOKENS * CONFIG.top_k
    rest = set(_passes.FIELDS) - set(names) - {"size", "tokens", "workspace_bytes", "workspace", "scores", "expert_ids"}
    assert not any(got[n] for n in rest)


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
        _with(0, lambda x: x.t().contiguous().t()), _with(0, lambda x: x.view(TOKENS, 1, -1)), _with(0, lambda x: x.to("meta")),
        _with(0, lambda x: x.as_subclass(Other)), _with(1, lambda o: o[1:]), _with(1, lambda o: None), _with(1, lambda o: [o]),
        _with(1, lambda o: o.to_sparse()), _with(2, lambda _: torch.zeros(TOKENS, 4)), _with(3, lambda r: r[:, ::2]),
        _with(4, lambda _: torch.zeros(4)), _with(7, lambda w: w.transpose(1, 2)), _with(7, lambda w: "w1"),
        lambda ts: ts[:-1],
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
    refused = _plans.Plan(made._layer, ctypes.cast(lib.sm_forward, ctypes.c_void_p).value, _ops._inferred(CONFIG), True, (1, 0))
    refused._struct.layer = 0
    with pytest.raises(sonicmoe_go.ArgumentError, match="layer is 0, must be the handle of an open layer"):
        refused.queue(*tensors())
