"""Forward passes past ctypes and Python's checks: the library itself looks at torch's tensors.

sm_queue_tensors of tensors.h takes a plan, what each tensor must be and where its address goes,
and the tensors; what does not fit goes the way of _passes, which says what is wrong.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from . import _library, _passes
from ._library import Config
from ._weights import Shapes

_DLPACK_TYPES = {torch.int32: (0, 32), torch.float32: (2, 32), torch.float16: (2, 16), torch.bfloat16: (4, 16)}
_CUDA = 2  # as DLPack numbers devices
_TENSORS = 24


class _Wanted(ctypes.Structure):
    """sm_wanted."""

    _fields_ = [
        ("field", ctypes.c_uint32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("rank", ctypes.c_uint8),
        ("any", ctypes.c_uint8), ("shape", ctypes.c_int64 * 3),
    ]  # fmt: skip


class _PlanStruct(ctypes.Structure):
    """sm_plan."""

    _fields_ = [
        ("layer", ctypes.c_uint64), ("queue", ctypes.c_void_p), ("exchange", ctypes.c_void_p), ("none", ctypes.c_void_p),
        ("types", ctypes.c_void_p * 2), ("item", ctypes.c_void_p), ("type_of", ctypes.c_void_p), ("forget", ctypes.c_void_p),
        ("unraise", ctypes.c_void_p), ("leave", ctypes.c_void_p), ("enter", ctypes.c_void_p),
        ("device_type", ctypes.c_int32), ("device_index", ctypes.c_int32), ("top_k", ctypes.c_int64),
        ("count", ctypes.c_uint32), ("inner_routing", ctypes.c_uint32), ("wanted", _Wanted * _TENSORS),
    ]  # fmt: skip


def _address(function) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value


@functools.cache
def _exchange() -> int:
    """The address of torch's functions for DLPack, 0 where it has none of version 1."""
    capsule = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return 0
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.argtypes, pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
    address = pointer(capsule, b"dlpack_exchange_api")
    return address if ctypes.c_uint32.from_address(address).value == 1 else 0


@functools.cache
def _queue_tensors(path: str):
    """The function of the library, which holds Python's lock but while it queues."""
    function = ctypes.PyDLL(path).sm_queue_tensors
    function.argtypes, function.restype = (ctypes.c_void_p, ctypes.py_object, ctypes.c_int64), ctypes.c_int
    return function


class Plan:
    """Passes of one kind of a layer on one device: tensors are what they take, x first."""

    def __init__(self, l: _library.Layer, queue: int, tensors: Shapes, inner_routing: bool, device: tuple[int, int]):
        python = ctypes.pythonapi
        self._layer, self._inner_routing = l, inner_routing
        self._struct = s = _PlanStruct(
            layer=l.handle, queue=queue, exchange=_exchange(), none=id(None), types=(id(Tensor), id(nn.Parameter)),
            item=_address(python.PyTuple_GetItem), type_of=_address(python.PyObject_Type), forget=_address(python.Py_DecRef),
            unraise=_address(python.PyErr_Clear), leave=_address(python.PyEval_SaveThread),
            enter=_address(python.PyEval_RestoreThread), device_type=device[0], device_index=device[1], top_k=l.config.top_k,
            count=1 + len(tensors), inner_routing=inner_routing,
        )  # fmt: skip
        workspace = ("workspace", torch.uint8, ())
        for w, (name, dtype, shape) in zip(s.wanted, (tensors[0], workspace, *tensors[1:])):
            w.field = 8 * _passes.FIELDS.index(name)
            w.any = name == "workspace"
            if dtype is not None and not w.any:
                w.code, w.bits = _DLPACK_TYPES[dtype]
                w.shape[: len(shape)] = shape
            w.rank = 0 if dtype is None else max(len(shape), 1)
        self._address = ctypes.addressof(s)
        self._queue = _queue_tensors(_library.path())
        self._rooms: dict[int, tuple[int, int]] = {}

    def queue(self, x: Tensor, *others: Tensor | None) -> bool:
        """Queues a pass; False, and nothing queued, where a tensor is not what is wanted."""
        t = x.shape[0]
        room = self._rooms.get(t)
        if room is None:
            if len(self._rooms) >= 4096:
                self._rooms.clear()
            room = self._rooms[t] = _passes.room(self._layer, t, 0, self._inner_routing)
        need, whole = room
        workspace = torch.empty(whole, dtype=torch.uint8, device=x.device)
        status = self._queue(self._address, (x, workspace, *others), need)
        if status > 0:
            _library.check(status)
        return status == 0


def plan(key: str, routed: bool, x: Tensor, tensors: Callable[[Config], Shapes]) -> Plan | None:
    """The plan of passes on x; None where the way of _passes must be gone."""
    if not x.is_cuda or x.dim() != 2:
        return None
    index = x.get_device()
    # The library makes the device's context current on this thread: torch must be there too.
    if index != torch._C._cuda_getDevice() or not _exchange():
        return None
    plans = _library.plans()
    found = plans.get((key, index, tensors))
    if found is None:
        l = _library.layer(key, f"cuda:{index}")
        found = plans[key, index, tensors] = Plan(l, l.address(routed), tensors(l.config), not routed, (_CUDA, index))
    return found
