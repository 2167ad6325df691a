"""Versions, devices and paths of this installation, for bug reports."""

from __future__ import annotations

import mmap
import os
import platform
import warnings
from pathlib import Path

import torch

from . import _library

__version__ = "0.1.0"  # as in pyproject.toml


def info() -> dict[str, object]:
    """Returns the versions of this package, Python, PyTorch and the GPU's driver, the names of the
    GPUs, and the paths of the library, of its bundle of kernels, and of the cache. If one of them
    does not exist, its value is None. kernels says whether the bundle has machine code, or PTX,
    which the driver compiles at the first use. lacks has a sentence for each part that is missing.

    The library is not loaded.
    """
    gpu, bundle = torch.cuda.is_available(), _library.bundle()
    library, cache = Path(_library.path()), os.environ.get("SONICMOE_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return {
        "sonicmoe_go": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "driver": torch._C._cuda_getDriverVersion() if gpu else None,
        "gpus": [torch.cuda.get_device_properties(i).name for i in range(torch.cuda.device_count())] if gpu else [],
        "library": str(library) if library.exists() else None,
        "bundle": str(bundle) if bundle.exists() else None,
        "kernels": _kernels(bundle),
        "lacks": _lacks(),
        "cache": cache or str(Path(home) / "sonicmoe"),
    }


def _kernels(bundle: Path) -> str | None:
    """Returns in which form a bundle has its kernels."""
    if not bundle.exists():
        return None
    # Machine code is an ELF file that follows the PTX of its entry. An entry has less than a MiB.
    with bundle.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return "machine code" if data.find(b"\x7fELF", 0, 1 << 20) >= 0 else "PTX"


def _lacks() -> list[str]:
    """Returns a sentence for each part of the package that is missing."""
    library, bundle = Path(_library.path()), _library.bundle()
    if not library.exists():
        way = "set SONICMOE_GO_LIBRARY to the library" if os.environ.get("SONICMOE_GO_LIBRARY") else "install the wheel that `pip wheel moe/capi/python` builds"
        return [f"{library} is missing, and nothing runs without it: {way}"]
    if os.environ.get("SONICMOE_GO_LIBRARY"):
        return []  # a library that the user built needs no bundle
    if not bundle.exists():
        return [f"{bundle} is missing: kernels of known models are compiled at their first use"]
    if _kernels(bundle) == "PTX":
        return ["the wheel has no machine code: the driver compiles kernels of known models at their first use; build it with nvidia-cuda-nvcc installed"]
    return []


def _warn_of_lacks() -> None:
    """Warns of missing parts when the package is imported."""
    for said in _lacks():
        warnings.warn(f"sonicmoe_go: {said}", RuntimeWarning, stacklevel=3)
