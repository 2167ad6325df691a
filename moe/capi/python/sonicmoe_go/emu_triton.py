"""A driver for Triton that runs kernels on the emulator. It needs Triton 3.5 or newer, and no GPU."""

from __future__ import annotations

from pathlib import Path

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.driver import driver

from . import emu
from ._library import ArgumentError


class Emulated(DriverBase):
    """A driver for Triton. Within `with`, it is Triton's active driver."""

    def __init__(self, options: dict):
        super().__init__()
        self.options = options
        self.utils = self
        self.launcher_cls = self._launcher
        self._ptx = None

    def __enter__(self):
        self._before = driver._active
        driver.set_active(self)
        knobs.runtime.kernel_load_start_hook.add(self._loads)
        return self

    def __exit__(self, *error):
        knobs.runtime.kernel_load_start_hook.remove(self._loads)
        driver.set_active(self._before)

    # Questions of Triton's runtime about the driver and the device.

    @classmethod
    def is_active(cls):
        return False

    def map_python_to_cpp_type(self, ty):
        return ty

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self):
        return torch.device("cpu")

    def get_benchmarker(self):
        # The emulator has no times. All configurations count as equally fast, so an autotuned kernel
        # runs with its first one.
        return lambda call, quantiles=(0.5,): [1.0] * len(quantiles)

    def get_current_device(self):
        # A device of its own for each context, because Triton keeps the kernels of a device loaded.
        return self

    def get_current_stream(self, device):
        return 0

    def get_device_properties(self, device):
        return {"max_shared_mem": 232448, "multiprocessor_count": 132, "max_num_regs": 65536, "warpSize": 32}

    # Loading and launching.

    def _loads(self, module, function, name, metadata_group, hash):
        """Remembers the PTX of the kernel that Triton is about to load."""
        self._ptx = Path(metadata_group[f"{name}.ptx"]).read_text()

    def load_binary(self, name, kernel, shared, device):
        """Returns a module, a function, registers, spills and the most threads of a CTA."""
        return name, (name, self._ptx), 0, 0, 1024

    def _launcher(self, src, metadata):
        """Returns the function that launches a kernel."""
        types = list(src.signature.values())

        def launch(x, y, z, stream, function, packed, about, enter, leave, *args):
            if any(str(t).startswith("tensordesc") for t in types):
                raise ArgumentError(f"kernel {function[0]} has a tensor descriptor of the host, which the emulator does not take: make it in the kernel")
            clusters = getattr(metadata, "cluster_dims", None) or (1, 1, 1)
            grid = [n * c for n, c in zip((x, y, z), clusters)]
            given = [a for a, t in zip(args, types, strict=True) if t != "constexpr"]
            # The compiler adds the addresses of scratch memory for the whole grid.
            scratch = (getattr(metadata, "global_scratch_size", 0) or 0) * grid[0] * grid[1] * grid[2]
            if scratch:
                given.append(torch.zeros(scratch, dtype=torch.uint8))
            emu.check(
                function[1], grid, 32 * metadata.num_warps, given, kernel=function[0], cluster=clusters, shared=metadata.shared,
                cooperative=bool(getattr(metadata, "launch_cooperative_grid", False)), pad=True, **self.options,
            )  # fmt: skip

        return launch
