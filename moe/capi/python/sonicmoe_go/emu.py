"""Runs any kernel on the emulator, without a GPU, and finds its mistakes: deadlocks, races, missing
fences and waits, accesses out of bounds.

    from sonicmoe_go import emu

    emu.check(ptx, grid=(4,), block=(128,), args=[a, b, out, len(a)])  # numpy arrays or CPU tensors

    with emu.triton():  # Triton kernels run on CPU tensors
        kernel[grid](a, b, out, BLOCK=64)

Both raise emu.Mistake if the kernel has a mistake. sonicmoe_go.emu_pytest has fixtures for pytest.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import numbers
import sys

from ._library import ArgumentError, check as _check, library

_REPORT_BYTES = 8 << 20
_SEVERITIES = ("error", "strict", "note")


@dataclasses.dataclass(frozen=True)
class Finding:
    """A mistake of a kernel. line is a line of the PTX, and where is the line of the source. timing,
    seed and choices reproduce the first run that had the mistake."""

    severity: str
    rule: str
    kernel: str
    line: int
    where: str
    cta: tuple[int, int, int]
    warp: int
    lanes: int
    text: str
    timing: str
    seed: int
    choices: str
    runs: int

    def __str__(self):
        where = f" ({self.where})" if self.where else ""
        return f"{self.severity}: kernel {self.kernel}, PTX line {self.line}{where}, CTA {self.cta}, warp {self.warp}: {self.rule}: {self.text}"


class Mistake(AssertionError):
    """The error for a kernel with mistakes. findings lists them."""

    def __init__(self, findings):
        super().__init__("\n".join(map(str, findings)))
        self.findings = findings


@dataclasses.dataclass(frozen=True)
class TensorMap:
    """An argument that is a tensor map (CUtensorMap) of an array, whose last dimension must be
    contiguous. box has the extents of a copy in the order of the array's dimensions. type is needed
    if the array's type does not say it, such as for bf16 in an array of uint16."""

    array: object
    box: tuple[int, ...]
    swizzle: int = 0
    type: str = ""


_MAP_TYPES = {
    "uint8": "u8", "int8": "u8", "uint16": "u16", "int16": "u16", "uint32": "u32", "int32": "s32", "float32": "f32", "float16": "f16", "bfloat16": "bf16",
}  # fmt: skip


class _Buffers:
    """The memory of the arrays among a kernel's arguments. An array that is given twice is one
    buffer."""

    def __init__(self):
        self.addresses: list[int] = []
        self.bytes: list[int] = []

    def add(self, array) -> int:
        """Returns the number of an array's buffer."""
        if hasattr(array, "data_ptr"):  # a tensor of torch
            if array.device.type != "cpu" or not array.is_contiguous():
                raise ArgumentError(f"a tensor on {array.device} with strides {array.stride()}, must be a contiguous CPU tensor")
            at, size = array.data_ptr(), array.numel() * array.element_size()
        else:
            of = array.__array_interface__
            if of["strides"] is not None or of["data"][1]:
                raise ArgumentError("an array is read-only or not contiguous, must be contiguous and writable")
            at, size = of["data"][0], array.nbytes
        for i, (other, n) in enumerate(zip(self.addresses, self.bytes)):
            if (other, n) == (at, size):
                return i
            if size and at < other + n and other < at + size:
                raise ArgumentError("two arrays overlap, must be the same or apart")
        if not size:
            raise ArgumentError("an array has no elements")
        self.addresses.append(at)
        self.bytes.append(size)
        return len(self.bytes) - 1

    def argument(self, value) -> dict:
        """Returns the description of an argument."""
        if isinstance(value, TensorMap):
            return {"map": self._map(value)}
        if hasattr(value, "data_ptr") or hasattr(value, "__array_interface__") and getattr(value, "shape", ()) != ():
            return {"buffer": self.add(value)}
        if isinstance(value, (bytes, bytearray)):
            return {"hex": bytes(value).hex()}
        if hasattr(value, "tobytes"):  # a scalar of numpy
            return {"hex": value.tobytes().hex()}
        if value is None:
            return {"int": 0}
        if isinstance(value, numbers.Integral):
            return {"int": int(value) - (1 << 64) if int(value) >= 1 << 63 else int(value)}
        if isinstance(value, numbers.Real):
            return {"float": float(value)}
        raise ArgumentError(f"an argument is {value!r}, must be an array, a number, bytes or a TensorMap")

    def _map(self, m: TensorMap) -> dict:
        shape = tuple(m.array.shape)
        name = str(m.array.dtype).removeprefix("torch.")
        kind = m.type or _MAP_TYPES.get(name)
        if kind is None or len(m.box) != len(shape):
            raise ArgumentError(f"a map of {name} with shape {shape} and box {m.box}, must have a known type, and as many extents as dimensions")
        size = m.array.itemsize
        strides = [size]
        for n in reversed(shape):
            strides.append(strides[-1] * n)
        return {
            "buffer": self.add(m.array), "type": kind, "dims": shape[::-1], "strides": strides[1:-1], "box": list(m.box)[::-1], "swizzle": m.swizzle,
        }  # fmt: skip


def _three(dims) -> list[int]:
    dims = [dims] if isinstance(dims, int) else list(dims)
    return dims + [1] * (3 - len(dims))


def check(
    ptx: str | bytes, grid, block, args=(), *, kernel: str = "", cluster=(0, 0, 0), shared: int = 0, cooperative: bool = False,
    orders: int = 4, explore: int = 0, keep: bool = True, strict: bool = False, nan: bool = False, seed: int = 0, known=(),
    fail: str = "strict", pad: bool = False,
) -> list[Finding]:  # fmt: skip
    """Runs a kernel in the earliest, the latest and `orders` random orders of its asynchronous work,
    and looks for races in each run. orders=0 runs the kernel once and looks for no races. explore=N
    instead runs N orders systematically. Afterwards the arrays have the result of the first run.

    args has an array, number, bytes or TensorMap for each parameter. A Python number takes the size
    of its parameter. Returns the findings, and raises Mistake if one has at least the severity
    `fail`: "error", "strict" or "note". known lists findings to leave out, such as "37 race".
    """
    if fail not in _SEVERITIES:
        raise ArgumentError(f"fail is {fail!r}, must be one of {', '.join(_SEVERITIES)}")
    buffers = _Buffers()
    run = {
        "ptx": ptx.decode() if isinstance(ptx, bytes) else ptx, "kernel": kernel, "grid": _three(grid), "block": _three(block), "cluster": _three(cluster),
        "shared": shared, "cooperative": cooperative, "args": [buffers.argument(a) for a in args], "buffers": buffers.bytes, "pad": pad,
        "check": 0 if explore else orders, "explore": explore, "keep": keep, "strict": strict, "nan": nan, "seed": seed, "known": list(known),
    }  # fmt: skip
    report = ctypes.create_string_buffer(_REPORT_BYTES)
    _check(library().sm_check_kernel(json.dumps(run).encode(), (ctypes.c_void_p * max(1, len(buffers.bytes)))(*buffers.addresses), report, _REPORT_BYTES))
    told = json.loads(report.value)
    sys.stdout.write(told["printed"])
    found = [Finding(**f | {"cta": tuple(f["cta"])}) for f in told["findings"]]
    bad = [f for f in found if _SEVERITIES.index(f.severity) <= _SEVERITIES.index(fail)]
    if bad:
        raise Mistake(bad)
    return found


def triton(**options):
    """Returns a context in which Triton's kernels are compiled for Hopper and run on the emulator,
    with CPU tensors as arguments. Autotuned kernels run with their first configuration. options are
    passed to check: orders, explore, strict, known and so on. A launch raises Mistake if the kernel has one."""
    from .emu_triton import Emulated

    return Emulated(options)
