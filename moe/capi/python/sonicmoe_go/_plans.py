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
_TENSORS, _KEPT_SIZES = 24, 64
_FASTCALL = 0x80


def _struct(name: str, /, **fields) -> type[ctypes.Structure]:
    return type(name, (ctypes.Structure,), {"_fields_": list(fields.items())})


_pointer, _u8, _i32, _u32, _i64 = ctypes.c_void_p, ctypes.c_uint8, ctypes.c_int32, ctypes.c_uint32, ctypes.c_int64
# sm_wanted, sm_kept, sm_python and sm_plan, and Python's PyMethodDef.
_Wanted = _struct("_Wanted", field=_u32, code=_u8, bits=_u8, rank=_u8, rows=_u8, shape=_i64 * 3)
_Kept = _struct("_Kept", tokens=_i64, bytes=_i64)
_Python = _struct(
    "_Python", exchange=_pointer, none=_pointer, types=_pointer * 2, pointer_in=_pointer, number=_pointer, type_of=_pointer,
    forget=_pointer, unraise=_pointer, leave=_pointer, enter=_pointer,
)  # fmt: skip
_Plan = _struct(
    "_Plan", layer=ctypes.c_uint64, queue=_pointer, sizes=_pointer, device_type=_i32, device_index=_i32, top_k=_i64, count=_u32,
    inner_routing=_u32, wanted=_Wanted * _TENSORS, kept=_Kept * _KEPT_SIZES,
)  # fmt: skip
_Method = _struct("_Method", name=ctypes.c_char_p, function=_pointer, flags=ctypes.c_int, doc=ctypes.c_char_p)


def _address(function) -> int:
    return ctypes.cast(function, _pointer).value


@functools.cache
def _exchange() -> int:
    """The address of torch's functions for DLPack, 0 where it has none of version 1."""
    capsule = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return 0
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.argtypes, pointer.restype = (ctypes.py_object, ctypes.c_char_p), _pointer
    address = pointer(capsule, b"dlpack_exchange_api")
    return address if _u32.from_address(address).value == 1 else 0


@functools.cache
def _method() -> _Method:
    """sm_queue_tensors as Python's interface has functions, of the library that knows this Python."""
    api, lib = ctypes.pythonapi, _library.library()
    lib.sm_use_python.restype = None
    lib.sm_use_python(
        ctypes.byref(
            _Python(
                exchange=_exchange(), none=id(None), types=(id(Tensor), id(nn.Parameter)), pointer_in=_address(api.PyCapsule_GetPointer),
                number=_address(api.PyLong_FromLong), type_of=_address(api.PyObject_Type), forget=_address(api.Py_DecRef),
                unraise=_address(api.PyErr_Clear), leave=_address(api.PyEval_SaveThread), enter=_address(api.PyEval_RestoreThread),
            )  # fmt: skip
        )
    )
    return _Method(b"queue", _address(lib.sm_queue_tensors), _FASTCALL, None)


class Plan:
    """Passes of one kind of a layer on one device: tensors are what they take, x first."""

    def __init__(self, l: _library.Layer, queue: int, tensors: Shapes, inner_routing: bool, device: tuple[int, int]):
        self._struct = s = _Plan(
            layer=l.handle, queue=queue, sizes=_address(_library.library().sm_sizes), device_type=device[0], device_index=device[1],
            top_k=l.config.top_k, count=len(tensors), inner_routing=inner_routing,
        )  # fmt: skip
        for w, (name, dtype, shape) in zip(s.wanted, tensors):
            w.field, w.rows = 8 * _passes.FIELDS.index(name), name in ("x", "o")
            if dtype is not None:
                w.code, w.bits = _DLPACK_TYPES[dtype]
                w.shape[: len(shape)] = shape
                w.rank = len(shape)
        capsule, function = ctypes.pythonapi.PyCapsule_New, ctypes.pythonapi.PyCFunction_NewEx
        capsule.argtypes, capsule.restype = (_pointer, _pointer, _pointer), ctypes.py_object
        function.argtypes, function.restype = (ctypes.POINTER(_Method), ctypes.py_object, _pointer), ctypes.py_object
        # A function that Python calls without ctypes: the status, -1 where a tensor is not what is wanted.
        self._queue = function(_method(), capsule(ctypes.addressof(s), None, None), None)

    def queue(self, *tensors: Tensor | None) -> bool:
        """Queues a pass; False, and nothing queued, where a tensor is not what is wanted."""
        status = self._queue(*tensors)
        if status > 0:
            _library.check(status)
        return status == 0


def plan(key: str, routed: bool, x: Tensor, tensors: Callable[[Config], Shapes]) -> Plan | None:
    """The plan of passes on x; None where the way of _passes must be gone."""
    if not x.is_cuda:
        return None
    index = x.get_device()
    # The library makes the device's context current on this thread: torch must be there too.
    if index != torch._C._cuda_getDevice():
        return None
    plans = _library.plans()
    found = plans.get((key, index, tensors))
    if found is None and _exchange():
        l = _library.layer(key, f"cuda:{index}")
        found = plans[key, index, tensors] = Plan(l, l.address(routed), tensors(l.config), not routed, (_CUDA, index))
    return found
