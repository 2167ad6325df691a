"""Versions, devices and paths of this installation, for reports of bugs."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

from . import _library

__version__ = "0.1.0"  # as in pyproject.toml


def info() -> dict[str, object]:
    """Returns the versions of this package, Python, PyTorch and the GPU's driver, the names of the GPUs,
    and the paths of the library, of its bundle of kernels, and of the cache. A missing one is None.

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
        "cache": cache or str(Path(home) / "sonicmoe"),
    }
