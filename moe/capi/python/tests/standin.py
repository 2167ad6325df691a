"""Makes plans usable for CPU tensors. A function replaces each pass of the library. It copies the
tensors to the emulated device, runs the pass there, and copies the results back."""

import ctypes
import math
import struct

import torch

from sonicmoe_go import _library, _passes, _plans, _weights
from sonicmoe_go._device import Emulated
from sonicmoe_go._weights import DTYPES

_BYTES = {0: 2, 1: 4, 3: 2}  # the size of type and accumulate in an sm_gradient


def _region(address: int, size: int) -> torch.Tensor:
    """Returns the memory at an address as a tensor."""
    if not size:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)


def fields(function: str, address: int) -> tuple[bytearray, dict]:
    """Returns the bytes and the fields of a pass's struct. The value of an sm_gradient includes its
    type and accumulate."""
    backward = "backward" in function
    of, raw = _passes.BACKWARD if backward else _passes.FORWARD, bytearray(ctypes.string_at(address, _passes.size_of(backward)))
    got = {n: struct.unpack_from("=Q", raw, at)[0] for n, at in of.items()}
    return raw, got | {(n, "how"): struct.unpack_from("=ii", raw, at + 8) for n, at in of.items() if n[2:] in _weights.WEIGHTS and n[:2] == "d_"}


class StandIn:
    """A layer whose passes take CPU tensors. passes lists the function and the fields of each
    queued pass."""

    def __init__(self, key: str):
        self.real = _library.layer(key, "emulated")
        self.config, self.handle, self.passes, self._kept = self.real.config, self.real.handle, [], []

    def address(self, function: str) -> int:
        @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p)
        def queue(_, address):
            return self._run(function, address)

        self._kept.append(queue)
        return ctypes.cast(queue, ctypes.c_void_p).value

    def _run(self, function: str, address: int) -> int:
        raw, got = fields(function, address)
        self.passes.append((function, got))
        with Emulated(self.real.device) as device:
            for name, at in (_passes.BACKWARD if "backward" in function else _passes.FORWARD).items():
                size = self._bytes(got, name)
                if got[name] and size is not None:
                    struct.pack_into("=Q", raw, at, device.written(_region(got[name], size)))
            status = getattr(_library.library(), "sm_" + function)(self.handle, bytes(raw))
            if status:
                device.back.clear()
        return status

    def _bytes(self, got: dict, name: str) -> int | None:
        """Returns the size of the memory to which a field points, or None if the field is no
        address."""
        c, t = self.config, got["tokens"]
        rows = got["entries"] or t * c.top_k
        own, logits = (DTYPES[n].itemsize for n in (c.type, c.logits))
        weights = {n: (math.prod(shape), dtype.itemsize) for n, dtype, shape in _weights.shapes(c) if dtype}
        if name in weights:
            return math.prod(weights[name])
        if name[:2] == "d_" and name[2:] in weights:
            return weights[name[2:]][0] * _BYTES[got[name, "how"][0]]
        return {
            "workspace": got["workspace_bytes"], "lora_u": 2 * rows * -(-c.lora_rank // 8) * 8 * own, "h": rows * c.h_width * own, "shared_h": t * c.shared_experts * c.h_width * own,
            "logits": t * c.num_experts * logits, "d_logits": t * c.num_experts * 4,
            **dict.fromkeys(("x", "o", "d_o", "dx"), t * c.hidden * own), **dict.fromkeys(("scores", "expert_ids", "d_scores", "token_indices"), rows * 4),
        }.get(name)  # fmt: skip


def use(monkeypatch) -> list:
    """Makes every pass that can use a plan use it, on CPU tensors. Returns a list to which these
    passes are added."""
    plans, passes, layers = {}, [], []

    def find(kind, x, key, *of):
        if x.device.type != "cpu":
            return None
        if (kind, key, of) not in plans:
            layers.append(layer := StandIn(key))  # a plan stores only addresses, so these objects must stay alive
            layer.passes = passes
            plans[kind, key, of] = kind(layer, (1, 0), *of)
        return plans[kind, key, of]

    monkeypatch.setattr(_plans, "find", find)
    # A configuration may live longer than the plans of a test.
    monkeypatch.setattr(_library.Config, "keep", lambda c, plan: monkeypatch.setitem(vars(c), "plan", plan))
    return passes
