"""Blocks of experts of transformers 5: the names and shapes of their weights, their configurations,
and the words for blocks that no layer replaces."""

from __future__ import annotations

import json

import torch
from torch import Tensor, nn

from ._library import ArgumentError, Config

CONFIG_TYPES = {torch.bfloat16: "bf16", torch.float16: "f16"}


def split(name: str) -> tuple[tuple[str, ...], str]:
    *modules, last = name.split(".")
    return tuple(modules), last


def at(module: nn.Module, path: tuple[tuple[str, ...], str]) -> Tensor:
    """Returns the tensor at a dotted name, which is given as the modules on the way and the last
    part."""
    modules, name = path
    for m in modules:
        module = getattr(module, m)
    return getattr(module, name)


# Some families have other names for weights. For a weight's usual name the table has these names,
# and how a tensor of that name holds the weight: "" if the tensor is the weight, or a word of HOLDS.
OTHER_NAMES = {
    "gate.weight": {
        "gate.wg.weight": "",  # HunYuan
        "router.gate.weight": "",  # AFMoE
        "router.layer.weight": "",  # DBRX
    },
    "gate.e_score_correction_bias": {
        "e_score_correction_bias": "",  # MiniMax-M2
        "expert_bias": "",  # LFM2, AFMoE
        "gate.moe_statics.e_score_correction_bias": "one row",  # ERNIE-4.5
    },
    "experts.gate_proj": {"experts.mlp.w1": "rows"},  # DBRX, and the next two
    "experts.up_proj": {"experts.mlp.v1": "rows"},
    "experts.down_proj": {"experts.mlp.w2": "transposed rows"},
    "shared_experts.gate_proj.weight": {"shared_experts.gate_up_proj.weight": "first half"},  # MiniMax-M3
    "shared_experts.up_proj.weight": {"shared_experts.gate_up_proj.weight": "second half"},
}

# The ways in which a tensor of another shape holds a weight: the tensor's shape for a weight's
# shape, and the weight for a tensor.
HOLDS = {
    "one row": (lambda s: (1, *s), lambda w, s: w.view(s)),
    "rows": (lambda s: (s[0] * s[1], s[2]), lambda w, s: w.view(s)),
    "transposed rows": (lambda s: (s[0] * s[2], s[1]), lambda w, s: w.view(s[0], s[2], s[1]).transpose(1, 2).contiguous()),
    "first half": (lambda s: (2 * s[0], s[1]), lambda w, s: w[: s[0]]),
    "second half": (lambda s: (2 * s[0], s[1]), lambda w, s: w[s[0] :]),
}


def there(module: nn.Module, name: str) -> bool:
    """Whether a module has a tensor at a dotted name."""
    try:
        return isinstance(at(module, split(name)), Tensor)
    except AttributeError:
        return False


def child(block: nn.Module, *names: str) -> tuple[str, nn.Module | None]:
    """Returns the first of the names that a block has, with its module."""
    return next(((n, m) for n in names if (m := getattr(block, n, None)) is not None), (names[0], None))


def refusal(block: nn.Module, config, why: str) -> ArgumentError:
    """Returns the error for a block that no SonicMoE can replace. It names the block's family, the
    reason, and the alternative."""
    from .transformers import unsupported

    reason = unsupported(block.experts)
    if reason is None:
        way = "register_with_transformers() runs the experts of this block with the block's own router"
    else:
        way = f"register_with_transformers() cannot run the experts of this block either, because {reason}: leave the block as it is"
    family = type(block).__module__.split(".")[-2:][0] if config is None else config.model_type
    return ArgumentError(f"{type(block).__name__} of {family} {why}; {way}")


def no_config(block: nn.Module) -> ArgumentError:
    """Returns the error for a block whose modules have no configuration. If the library knows the
    family and refuses it, the error has the reason."""
    family = type(block).__module__.split(".")[-2:][0]  # the name of the package
    for name in (family, family.replace("_", "-")):
        try:
            Config.of_model(json.dumps({"model_type": name}))
        except ArgumentError as err:
            if "is refused" in str(err):
                return refusal(block, None, f"has no Config: {reason_of(err)}")
    return refusal(block, None, "has no configuration, from which a layer could be made")


def reason_of(err: ArgumentError) -> str:
    return str(err).removeprefix("invalid argument: ")


def quantised_words(config, dtype: torch.dtype) -> str:
    """Returns the reason why experts of a quantised type are refused."""
    q = getattr(config, "quantization_config", None)
    method = q.get("quant_method") if isinstance(q, dict) else getattr(q, "quant_method", None)
    # In transformers the methods are an enum of strings.
    format = f"quantised weights in {getattr(method, 'value', method)}, {dtype}" if method else f"weights in {dtype}"
    return f"has {format}, must have torch.bfloat16, torch.float16, FP8 in blocks of 128 x 128, or MXFP4: load the model dequantised (dequantize=True in its quantization_config), or convert it"


# The forward of these blocks of transformers returns a pair. Their models ignore its second
# element.
PAIRS = ("GptOssMLP", "Mxfp4GptOssMLP", "Llama4TextMoe", "OpenAIPrivacyFilterMLP")


def check_unchanged(block: nn.Module, gate: nn.Module, experts: nn.Module, config, c: Config) -> None:
    """Raises an error if the attributes of a block disagree with its configuration, because one of
    them was changed later."""
    said = {"top_k": c.top_k, "num_group": getattr(config, "n_group", None)}
    said |= {name: getattr(config, name, None) for name in ("norm_topk_prob", "routed_scaling_factor", "topk_group")}
    if c.activation == "swiglu-oai":
        said |= {"alpha": c.alpha, "limit": c.limit}
    for module in (block, gate, experts):
        for name, want in said.items():
            got = getattr(module, name, want)
            if want is not None and got != want:
                raise ArgumentError(f"{type(module).__name__} has {name} {got}, must be {want}, as its configuration says")


def _gpt_oss(block: nn.Module):
    """Returns the configuration of a Mxfp4GptOssMLP, whose modules do not have one."""
    from transformers import GptOssConfig

    experts, router = block.experts, block.router
    return GptOssConfig(
        hidden_size=experts.hidden_size, intermediate_size=experts.intermediate_size, num_local_experts=experts.num_experts,
        num_experts_per_tok=router.top_k, swiglu_limit=experts.limit,
    )  # fmt: skip


def _dbrx(block: nn.Module):
    """Returns the configuration of a DbrxFFN, whose modules do not have one."""
    from transformers import DbrxConfig

    experts, act = block.experts, type(block.experts.mlp.activation_fn).__name__
    return DbrxConfig(
        d_model=experts.hidden_size,
        ffn_config={
            "hidden_size": experts.hidden_size, "ffn_hidden_size": experts.ffn_hidden_size, "moe_num_experts": experts.num_experts, "moe_top_k": block.top_k,
            "moe_normalize_expert_weights": block.moe_normalize_expert_weights, "moe_jitter_eps": block.router.moe_jitter_eps,
            "ffn_act_fn": {"name": "silu" if _ACTIVATIONS.get(act) == "swiglu" else act},
        },
    )  # fmt: skip


# The configurations of blocks whose modules have none, by the name of the block's class.
CONFIGS = {"Mxfp4GptOssMLP": _gpt_oss, "DbrxFFN": _dbrx}


_ACTIVATIONS = {
    "SiLUActivation": "swiglu", "SiLU": "swiglu", "GELUActivation": "geglu-erf", "GELUTanh": "geglu-tanh",
    "NewGELUActivation": "geglu-tanh", "PytorchGELUTanh": "geglu-tanh", "ReLU": "reglu", "silu": "swiglu",
}  # fmt: skip
_PLAIN = {"swiglu": "silu", "geglu-erf": "gelu-erf", "geglu-tanh": "gelu-tanh", "reglu": "relu"}


def activation(experts: nn.Module) -> str:
    """Returns the word of Config.activation for the activation of a module of transformers."""
    of = experts.act_fn
    kind = type(of).__name__ if isinstance(of, nn.Module) else getattr(of, "__name__", type(of).__name__)  # in LFM2 it is a function
    name = "relu2" if kind == "ReLUSquaredActivation" else _ACTIVATIONS.get(kind)
    if name is None:
        raise ArgumentError(f"the activation is {kind}, must be one of {', '.join(sorted(_ACTIVATIONS))}")
    if getattr(experts, "has_gate", True):
        return name
    return _PLAIN.get(name, name)
