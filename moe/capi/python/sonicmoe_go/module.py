"""The layer as a module, and in place of those of transformers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ._library import ArgumentError, Config
from ._ops import weight_shapes
from .functional import moe

_CONFIG_TYPES = {torch.bfloat16: "bf16", torch.float16: "f16"}


def config_type(dtype: torch.dtype) -> str:
    """The name that Config has for a type of weights."""
    name = _CONFIG_TYPES.get(dtype)
    if name is None:
        raise ArgumentError(f"weights are {dtype}, must be torch.bfloat16 or torch.float16")
    return name


def autocast(x: Tensor, *others: Tensor | None) -> tuple[Tensor | None, ...]:
    """What autocast makes of a product's inputs; without it they stay as they are."""
    if not torch.is_autocast_enabled(x.device.type):
        return x, *others
    dtype = torch.get_autocast_dtype(x.device.type)
    return tuple(None if t is None else t.to(dtype) for t in (x, *others))


class _Weights(nn.Module):
    """Parameters under the names that transformers gives them."""

    def __init__(self, **weights: nn.Parameter):
        super().__init__()
        for name, weight in weights.items():
            self.register_parameter(name, weight)


class SonicMoE(nn.Module):
    """A Mixture-of-Experts layer: tokens [..., d] in, tokens out.

    Its state has the names and shapes of the blocks of transformers 5: gate.weight
    [E, d], experts.gate_up_proj [E, 2n, d] and experts.down_proj [E, d, n], with biases
    gate_up_proj_bias [E, 2n] and down_proj_bias [E, d] where the config has them; gate_proj
    and up_proj where gate_up is "apart". balance and z_loss are coefficients of losses on
    the router, whose gradients come by themselves. More keywords are fields of Config.
    """

    def __init__(
        self, hidden: int, intermediate: int, num_experts: int, top_k: int, *, balance: float = 0.0, z_loss: float = 0.0,
        device=None, dtype: torch.dtype = torch.bfloat16, **config,
    ):  # fmt: skip
        super().__init__()
        self.config = Config(hidden, intermediate, num_experts, top_k, type=config_type(dtype), **config)
        self.balance, self.z_loss = balance, z_loss

        def parameter(shape: tuple, fan_in: int | None):
            w = torch.empty(shape, device=device, dtype=dtype)
            if not w.is_meta:
                nn.init.zeros_(w) if fan_in is None else nn.init.normal_(w, std=fan_in**-0.5)
            return nn.Parameter(w)

        self.gate = _Weights(weight=parameter((num_experts, hidden), hidden))
        fans = (hidden, hidden, intermediate, None, None, None)
        self.experts = _Weights(
            **{n: parameter(shape, fan) for n, shape, fan in zip(self._names(), weight_shapes(self.config), fans) if shape}
        )

    def _names(self) -> tuple[str, ...]:
        """The names of w1, w3, w2, b1, b3 and b2, those among them that there are none of too."""
        apart = self.config.gate_up == "apart"
        up = "gate_proj" if apart else "gate_up_proj" if self.config.gated else "up_proj"
        return up, "up_proj" if apart else "", "down_proj", up + "_bias", "up_proj_bias" if apart else "", "down_proj_bias"

    @classmethod
    def from_hf(cls, block: nn.Module) -> "SonicMoE":
        """The same layer as a block of transformers 5, on its very parameters.

        A block whose router or experts are not those of Config is an error that says
        why; register_with_transformers covers more of these, with their own routers.
        """
        gate, experts = getattr(block, "gate", None), getattr(block, "experts", None)
        weights = [getattr(gate, "weight", None)] + [getattr(experts, n, None) for n in ("gate_up_proj", "down_proj")]
        kind = type(block).__name__
        if any(not isinstance(w, Tensor) for w in weights):
            raise ArgumentError(f"{kind} has no gate.weight, experts.gate_up_proj and experts.down_proj")
        router = type(gate).__name__
        if router not in _ROUTERS:
            raise ArgumentError(f"{kind} has a {router}, must have one of {', '.join(sorted(_ROUTERS))}")
        if getattr(block, "jitter_noise", 0):
            raise ArgumentError(f"{kind} has jitter_noise {block.jitter_noise}, must be 0")
        others = {n for n, _ in block.named_parameters()} - {"gate.weight", "experts.gate_up_proj", "experts.down_proj"}
        if others:
            raise ArgumentError(f"{kind} has {', '.join(sorted(others))} as well, must have a router and experts alone")
        renormalizes = _ROUTERS[router] or getattr(gate, "norm_topk_prob", True)
        score = {} if renormalizes else {"score": "softmax"}
        e, d, n = weights[2].shape
        self = cls(d, n, e, gate.top_k, device="meta", dtype=weights[1].dtype, activation=_activation(experts), **score)
        self.gate.weight, self.experts.gate_up_proj, self.experts.down_proj = weights
        return self

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.with_logits(hidden_states, False)[0]

    def with_logits(self, hidden_states: Tensor, logits: bool = True) -> tuple[Tensor, Tensor | None]:
        """The layer's output and the router's logits [T, E], for other losses on them."""
        weights = [getattr(self.experts, name, None) for name in self._names()]
        x, router, w1, w3, w2, b1, b3, b2 = autocast(hidden_states, self.gate.weight, *weights)
        x = x.reshape(-1, self.config.hidden).contiguous()
        o, l = moe(
            x, router, w1, w2, self.config, w3=w3, b1=b1, b3=b3, b2=b2, balance=self.balance, z_loss=self.z_loss, logits=logits
        )
        return o.view(hidden_states.shape), l

    def extra_repr(self) -> str:
        c = self.config
        return f"hidden={c.hidden}, intermediate={c.intermediate}, num_experts={c.num_experts}, top_k={c.top_k}"


# Routers of transformers that are a softmax over all experts, and whether they
# always divide the chosen scores by their sum: that is the softmax over the chosen.
_ROUTERS = {
    "MixtralTopKRouter": True,
    "MiniMaxTopKRouter": True,
    "Qwen3MoeTopKRouter": False,
    "OlmoeTopKRouter": False,
    "Qwen2MoeTopKRouter": False,
    "Qwen3NextTopKRouter": False,
}

_ACTIVATIONS = {
    "SiLUActivation": "swiglu", "SiLU": "swiglu", "GELUActivation": "geglu-erf", "GELUTanh": "geglu-tanh",
    "NewGELUActivation": "geglu-tanh", "PytorchGELUTanh": "geglu-tanh", "ReLU": "reglu",
}  # fmt: skip
_PLAIN = {"swiglu": "silu", "geglu-erf": "gelu-erf", "geglu-tanh": "gelu-tanh", "reglu": "relu"}


def _activation(experts: nn.Module) -> str:
    """The Config's name of what a module of transformers computes between its products."""
    kind = type(experts.act_fn).__name__
    name = "relu2" if kind == "ReLUSquaredActivation" else _ACTIVATIONS.get(kind)
    if name is None:
        raise ArgumentError(f"the activation is {kind}, must be one of {', '.join(sorted(_ACTIVATIONS))}")
    if getattr(experts, "has_gate", True):
        return name
    return _PLAIN.get(name, name)
