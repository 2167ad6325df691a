"""Packed experts of transformers 5, in the form in which transformers holds them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ._library import ArgumentError

_BLOCK = 128


def packing(experts: nn.Module) -> str:
    """Returns the word of Config.weights for a module of experts. It is "plain" for 16-bit weights
    and for formats that no layer takes."""
    if type(experts).__name__ == "Mxfp4GptOssExperts":
        return "mxfp4"
    w, scales = getattr(experts, "down_proj", None), getattr(experts, "down_proj_scale_inv", None)
    if is_fp4(experts):
        return "mxfp4"
    if scales is None or w.dtype is not torch.float8_e4m3fn or tuple(getattr(experts, "block_size", None) or ()) != (_BLOCK, _BLOCK):
        return "plain"
    return "fp8" if scales.dtype is torch.float32 else "fp8-ue8m0"


def is_fp4(experts: nn.Module) -> bool:
    """Reports whether a module is an FP8Experts of FP4 (DeepSeek-V4): MXFP4 in the order of gpt-oss's files,
    with the scales in gate_up_proj_scale_inv and down_proj_scale_inv."""
    w, scales = getattr(experts, "down_proj", None), getattr(experts, "down_proj_scale_inv", None)
    if scales is None or w.dtype is not torch.int8 or scales.element_size() != 1:
        return False
    return scales.shape == (*w.shape[:2], w.shape[2] * 2 // _GROUP)


class _Tensors(nn.Module):
    """Holds tensors without gradients, by name."""

    def __init__(self, **tensors: Tensor):
        super().__init__()
        for name, t in tensors.items():
            self.register_parameter(name, nn.Parameter(t, requires_grad=False))


def mxfp4(experts: nn.Module) -> nn.Module:
    """Returns the codes and scales of a Mxfp4GptOssExperts in the order of the model's files, with
    the experts' biases. transformers holds codes and scales in the order of Triton's kernels. For FP4
    of an FP8Experts, the result shares the memory of its codes and scales."""
    if is_fp4(experts):
        up = "gate_up_proj" if experts.has_gate else "up_proj"
        return _like(experts, {of: getattr(experts, name).detach().view(torch.uint8) for w in (up, "down_proj") for of, name in ((w, w), (f"{w}_scales", f"{w}_scale_inv"))})
    tensors = {}
    for name in ("gate_up_proj", "down_proj"):
        w, precision = getattr(experts, name), getattr(experts, f"{name}_precision_config")
        if precision is None:
            raise ArgumentError(f"{type(experts).__name__}.{name} has no scales, must be loaded from a checkpoint")
        scales = _unswizzled(precision.weight_scale)
        tensors[name] = _unswizzled(w).reshape(*scales.shape[:2], -1).contiguous()
        tensors[f"{name}_scales"] = scales.contiguous()
        tensors[f"{name}_bias"] = getattr(experts, f"{name}_bias").detach().bfloat16()
    made = _shaped(_Tensors(**tensors))
    made.alpha, made.limit = experts.alpha, experts.limit
    return made


def _shaped(experts: nn.Module) -> nn.Module:
    """Tells PEFT the shapes of the weights [E, out, in], which differ from the shapes of their codes.
    PEFT looks for the shape of a weight of which a process has only a part, and finds it here."""
    for name, codes in experts.named_parameters():
        if hasattr(experts, f"{name}_scales"):
            codes.ds_shape = torch.Size((*codes.shape[:2], 2 * codes.shape[2]))
    return experts


# The values of the codes 0 to 7. Codes 8 to 15 are their negatives.
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_GROUP = 32


@torch.no_grad()
def quantised(w: Tensor) -> tuple[Tensor, Tensor]:
    """Returns weights [..., in] as MXFP4: codes [..., in/2] and scales [..., in/32], both u8. The scale
    of a group of 32 is the power of two for which the group's largest value is 4 to 8 times the scale.
    Values are rounded to the nearest code. Values above 6 times the scale get the code of 6."""
    if w.shape[-1] % _GROUP:
        raise ArgumentError(f"weights are {list(w.shape)}, must have inputs in groups of {_GROUP} for MXFP4")
    groups = w.float().unflatten(-1, (-1, _GROUP))
    exponents = (groups.abs().amax(-1).log2().floor() - 2).clamp(-127, 127)  # of a group of zeros: -127
    values = (groups / torch.exp2(exponents)[..., None]).contiguous()
    grid = torch.tensor(_E2M1, device=w.device)
    codes = torch.bucketize(values.abs(), (grid[1:] + grid[:-1]) / 2).to(torch.uint8)
    codes = (codes | (values < 0).to(torch.uint8) << 3).flatten(-2)
    return codes[..., ::2] | codes[..., 1::2] << 4, (exponents + 127).to(torch.uint8)


def to_mxfp4(experts: nn.Module) -> nn.Module:
    """Returns a module of experts of transformers with its weights rounded to MXFP4. The result has the
    form of a result of mxfp4."""
    if not isinstance(getattr(experts, "down_proj", None), Tensor):
        raise ArgumentError(f"{type(experts).__name__} has no down_proj, must have one with a dimension of experts for MXFP4")
    tensors = {}
    for name, w in experts.named_parameters(recurse=False):
        if w.dim() == 3:
            w = w.detach().transpose(1, 2) if getattr(experts, "is_transposed", False) else w.detach()
            tensors[name], tensors[f"{name}_scales"] = quantised(w)
        else:
            tensors[name] = w.detach().bfloat16()
    return _like(experts, tensors)


def _like(experts: nn.Module, tensors: dict[str, Tensor]) -> nn.Module:
    """Returns a module with the given tensors and with the activation of a module of experts."""
    made = _shaped(_Tensors(**tensors))
    for name in ("alpha", "limit", "act_fn", "has_gate", "config"):
        if hasattr(experts, name):
            setattr(made, name, getattr(experts, name))
    return made


def _unswizzled(t) -> Tensor:
    """Returns the content of a tensor in the order of Triton's kernels as [E, out, in], as
    transformers does when it saves a model."""
    return t.storage.layout.unswizzle_data(t.storage.data).transpose(-1, -2)


def dequantised(shared: nn.Module) -> nn.Module:
    """Returns shared experts with the bf16 values of their FP8 weights: the FP32 products of codes
    and scales, rounded once."""
    made = nn.ModuleDict()
    for name, m in shared.named_children():
        w = getattr(m, "weight", None)
        if w is None:
            continue
        if w.dtype is torch.float8_e4m3fn:
            w = w.float() * _spread(m.weight_scale_inv.float(), w.shape)
        made[name] = _Tensors(weight=w.detach().bfloat16())
    return made


def _spread(scales: Tensor, shape: torch.Size) -> Tensor:
    """Returns the scale of each element of a matrix: the scale of the element's block or, if there
    is only one scale, that of the matrix."""
    if scales.dim() < 2:
        return scales
    rows, columns = (-(-n // _BLOCK) for n in shape)
    if scales.shape != (rows, columns):
        raise ArgumentError(f"the scales of a shared expert are {list(scales.shape)}, must be {[rows, columns]}, one for each block of 128 x 128")
    return scales.repeat_interleave(_BLOCK, 0)[: shape[0]].repeat_interleave(_BLOCK, 1)[:, : shape[1]]
