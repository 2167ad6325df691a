"""The enums of SonicMoE's package."""

from __future__ import annotations

from enum import Enum

LIBRARY_NAME = "sonicmoe"
TENSORMAP = "tensormap"


class KernelBackendMoE(Enum):
    """The kernels to use. SonicMoE's package has several; here they are this library's kernels, and
    torch to compare with."""

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
    """Returns the activation for an enum of this package, an enum of SonicMoE's own package, or a
    name."""
    return ActivationType(getattr(activation, "value", activation))


def is_glu(activation_type: Enum | str) -> bool:
    """Whether an activation has a gate."""
    return activation_of(activation_type) in (ActivationType.SWIGLU, ActivationType.GEGLU, ActivationType.REGLU)
