"""Adapters in files: PEFT's adapter_config.json and adapter_model.safetensors, in three layouts.

"peft" is the layout of PEFT's target_parameters. "per-expert" has factors of gate_proj, up_proj and
down_proj for each expert, as vLLM reads them. "stacked" has the factors of all experts in one
tensor, as SGLang keeps them: gate_up_proj.lora_A [E, 2r, d] has the rows of gate before those of up.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from ._library import ArgumentError, Config
from .module import SonicMoE

_PREFIX = "base_model.model."
_SETTINGS, _TENSORS = "adapter_config.json", "adapter_model.safetensors"
LAYOUTS = ("peft", "per-expert", "stacked")
_HALVES = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj", "gate_proj": "gate_proj", "up_proj": "up_proj", "down_proj": "down_proj"}

# The factors of a weight of all experts: A [E, r, in] and B [E, out, r].
Pair = tuple[Tensor, Tensor]


def _layers(model: nn.Module) -> Iterator[tuple[str, SonicMoE]]:
    """Yields the name of the experts of each layer of a model, and the layer."""
    for name, m in model.named_modules():
        if isinstance(m, SonicMoE):
            yield f"{name}.experts".removeprefix("."), m


def _halves(c: Config, first: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the rows of gate and of up, from rows in the order of w1."""
    return (first[:, ::2], first[:, 1::2]) if c.gate_up == "interleaved" else (first[:, : c.intermediate], first[:, c.intermediate :])


def _joined(c: Config, gate: Tensor, up: Tensor) -> Tensor:
    """Returns the rows of gate and up in the order of w1."""
    return torch.stack((gate, up), 2).flatten(1, 2) if c.gate_up == "interleaved" else torch.cat((gate, up), 1)


def _pairs(layer: SonicMoE) -> tuple[Pair, Pair]:
    """Returns the factors of a layer: for gate and up together, and for down."""
    c, f = layer.config, {name: t.detach() for name, t in layer.factors().items()}
    if c.weight_order == "in-out":
        f = {name: t.transpose(1, 2) for name, t in f.items()}
    b1 = torch.cat((f["lora_b1"], f["lora_b3"]), 1) if "lora_b3" in f else f["lora_b1"]
    return (f["lora_a1"], b1), (f["lora_a2"], f["lora_b2"])


def _named(c: Config, layout: str, name: str, first: Pair, second: Pair) -> Iterator[tuple[str, Tensor]]:
    """Yields the name and the tensor of each factor of a layer, in a layout. The argument name is the
    name of the layer's experts."""
    up = "gate_up_proj" if c.gated else "up_proj"
    if layout == "peft":
        for at, (a, b) in ((".base_layer", first), ("", second)):
            yield f"{name}{at}.lora_A", a.flatten(0, 1)
            yield f"{name}{at}.lora_B", b.permute(1, 2, 0).flatten(1, 2)
        return
    if layout == "stacked":
        a, b = first
        if c.gated:
            a, b = torch.cat((a, a), 1), torch.cat(_halves(c, b), 1)
        for at, (a, b) in ((up, (a, b)), ("down_proj", second)):
            yield f"{name}.{at}.lora_A", a
            yield f"{name}.{at}.lora_B", b
        return
    a, b = first
    parts = {"gate_proj": (a, _halves(c, b)[0]), "up_proj": (a, _halves(c, b)[1])} if c.gated else {"up_proj": first}
    for at, (a, b) in (parts | {"down_proj": second}).items():
        for e in range(c.num_experts):
            yield f"{name}.{e}.{at}.lora_A", a[e]
            yield f"{name}.{e}.{at}.lora_B", b[e]


def save_adapter(model: nn.Module, directory: str | os.PathLike, layout: str = "peft") -> None:
    """Writes the adapters of a model's layers, which add_lora made, to adapter_config.json and
    adapter_model.safetensors in a directory. PEFT, vLLM and SGLang read these files; layout says
    in which layout: "peft", "per-expert" or "stacked"."""
    from safetensors.torch import save_file

    if layout not in LAYOUTS:
        raise ArgumentError(f"layout is {layout!r}, must be one of {', '.join(LAYOUTS)}")
    layers = [(name, m) for name, m in _layers(model) if m.config.lora_rank]
    how = {(m.lora_rank, m.lora_alpha, m.config.rslora) for _, m in layers}
    if not how:
        raise ArgumentError(f"{type(model).__name__} has no SonicMoE with an adapter, must have one at least: call add_lora")
    if len(how) > 1:
        raise ArgumentError(f"the layers have adapters of {len(how)} kinds (rank, alpha, rslora), must have one kind: a file has one rank and one alpha")
    (rank, alpha, rslora) = how.pop()
    tensors = {_PREFIX + n + ".weight": t.contiguous().clone() for name, m in layers for n, t in _named(m.config, layout, name, *_pairs(m))}
    gated = layers[0][1].config.gated
    ends = sorted({".".join(name.split(".")[-2:]) for name, _ in layers})
    settings = {
        "peft_type": "LORA", "r": rank, "lora_alpha": int(alpha) if alpha == int(alpha) else alpha, "use_rslora": rslora, "lora_dropout": 0.0,
        "bias": "none", "fan_in_fan_out": False, "use_dora": False, "inference_mode": True, "task_type": None, "base_model_name_or_path": None,
        "peft_version": "0.19.1",  # from this version on the columns of lora_A are inputs in all models
        "target_modules": (["gate_proj"] if gated else []) + ["up_proj", "down_proj"] if layout == "per-expert" else [],
        "target_parameters": None if layout == "per-expert" else [f"{e}.{w}" for e in ends for w in ("gate_up_proj" if gated else "up_proj", "down_proj")],
    }  # fmt: skip
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    save_file({name: t.cpu() for name, t in tensors.items()}, directory / _TENSORS, metadata={"format": "pt"})
    (directory / _SETTINGS).write_text(json.dumps(settings, indent=2) + "\n")


# The fields of variants of LoRA that a layer cannot compute.
_VARIANTS = (
    "alora_invocation_tokens", "alpha_pattern", "arrow_config", "fan_in_fan_out", "kasa_config", "layer_replication", "lora_bias",
    "monteclora_config", "rank_pattern", "use_bdlora", "use_dora", "use_qalora",
)  # fmt: skip
# The beginnings of the values of init_lora_weights with which PEFT subtracts the first factors from
# the base weights, or quantises these weights. The file does not have the new weights.
_CHANGING = ("corda", "loftq", "lora_ga", "olora", "pissa")
# The fields that load_adapter follows, and those that do not change what an adapter adds to the
# experts. Some say which weights have factors, which the tensors' names and shapes tell too.
_KNOWN = (
    "auto_mapping", "base_model_name_or_path", "bias", "corda_config", "ensure_weight_tying", "eva_config", "exclude_modules", "inference_mode",
    "init_lora_weights", "layers_pattern", "layers_to_transform", "loftq_config", "lora_alpha", "lora_dropout", "lora_ga_config", "megatron_config",
    "megatron_core", "modules_to_save", "peft_type", "peft_version", "qalora_group_size", "r", "revision", "runtime_config", "target_modules",
    "target_parameters", "task_type", "trainable_token_indices", "use_rslora", "velora_config",
)  # fmt: skip


def _settings(directory: Path) -> dict:
    """Returns the settings of an adapter. Raises an error for what a layer cannot do, and
    warns of what load_adapter does not follow."""
    s = json.loads((directory / _SETTINGS).read_text())
    if s.get("peft_type") != "LORA":
        raise ArgumentError(f"peft_type is {s.get('peft_type')!r}, must be 'LORA'")
    for field in _VARIANTS:
        if s.get(field):
            raise ArgumentError(f"{field} is {s[field]!r}, must be empty, None or False: a layer adds (alpha/r)·B·A, with one r and one alpha")
    if s.get("bias") not in (None, "none"):
        raise ArgumentError(f"bias is {s['bias']!r}, must be 'none': an adapter of experts has no biases")
    if str(s.get("init_lora_weights")).lower().startswith(_CHANGING):
        raise ArgumentError(
            f"init_lora_weights is {s['init_lora_weights']!r}, must be True: PEFT changes the base weights for it, and the file has no changed weights; "
            "save_pretrained with path_initial_model_for_weight_conversion makes an adapter of the unchanged weights"
        )
    if s.get("lora_dropout"):
        warnings.warn(f"the adapter was trained with lora_dropout {s['lora_dropout']}; training here has no dropout", stacklevel=3)
    if s.get("velora_config"):
        warnings.warn("the adapter was trained with velora_config; training here has exact gradients", stacklevel=3)
    for field in sorted(s.keys() - {*_KNOWN, *_VARIANTS}):
        if s[field]:
            warnings.warn(f"{field} is {s[field]!r} in {_SETTINGS}: load_adapter does not know the field and does not use it", stacklevel=3)
    return s


class _Reader:
    """Reads the factors of one layer. It removes the tensors that it uses from tensors."""

    def __init__(self, c: Config, settings: dict, name: str, tensors: dict[str, Tensor]):
        self.c, self.rank, self.name, self.tensors = c, settings["r"], name, tensors
        self.targets = settings.get("target_parameters") or None
        # Whether the columns of lora_A are surely inputs. PEFT before 0.18 writes no version.
        version = re.match(r"\d+(\.\d+)*", settings.get("peft_version") or "0")
        self.inputs = version is not None and tuple(map(int, version[0].split("."))) >= (0, 19, 1)

    def pair(self, at: str, *shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> Pair | None:
        """Returns lora_A and lora_B of a name, or None. Their shapes must be one of the given pairs."""
        names = [f"{_PREFIX}{self.name}{at}.lora_{x}.weight" for x in "AB"]
        there = [n for n in names if n in self.tensors]
        if not there:
            return None
        if len(there) == 1:
            raise ArgumentError(f"{there[0]} is alone, must have {(set(names) - set(there)).pop()} with it")
        a, b = (self.tensors.pop(n) for n in names)
        if (tuple(a.shape), tuple(b.shape)) not in shapes:
            wants = " or ".join(f"{list(x)} and {list(y)}" for x, y in shapes)
            raise ArgumentError(f"{names[0]} and its lora_B are {list(a.shape)} and {list(b.shape)}, must be {wants}")
        return a, b

    def peft(self) -> tuple[Pair | None, Pair | None]:
        """Returns the factors in PEFT's layout. Names do not tell which weight a factor adapts, so the
        shapes must tell it. PEFT before 0.19.1 took the second extent of each weight for its inputs. In
        its files, most lora_A have the outputs as columns."""
        c, wide = self.c, self.c.num_experts * self.rank
        sizes = (c.hidden, c.h_width), (c.intermediate, c.hidden)
        shapes = [[((wide, i), (o, wide)) for i, o in sizes], [((wide, o), (i, wide)) for i, o in sizes]]
        got = [p for at in (".base_layer", "") if (p := self.pair(at, *shapes[0], *shapes[1])) is not None]
        # A module has the weight of up before the weight of down, so PEFT wraps it first.
        orders = [(0,), (1,)] if len(got) == 1 else [(0, 1), (1, 0)] if c.gated else [(0, 1)]
        orders = [order for order in orders if all(self.targets is None or any(t.endswith("down_proj" if w else "up_proj") for t in self.targets) for w in order)]
        have = [(tuple(a.shape), tuple(b.shape)) for a, b in got]
        fits = [(order, early) for order in orders for early in (False, True) if have == [shapes[early][w] for w in order] and not (early and self.inputs)]
        if not got:
            return None, None
        if len(fits) != 1:
            wants = " or ".join(f"{list(x)} and {list(y)}" for x, y in shapes[0])
            why = "peft_version in the file must be 0.19.1 or later, for the shapes do not tell whether the columns of lora_A are inputs" if fits else f"must be {wants}"
            raise ArgumentError(f"lora_A and lora_B of {self.name} are {' and '.join(f'{list(x)} and {list(y)}' for x, y in have)}, {why}")
        found: list[Pair | None] = [None, None]
        order, early = fits[0]
        for which, (a, b) in zip(order, got):
            a, b = a.unflatten(0, (c.num_experts, -1)), b.unflatten(1, (-1, c.num_experts)).permute(2, 0, 1)
            found[which] = (b.transpose(1, 2), a.transpose(1, 2)) if early else (a, b)
        return found[0], found[1]

    def stacked(self) -> tuple[Pair | None, Pair | None]:
        c, r, e = self.c, self.rank, self.c.num_experts
        second = self.pair(".down_proj", ((e, r, c.intermediate), (e, c.hidden, r)))
        if not c.gated:
            return self.pair(".up_proj", ((e, r, c.hidden), (e, c.intermediate, r))), second
        both = self.pair(".gate_up_proj", ((e, 2 * r, c.hidden), (e, 2 * c.intermediate, r)))
        if both is None:
            return None, second
        (a, b), n = both, c.intermediate
        return self.joined((a[:, :r], b[:, :n]), (a[:, r:], b[:, n:])), second

    def per_expert(self) -> tuple[Pair | None, Pair | None]:
        gate, up, down = map(self.of_experts, ("gate_proj", "up_proj", "down_proj"))
        return self.joined(gate, up) if self.c.gated else up, down

    def of_experts(self, which: str) -> Pair | None:
        c, r = self.c, self.rank
        i, o = (c.intermediate, c.hidden) if which == "down_proj" else (c.hidden, c.intermediate)
        found = {}
        for name, usual in _HALVES.items():
            if usual == which:
                found |= {e: p for e in range(c.num_experts) if (p := self.pair(f".{e}.{name}", ((r, i), (o, r))))}
        if not found:
            return None
        like = next(iter(found.values()))
        a, b = (torch.stack([found[e][x] if e in found else torch.zeros_like(like[x]) for e in range(c.num_experts)]) for x in (0, 1))
        return a, b

    def joined(self, gate: Pair | None, up: Pair | None) -> Pair | None:
        """Returns the factors of gate and up with one lora_A. If the file has two different ones, the
        result has both, one after the other, and the rank doubles."""
        if gate is None or up is None:
            if (one := gate or up) is None:
                return None
            none = torch.zeros_like(one[1])
            return one[0], _joined(self.c, one[1] if gate else none, one[1] if up else none)
        if torch.equal(gate[0], up[0]):
            return gate[0], _joined(self.c, gate[1], up[1])
        none = torch.zeros_like(gate[1])
        return torch.cat((gate[0], up[0]), 1), _joined(self.c, torch.cat((gate[1], none), 2), torch.cat((none, up[1]), 2))


@torch.no_grad()
def load_adapter(model: nn.Module, directory: str | os.PathLike, dtype: torch.dtype = torch.float32) -> list[str]:
    """Reads the adapters of a model's layers from the files of PEFT, vLLM or SGLang, in any of the
    three layouts. A layer without an adapter gets one by add_lora. If a layer has an adapter already,
    the file must have the same rank, alpha and rslora. Variants of LoRA raise an error. Training goes
    on without dropout. Dropout in the file and fields that are not known cause a warning. Returns the
    names of tensors that are no factors of a layer's experts: factors of attention, of the router or
    of shared experts, and the weights that modules_to_save names."""
    from safetensors.torch import load_file

    directory = Path(directory)
    settings = _settings(directory)
    rank, alpha, rslora = settings["r"], settings["lora_alpha"], bool(settings.get("use_rslora"))
    tensors = load_file(directory / _TENSORS)
    layers, read = list(_layers(model)), []
    for name, m in layers:
        there = [n for n in tensors if n.startswith(f"{_PREFIX}{name}.")]
        if not there:
            raise ArgumentError(f"{directory} has no factors of {name}, must have some of each layer; names there are {', '.join(list(tensors)[:3])}")
        r = _Reader(m.config, settings, name, tensors)
        if any(re.search(r"experts\.(base_layer\.)?lora_", n) for n in there):
            pairs = r.peft()
        else:
            pairs = r.per_expert() if any(re.search(r"experts\.\d+\.", n) for n in there) else r.stacked()
        read.append(pairs)
    if wrong := [n for n in tensors if ".experts." in n]:
        raise ArgumentError(f"{wrong[0]} is of no layer or no expert of the model")
    most = max((p[0].shape[1] for pairs in read for p in pairs if p), default=0)
    grown = alpha * (most / rank) ** (0.5 if rslora else 1)
    for (_, m), (first, second) in zip(layers, read):
        if not m.config.lora_rank:
            m.add_lora(most, grown, rslora, dtype)
        elif (m.lora_rank, m.lora_alpha, m.config.rslora) != (most, grown, rslora):
            raise ArgumentError(f"the adapter has rank {most}, alpha {grown} and rslora {rslora}, must have those of the layer: {m.lora_rank}, {m.lora_alpha} and {m.config.rslora}")
        _fill(m, first, second)
    return list(tensors)


def _fill(layer: SonicMoE, first: Pair | None, second: Pair | None) -> None:
    """Copies factors to a layer. A product without factors in the file gets zeros."""
    c, to = layer.config, layer.factors()
    given = dict.fromkeys(to, None)
    if first is not None:
        given["lora_a1"], b1 = first
        given["lora_b1"] = b1[:, : c.intermediate] if "lora_b3" in to else b1
        if "lora_b3" in to:
            given["lora_b3"] = b1[:, c.intermediate :]
    if second is not None:
        given["lora_a2"], given["lora_b2"] = second
    for name, factor in to.items():
        factor.zero_()
        if given[name] is not None:
            value = given[name].to(factor)
            value = value.transpose(1, 2) if c.weight_order == "in-out" else value
            factor[tuple(slice(n) for n in value.shape)] = value
