"""Devices for tensors: a GPU, on which tensors are used in place, or the emulated device, to which
CPU tensors are copied."""

from __future__ import annotations

import contextlib
import ctypes

import torch

from ._library import ArgumentError, check, library

_emulated = False


def emulate(on: bool = True) -> None:
    """Makes layers run CPU tensors on the emulated device. It is slow and exact, for tests."""
    global _emulated
    _emulated = on


def name_of(x: torch.Tensor) -> str:
    """Returns the name of the device that runs a layer on x."""
    if x.device.type == "cuda":
        return f"cuda:{x.device.index}"
    if x.device.type == "cpu" and _emulated:
        return "emulated"
    hint = ", or sonicmoe_go.emulate() before, which runs it slowly on the emulated device" if x.device.type == "cpu" else ""
    raise ArgumentError(f"x is on {x.device}, must be on a CUDA device{hint}")


class Gpu:
    """Tensors of a GPU: their addresses, and the current stream of their device."""

    def __init__(self, x: torch.Tensor):
        self.index = x.device.index

    def __enter__(self):
        # The library makes the device's context current on this thread, and torch must agree. The
        # guard does this, and costs nothing if torch's device is already the same.
        self._guard = None
        if torch.cuda.current_device() != self.index:
            self._guard = torch.cuda.device(self.index)
            self._guard.__enter__()
        self.stream = torch._C._cuda_getCurrentRawStream(self.index)
        return self

    def __exit__(self, *error):
        if self._guard is not None:
            self._guard.__exit__(*error)

    @staticmethod
    def read(t: torch.Tensor | None) -> int:
        return 0 if t is None else t.data_ptr()

    written = read

    @staticmethod
    def read_all(ts) -> list[int]:
        return [0 if t is None else t.data_ptr() for t in ts]


class Emulated:
    """CPU tensors. They are copied to the emulated device, and back if the pass writes them."""

    stream = 0

    def __init__(self, device: int):
        self.device = device
        self.owned = contextlib.ExitStack()
        self.back: list[tuple[torch.Tensor, int]] = []

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        with self.owned:
            if kind is None:
                for tensor, address in self.back:
                    check(library().sm_read(self.device, 0, tensor.data_ptr(), address, tensor.nbytes))

    def _alloc(self, t: torch.Tensor) -> int:
        address = ctypes.c_uint64()
        check(library().sm_alloc(self.device, max(t.nbytes, 1), address))
        self.owned.callback(library().sm_free, self.device, address.value)
        return address.value

    def read(self, t: torch.Tensor | None) -> int:
        """Returns the address of a copy of a tensor on the device."""
        if t is None:
            return 0
        address = self._alloc(t)
        check(library().sm_write(self.device, 0, address, t.data_ptr(), t.nbytes))
        return address

    def read_all(self, ts) -> list[int]:
        """Returns the addresses of copies of tensors on the device."""
        return [self.read(t) for t in ts]

    def written(self, t: torch.Tensor | None) -> int:
        """Returns the address of device memory that is copied to the tensor when the pass has
        ended."""
        if t is None:
            return 0
        # A pass that adds to a tensor needs the tensor's present content.
        address = self.read(t)
        self.back.append((t, address))
        return address
