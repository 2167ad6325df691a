"""Mixture-of-Experts layers on Hopper GPUs, forward and backward, for PyTorch.

    layer = sonicmoe_go.SonicMoE(hidden=2048, intermediate=768, num_experts=128, top_k=8, device="cuda")
    y = layer(x)
    y.sum().backward()

The kernels come from one shared library, which contains the Go package sonicmoe/moe. The library
needs a GPU's driver, but no toolkit and no compiler.

Config describes a layer. moe and moe_experts are functions, and warm fills a cache of kernels in
advance. register_with_transformers lets models of transformers use the library for their experts.
sonicmoe_go.sonicmoe has the names of SonicMoE's own package, and install_as_sonicmoe lets programs
import them as sonicmoe.

Use the package in processes that were spawned, or that were forked before their first use of it: Go
does not work in the child of a fork. A process can hold only one Go runtime, so another Python
package made with Go cannot be loaded in the same process.
"""

from ._device import emulate
from ._library import ArgumentError, Config, Error, store_layer, warm
from .adapter_files import load_adapter, save_adapter
from .balancing import balance_selection
from .functional import moe, moe_experts, update_selection_bias
from .info import __version__, _warn_of_lacks, info
from .install import install_as_sonicmoe
from .module import SonicMoE
from .sharding import clip_grad_norm_, shard_experts
from .transformers import register_with_transformers

__all__ = [
    "ArgumentError", "Config", "Error", "SonicMoE", "balance_selection", "clip_grad_norm_", "emulate", "info", "install_as_sonicmoe", "load_adapter", "moe", "moe_experts",
    "register_with_transformers", "save_adapter", "shard_experts", "store_layer", "update_selection_bias", "warm",
]  # fmt: skip

_warn_of_lacks()
