"""Passes without ctypes and without checks in Python: the library itself reads torch's tensors.

The C function sm_queue_tensors of tensors.h takes the tensors and a plan. The plan says what each
tensor must be, and in which field its address goes. If a tensor does not fit, the call goes through
_passes, which raises the error.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from . import _library, _passes
from ._library import Config
from ._weights import CONSTANT, DTYPES, expert_shapes, shapes

_DLPACK_TYPES = {torch.uint8: (1, 8), torch.int32: (0, 32), torch.float32: (2, 32), torch.float16: (2, 16), torch.bfloat16: (4, 16)}
_CUDA = 2  # the number of CUDA devices in DLPack
_TENSORS, _PARTS, _PART_ALIGN, _KNOWN_SIZES = 96, 6, 256, 64
_ROWS, _OPTIONAL, _GRADIENT, _ADDED, _KEPT, _LISTED = 1, 2, 4, 8, 16, 32
_FASTCALL = 0x80
_PLAIN = Tensor, nn.Parameter


def _struct(name: str, /, **fields) -> type[ctypes.Structure]:
    return type(name, (ctypes.Structure,), {"_fields_": list(fields.items())})


_pointer, _u8, _i32, _u32, _i64, _u64 = ctypes.c_void_p, ctypes.c_uint8, ctypes.c_int32, ctypes.c_uint32, ctypes.c_int64, ctypes.c_uint64
# These are sm_wanted, sm_part, sm_known, sm_python and sm_plan, and PyMethodDef of Python.
_Wanted = _struct("_Wanted", field=_u32, code=_u8, bits=_u8, rank=_u8, how=_u8, shape=_i64 * 3)
_Part = _struct("_Part", field=_i64, token_bytes=_i64, entry_bytes=_i64)
_Known = _struct("_Known", tokens=_i64, entries=_i64, bytes=_i64)
_Python = _struct(
    "_Python", exchange=_pointer, none=_pointer, types=_pointer * 2, pointer_in=_pointer, number=_pointer, type_of=_pointer,
    hold=_pointer, forget=_pointer, unraise=_pointer, leave=_pointer, enter=_pointer, length=_pointer, item=_pointer, tuple=_pointer, set=_pointer, integer=_pointer, within=_pointer,
    size=_pointer, attribute=_pointer, call=_pointer, current_device=_pointer, empty_like=_pointer, watchers=_pointer * 3,
    modules=_pointer, parameters=_pointer, buffers=_pointer, hooks=_pointer, global_hooks=_pointer,
)  # fmt: skip
_Plan = _struct(
    "_Plan", layer=_u64, queue=_pointer, sizes=_pointer, device_type=_i32, device_index=_i32, backward=_u32, entries=_u32,
    count=_u32, parts_count=_u32, kept=_u32, wanted=_Wanted * _TENSORS, parts=_Part * _PARTS, known=_Known * _KNOWN_SIZES,
    begins=_u64, rest=_u8 * (_passes.size_of(backward=True) - 8),
)  # fmt: skip
_Method = _struct("_Method", name=ctypes.c_char_p, function=_pointer, flags=ctypes.c_int, doc=ctypes.c_char_p)


def _address(function) -> int:
    return ctypes.cast(function, _pointer).value


@functools.cache
def _exchange() -> int:
    """Returns the address of torch's DLPack functions, or 0 if torch has none of version 1."""
    capsule = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return 0
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.argtypes, pointer.restype = (ctypes.py_object, ctypes.c_char_p), _pointer
    address = pointer(capsule, b"dlpack_exchange_api")
    return address if _u32.from_address(address).value == 1 else 0


def forward_mode() -> bool:
    """Whether forward-mode differentiation is active. Only tensors inside of it show this."""
    return forward_ad._current_level >= 0


def _unseen() -> bool:
    """Whether forward-mode autograd or torch.jit observes operators. They would not see a pass of a
    plan."""
    return forward_ad._current_level >= 0 or is_tracing()


# The library stores the addresses of these objects.
_EMPTY_LIKE, _NAMES = torch.empty_like, ("_modules", "_parameters", "_buffers")
_WATCHERS = torch.is_grad_enabled, torch._C._len_torch_dispatch_stack, _unseen
# These are attributes that the call of an nn.Module reads, and that an instance may override.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_compiled_call_impl", "forward")
_GLOBAL_HOOKS = tuple(getattr(nn.modules.module, "_global" + name) for name in _HOOKS[:4])
is_tracing = torch._C._is_tracing
_current_device = getattr(torch._C, "_cuda_getDevice", None)  # missing in a torch without CUDA


@functools.cache
def _methods() -> tuple[_Method, ...]:
    """Returns sm_queue_tensors, sm_infer, sm_infer_module and sm_weights_of as Python builtins."""
    api, lib = ctypes.pythonapi, _library.library()
    modules, parameters, buffers = map(id, _NAMES)
    lib.sm_use_python.restype = None
    lib.sm_use_python(
        ctypes.byref(
            _Python(
                exchange=_exchange(), none=id(None), types=(id(Tensor), id(nn.Parameter)), pointer_in=_address(api.PyCapsule_GetPointer),
                number=_address(api.PyLong_FromLong), type_of=_address(api.PyObject_Type), hold=_address(api.Py_IncRef), forget=_address(api.Py_DecRef),
                unraise=_address(api.PyErr_Clear), leave=_address(api.PyEval_SaveThread), enter=_address(api.PyEval_RestoreThread),
                length=_address(api.PyTuple_Size), item=_address(api.PyTuple_GetItem), tuple=_address(api.PyTuple_New), set=_address(api.PyTuple_SetItem), integer=_address(api.PyLong_AsSsize_t),
                within=_address(api.PyDict_GetItemWithError), size=_address(api.PyDict_Size), attribute=_address(api.PyObject_GetAttr),
                call=_address(api.PyObject_CallFunctionObjArgs), current_device=id(_current_device), empty_like=id(_EMPTY_LIKE),
                watchers=tuple(map(id, _WATCHERS)), modules=modules, parameters=parameters, buffers=buffers,
                hooks=id(_HOOKS), global_hooks=id(_GLOBAL_HOOKS),
            )  # fmt: skip
        )
    )
    return tuple(_Method(name.encode(), _address(getattr(lib, "sm_" + name)), _FASTCALL, None) for name in ("queue_tensors", "infer", "infer_module", "weights_of"))


# A tensor that a pass takes: the field of its address, its type (None if it must be absent), its
# shape, and the bits that say how it is passed.
Wanted = tuple[str, torch.dtype | None, tuple[int, ...], int]
# Memory of a pass that is no tensor of its own: the field of its address, and its bytes for each
# token and for each entry.
Part = tuple[str, int, int]


class Plan:
    """Passes of one kind, of one layer on one device.

    queue takes the wanted tensors. It returns the status of the pass, or -1 without queueing
    anything if a tensor does not fit. infer takes x [T, d] and all weights. infer_module takes x,
    the __dict__ of a module, and the places of the module's weights. Both return o, or None if the
    call must take another way. weights_of takes the arguments of infer_module, for a pass that
    autograd records, and returns the weights. All four functions keep the plan's memory alive.
    """

    def __init__(
        self, l: _library.Layer, function: int, wanted: Iterable[Wanted], parts: Iterable[Part], device: tuple[int, int],
        fields: dict[str, int] = _passes.FORWARD, **constants: float,
    ):  # fmt: skip
        wanted, parts, backward = list(wanted), list(parts), fields is _passes.BACKWARD
        self._struct = s = _Plan(
            layer=l.handle, queue=function, sizes=_address(_library.library().sm_sizes), device_type=device[0], device_index=device[1],
            backward=backward, entries=fields["entries"] * any(how & _LISTED for *_, how in wanted), count=len(wanted),
            parts_count=len(parts), kept=any(how & _KEPT for *_, how in wanted), begins=_passes.size_of(backward),
        )  # fmt: skip
        for w, (name, dtype, shape, how) in zip(s.wanted, wanted):
            w.field, w.how = fields.get(name, 0), how
            if dtype is not None:
                w.code, w.bits = _DLPACK_TYPES[dtype]
                w.shape[: len(shape)] = shape
                w.rank = len(shape)
        for p, (name, token_bytes, entry_bytes) in zip(s.parts, parts):
            p.field, p.token_bytes, p.entry_bytes = fields[name], token_bytes, entry_bytes
        for name, value in constants.items():
            kind = _i64 if isinstance(value, int) else ctypes.c_double
            kind.from_buffer(s, _Plan.begins.offset + fields[name]).value = value
        capsule, function = ctypes.pythonapi.PyCapsule_New, ctypes.pythonapi.PyCFunction_NewEx
        capsule.argtypes, capsule.restype = (_pointer, _pointer, _pointer), ctypes.py_object
        function.argtypes, function.restype = (ctypes.POINTER(_Method), ctypes.py_object, ctypes.py_object), ctypes.py_object
        # Python calls these functions directly, without ctypes.
        self.queue, self.infer, self.infer_module, self.weights_of = (function(m, capsule(ctypes.addressof(s), None, None), s) for m in _methods())


# The source of a pass's routing: the layer's router, or the caller. The caller gives top_k experts
# for each token, or a list.
ROUTER, GIVEN, LISTED = range(3)


def _operands(c: Config, routing: int) -> list[Wanted]:
    """Returns the tensors that follow x in a pass: the routing if the caller gives it, and the
    weights."""
    if routing == ROUTER:
        return [(*of, 0) for of in shapes(c)]
    listed = routing == LISTED
    each = (-2,) if listed else (-1, c.top_k)
    given = [("scores", torch.float32, each, _LISTED * listed), ("expert_ids", torch.int32, each, 0)]
    return given + [("token_indices", torch.int32, each, 0)] * listed + [(*of, 0) for of in expert_shapes(c)]


def _chosen(c: Config) -> list[Part]:
    """Returns the scores and ids that a pass with the layer's router writes."""
    return [("scores", 4 * c.top_k, 0), ("expert_ids", 4 * c.top_k, 0)]


def _given(c: Config, logits: bool) -> list[Wanted]:
    """Returns x, o and logits, which are the first tensors of every forward pass."""
    own, rows = DTYPES[c.type], (-1, c.hidden)
    return [("x", own, rows, _ROWS), ("o", own, rows, _ROWS), ("logits", DTYPES[c.logits] if logits else None, (-1, c.num_experts), 0)]


class Inference(Plan):
    """A plan for inference. Its tensors are x, o, logits and the operands."""

    def __init__(self, l: _library.Layer, device: tuple[int, int], routing: int, logits: bool):
        c, routed = l.config, routing != ROUTER
        wanted, parts = [*_given(c, logits), *_operands(c, routing)], [] if routed else _chosen(c)
        super().__init__(l, l.address("experts" if routed else "forward"), wanted, parts, device)


class Training:
    """Two plans for training. The tensors of the forward pass are x, o, logits, the saved tensors
    and the operands. The tensors of the backward pass are d_o, d_logits, the forward tensors
    without o, and then dx and the gradients of the operands, which are written or added to."""

    def __init__(
        self, l: _library.Layer, device: tuple[int, int], routing: int, logits: bool, balance: float, z_loss: float, sequence: int = 0
    ):  # fmt: skip
        self.config, self.logits = l.config, logits
        c, routed, listed = l.config, routing != ROUTER, routing == LISTED
        # One tensor holds everything that is saved for backward, because each tensor costs the host
        # as much as half a kernel.
        width = DTYPES[c.type].itemsize
        row = c.h_width * width
        parts = [("h", 0, row) if listed else ("h", c.top_k * row, 0)]
        if c.lora_rank:  # backward is faster if it need not compute these products again
            u = c.lora_u_width * width
            parts.append(("lora_u", 0, u) if listed else ("lora_u", c.top_k * u, 0))
        if c.shared_experts:
            parts.append(("shared_h", c.shared_experts * row, 0))
        if not routed:
            parts += _chosen(c)
            if not logits and (balance or z_loss or c.saves_logits):
                parts.append(("logits", c.num_experts * DTYPES[c.logits].itemsize, 0))
        self.bytes, self.listed = tuple(n for _, *n in parts), listed
        self._known = None, 0
        self._before_ids = self.bytes[: [name for name, *_ in parts].index("expert_ids")] if not routed else ()
        (x, o, l_out), kept, operands = _given(c, logits), ("kept", torch.uint8, (-1,), _KEPT), _operands(c, routing)
        # Absent operands are left out, because None costs autograd as much as a tensor.
        self.there = [dtype is not None for _, dtype, *_ in operands]
        operands = [of for of, there in zip(operands, self.there) if there]
        forward = [x, o, l_out, kept, *operands]
        self.forward = Plan(l, l.address("experts" if routed else "forward"), forward, parts, device)
        # Backward does not need the selection bias, and only weights can have a main_grad. Scales of
        # packed weights have no gradient, even if their parameters ask for one.
        self.names = [name for name, *_ in operands]
        self.bias_at = self.names.index("selection_bias") if "selection_bias" in self.names else None
        if self.bias_at is not None:
            del self.names[self.bias_at], operands[self.bias_at]
        self.trained = [name not in CONSTANT for name in self.names]
        gradients, into = [("dx", *x[1:3], _ROWS | _OPTIONAL)], []
        for name, dtype, shape, _ in operands:
            weight = name not in ("scores", "expert_ids", "token_indices")
            dtype = dtype if (weight or name == "scores") and name not in CONSTANT else None
            gradients.append(("d_" + name, dtype, shape, _OPTIONAL | _GRADIENT * weight))
            into.append(("d_" + name, dtype if weight else None, shape, _OPTIONAL | _GRADIENT | _ADDED))
        d_logits = ("d_logits", torch.float32 if logits else None, (-1, c.num_experts), _OPTIONAL)
        backward = [("d_o", *x[1:]), d_logits, x, l_out, kept, *operands, *gradients, *into]
        function = l.address("experts_backward" if routed else "backward")
        losses = {"balance": float(balance), "z_loss": float(z_loss), "sequence": sequence}
        self.backward = Plan(l, function, backward, parts, device, _passes.BACKWARD, **losses)

    def kept_bytes(self, tokens: int, entries: int = 0) -> int:
        """Returns the bytes that a forward pass saves, given its numbers of tokens and of list
        entries."""
        size, known = (tokens, entries), self._known
        if known[0] != size:  # most passes have the same size as the previous one
            self._known = known = size, _aligned(self.bytes, tokens, entries)
        return known[1]

    def ids(self, kept: Tensor, tokens: int) -> Tensor:
        """Returns the ids [T, K] that a forward pass with the layer's router has saved in the
        tensor kept."""
        at, k = _aligned(self._before_ids, tokens, 0), self.config.top_k
        return kept[at : at + 4 * k * tokens].view(torch.int32).view(tokens, k)


def _aligned(parts: Iterable[tuple[int, int]], tokens: int, entries: int) -> int:
    """Returns the bytes of parts that lie one after another, each aligned."""
    return sum(n * tokens + m * entries + _PART_ALIGN - 1 & -_PART_ALIGN for n, m in parts)


def find(kind: type, x: Tensor, key: str, routing: int, logits: bool, *losses: float | int) -> Inference | Training | None:
    """Returns the plan for a kind of passes on x, or None if the pass must go through _passes."""
    if type(x) not in _PLAIN:  # a subclass may refuse empty_like
        return None
    index = x.get_device()
    # The library makes the device's context current on this thread. Torch's current device must be
    # the same.
    if index < 0 or index != _current_device():
        return None
    which = kind, index, key, routing, logits, losses
    found = _library.current.plans.get(which)
    if found is None and x.is_cuda and _exchange():
        if len(_library.current.plans) >= 1024:  # if the coefficients or lengths of losses change, each step makes a new plan
            _library.current.plans.clear()
        found = kind(_library.layer(key, f"cuda:{index}"), (_CUDA, index), routing, logits, *losses)
        _library.current.plans[which] = found
    return found
