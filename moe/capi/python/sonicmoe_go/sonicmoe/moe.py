"""SonicMoE's layer as a module."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._library import ArgumentError
from ..module import autocast, rows
from .count_cumsum import count_cumsum
from .enums import ActivationType, KernelBackendMoE, activation_of, is_glu
from .functional import moe_TC_softmax_topk_layer, under_f32_autocast


class Experts(nn.Module):
    """The first or the second weight of all experts, [E, out, in]."""

    def __init__(
        self, num_experts: int, in_features: int, out_features: int, add_bias: bool = True, std: float | None = None
    ):
        super().__init__()
        self.num_experts, self.in_features, self.out_features, self.std = num_experts, in_features, out_features, std
        self.weight = nn.Parameter(torch.empty(num_experts, out_features, in_features))
        self.bias = nn.Parameter(torch.empty(num_experts, out_features)) if add_bias else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            nn.init.normal_(self.weight, mean=0, std=0.02 if self.std is None else self.std)
        if self.bias is not None:
            self.bias.zero_()

    def extra_repr(self) -> str:
        return f"num_experts={self.num_experts}, in_features={self.in_features}, out_features={self.out_features}"


# The torch backend computes these functions of gate and up, or of one projection.
_GATES = {ActivationType.SWIGLU: F.silu, ActivationType.GEGLU: F.gelu, ActivationType.REGLU: F.relu}
_PLAIN = {ActivationType.RELU_SQ: lambda x: F.relu(x).square(), ActivationType.RELU: F.relu, ActivationType.GELU: F.gelu, ActivationType.SILU: F.silu}


class MoE(nn.Module):
    """SonicMoE's layer. It takes tokens, and returns tokens and the Switch loss. With
    is_inference_mode the loss has no gradients. Gate and up of a neuron are neighbouring rows of
    c_fc.weight.

    With KernelBackendMoE.torch, torch's operators compute the layer, one expert after another, to
    compare with. stream_id is ignored: the work is queued on torch's current stream.
    """

    stream_id = 0

    def __init__(
        self, num_experts: int, num_experts_per_tok: int, hidden_size: int, intermediate_size: int,
        activation_function: ActivationType | str, add_bias: bool, std: float,
    ):  # fmt: skip
        super().__init__()
        self.num_experts, self.top_k = num_experts, num_experts_per_tok
        self.hidden_size, self.intermediate_size = hidden_size, intermediate_size
        self.activation_function = activation_of(activation_function)
        rows = 2 * intermediate_size if is_glu(self.activation_function) else intermediate_size
        self.router = nn.Linear(hidden_size, num_experts, bias=False)
        self.c_fc = Experts(num_experts, hidden_size, rows, add_bias, std)
        self.c_proj = Experts(num_experts, intermediate_size, hidden_size, add_bias, std)

    def forward(
        self, hidden_states: Tensor, kernel_backend_moe: KernelBackendMoE = KernelBackendMoE.sonicmoe,
        is_inference_mode: bool = False,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        backend = getattr(kernel_backend_moe, "value", kernel_backend_moe)
        inference = is_inference_mode or not self.training
        if backend == KernelBackendMoE.sonicmoe.value:
            x, router, w1, w2, b1, b2 = autocast(
                hidden_states, self.router.weight, self.c_fc.weight, self.c_proj.weight, self.c_fc.bias, self.c_proj.bias
            )
            o, logits, frequency = moe_TC_softmax_topk_layer(
                rows(x, self.hidden_size), router, w1.permute(1, 2, 0), b1, w2.permute(1, 2, 0), b2,
                self.top_k, self.stream_id, self.activation_function, inference,
            )  # fmt: skip
        elif backend == KernelBackendMoE.torch.value:
            with torch.set_grad_enabled(torch.is_grad_enabled() and not inference):
                o, logits, frequency = self._by_torch(rows(hidden_states, self.hidden_size))
        else:
            raise ArgumentError(f"kernel_backend_moe is {kernel_backend_moe}, must be {KernelBackendMoE.sonicmoe} or {KernelBackendMoE.torch}")
        o = o.view(hidden_states.shape)
        probs = F.softmax(logits, dim=-1, dtype=torch.float32).sum(0)
        shares = F.normalize(probs, p=1, dim=0) * F.normalize(frequency.float(), p=1, dim=0)
        return o, self.num_experts * shares.sum()

    def _by_torch(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns output, logits and counts, computed by torch's operators. Logits are FP32 sums
        that are rounded once, as in the kernels. If logits are equal, the lower expert is chosen.
        Sums over experts are FP32."""
        logits = F.linear(x.float(), self.router.weight.float())
        logits = logits if under_f32_autocast(x) else logits.to(x.dtype)
        chosen, ids = (t[:, : self.top_k] for t in logits.sort(dim=-1, descending=True, stable=True))
        scores = torch.softmax(chosen, dim=-1, dtype=torch.float32)
        o, kind = torch.zeros(x.shape, dtype=torch.float32, device=x.device), self.activation_function
        for e in range(self.num_experts):
            token, slot = torch.where(ids == e)
            b1, b2 = (None if of.bias is None else of.bias[e] for of in (self.c_fc, self.c_proj))
            h = F.linear(x[token], self.c_fc.weight[e], b1)
            a = _GATES[kind](h[:, ::2]) * h[:, 1::2] if kind in _GATES else _PLAIN[kind](h)
            y = F.linear(a, self.c_proj.weight[e], b2)
            o = o.index_add(0, token, y * scores[token, slot, None])
        return o.to(x.dtype), logits, count_cumsum(ids, self.num_experts, False)
