"""The choices of SonicMoE's package."""

from __future__ import annotations

from enum import Enum

LIBRARY_NAME = "sonicmoe"
TENSORMAP = "tensormap"


class KernelBackendMoE(Enum):
    """SonicMoE's choice of kernels. This library has its own, and torch to compare with."""

    scattermoe = "scattermoe"
    torch = "torch"
    sonicmoe = "sonicmoe"


class ActivationType(Enum):
    """The activation of the experts."""

    SWIGLU = "swiglu"
    GEGLU = "geglu"
    REGLU = "reglu"
    RELU_SQ = "relu_sq"
    RELU = "relu"
    GELU = "gelu"
    SILU = "silu"


def activation_of(activation: Enum | str) -> ActivationType:
    """Returns an activation of this package, of SonicMoE's own, or of a name."""
    return ActivationType(getattr(activation, "value", activation))


def is_glu(activation_type: Enum | str) -> bool:
    """Whether an activation has a gate."""
    return activation_of(activation_type) in (ActivationType.SWIGLU, ActivationType.GEGLU, ActivationType.REGLU)
