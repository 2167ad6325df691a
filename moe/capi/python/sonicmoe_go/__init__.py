"""Mixture-of-Experts layers on Hopper GPUs, forward and backward, for PyTorch.

    layer = sonicmoe_go.SonicMoE(hidden=2048, intermediate=768, num_experts=128, top_k=8, device="cuda")
    y = layer(x)
    y.sum().backward()

The work is done by one shared library, sonicmoe/moe of Go, which needs a GPU's driver
and nothing else: no toolkit, no compiler. moe and moe_experts are functions, Config what
a layer can be, warm fills a cache of kernels ahead of time. register_with_transformers
makes the experts of transformers' models run here; sonicmoe_go.sonicmoe has the names of
SonicMoE's own package.

Use it in processes that were spawned, or forked before its first use: Go can't go on
after a fork. One process can hold one Go runtime: another Python package made with Go
can't be loaded beside it.
"""

from ._device import emulate
from ._library import ArgumentError, Config, Error, warm
from .functional import moe, moe_experts
from .module import SonicMoE
from .transformers import register_with_transformers

__all__ = [
    "ArgumentError", "Config", "Error", "SonicMoE", "emulate", "moe", "moe_experts", "register_with_transformers", "warm",
]  # fmt: skip
