"""The names of SonicMoE's own Python package (arXiv 2512.14080, versions 0.1.0 to 0.1.2):

    from sonicmoe_go.sonicmoe import MoE, KernelBackendMoE
    from sonicmoe_go.sonicmoe.enums import ActivationType

After sonicmoe_go.install_as_sonicmoe() programs import them as sonicmoe, unchanged. The
constructor, names and layouts of weights, and results are the same as in that package.
"""

from .count_cumsum import count_cumsum
from .enums import ActivationType, KernelBackendMoE
from .functional import enable_quack_gemm, moe_general_routing_inputs, moe_TC_softmax_topk_layer
from .moe import Experts, MoE

__version__ = "0.1.2.post1"  # the version of the package whose names these are

__all__ = [
    "ActivationType", "Experts", "KernelBackendMoE", "MoE", "count_cumsum", "enable_quack_gemm", "moe_TC_softmax_topk_layer",
    "moe_general_routing_inputs",
]  # fmt: skip
