"""The layer as a torch module, which can also replace MoE blocks of transformers."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os

import torch
from torch import Tensor, nn

from . import adapters
from ._blocks import CONFIG_TYPES, CONFIGS, HOLDS, OTHER_NAMES, PAIRS, at, check_unchanged, child, no_config, quantised_words, reason_of, refusal, split, there
from ._library import ArgumentError, Config
from ._ops import arrange, eager, infer, short, train_module, watched
from ._weights import DTYPES, PER_EXPERT, WEIGHTS, Shapes, shapes
from .functional import moe_of, update_selection_bias
from .packed import dequantised, mxfp4, packing, to_mxfp4

_any_autocast = torch._C._is_any_autocast_enabled


def config_type(dtype: torch.dtype) -> str:
    """Returns the word of Config.type for the dtype of weights."""
    name = CONFIG_TYPES.get(dtype)
    if name is None:
        raise ArgumentError(f"weights are {dtype}, must be torch.bfloat16 or torch.float16: call .to(torch.bfloat16), or run under torch.autocast")
    return name


def autocast(x: Tensor, *others: Tensor | None) -> tuple[Tensor | None, ...]:
    """Casts the inputs of a product in the same way as autocast. Returns them unchanged without
    autocast, and if autocast's type is one that no layer has."""
    if not torch.is_autocast_enabled(x.device.type):
        return x, *others
    dtype = torch.get_autocast_dtype(x.device.type)
    if dtype not in CONFIG_TYPES:
        return x, *others
    return tuple(None if t is None else t.to(dtype) for t in (x, *others))


def rows(x: Tensor, hidden: int) -> Tensor:
    """Returns x [..., d] as tokens [T, d]."""
    if x.shape[-1:] != (hidden,):
        raise ArgumentError(f"x is {list(x.shape)}, must be [..., {hidden}]")
    return x.reshape(-1, hidden).contiguous()


_INIT_ONES, _INIT_ZEROS = ("expert_scale",), ("router_bias", "selection_bias", "b1", "b3", "b2")
_SCALES = ("w1_scale", "w3_scale", "w2_scale")
# The tensors of packed weights.
_OF_PACKED = ("w1", "w3", "w2", *_SCALES, "w1_zero", "w3_zero", "w2_zero", "w1_global", "w3_global", "w2_global")


def _shared(c: Config) -> str:
    """Returns the name of the module that holds the shared experts."""
    return "shared_expert" if c.shared_gate else "shared_experts"


def _names(c: Config) -> dict[str, str]:
    """Returns the names that WEIGHTS have in a block of transformers."""
    apart, shared = c.gate_up == "apart", _shared(c)
    scales = "_scale_inv" if c.weights.startswith("fp8") else "_scales"
    up = "experts." + ("gate_proj" if apart else "gate_up_proj" if c.gated else "up_proj")
    return {
        "router": "gate.weight",
        "router_bias": "gate.bias",
        "selection_bias": "gate.e_score_correction_bias",
        "expert_scale": "gate.per_expert_scale",
        "w1": up,
        "w3": "experts.up_proj",
        "w2": "experts.down_proj",
        "b1": up + "_bias",
        "b3": "experts.up_proj_bias",
        "b2": "experts.down_proj_bias",
        "shared_w1": f"{shared}.{'gate_proj' if c.gated else 'up_proj'}.weight",
        "shared_w3": f"{shared}.up_proj.weight",
        "shared_w2": f"{shared}.down_proj.weight",
        "shared_gate": "shared_expert_gate.weight",
    } | {
        w + end: name + named
        for w, name in (("w1", up), ("w3", "experts.up_proj"), ("w2", "experts.down_proj"))
        for end, named in (("_scale", scales), ("_zero", "_zero_points"), ("_global", "_global_scales"))
    }  # fmt: skip


class _Weights(nn.Module):
    """Holds parameters under the names that transformers uses."""

    def __init__(self, **weights: nn.Parameter):
        super().__init__()
        for name, weight in weights.items():
            self.register_parameter(name, weight)


class SonicMoE(nn.Module):
    """A Mixture-of-Experts layer: tokens [..., d] in, tokens out.

    Its state has the names and shapes of MoE blocks in transformers 5: gate.weight [E, d],
    experts.gate_up_proj [E, 2n, d] and experts.down_proj [E, d, n]. If gate_up is "apart" there are
    gate_proj and up_proj instead of gate_up_proj. Without a gate there is only up_proj.

    The config decides which other tensors there are: experts.gate_up_proj_bias [E, 2n] and
    experts.down_proj_bias [E, d]; gate.bias, gate.per_expert_scale and the buffer
    gate.e_score_correction_bias, all [E]; and gate_proj, up_proj and down_proj of shared_experts.
    If shared_gate is set, that module is called shared_expert, and there is also a
    shared_expert_gate.

    balance and z_loss are coefficients of losses on the router, whose gradients backward adds
    itself. With balance_by "sequence" the balance loss is the mean over the sequences of x [..., S,
    d], and with "batch" it is over all tokens. balance_selection balances layers that have a
    selection_bias, without a loss. If the config has a rounding_rule, the layer rounds during
    training. All other keywords are fields of Config.

    With packed weights, gate_up_proj and down_proj are codes. Their scales are gate_up_proj_scales
    and down_proj_scales, or gate_up_proj_scale_inv and down_proj_scale_inv with FP8. Some formats
    also have gate_up_proj_zero_points or gate_up_proj_global_scales, and those of down_proj. These
    weights have no gradients. arrange makes small batches faster. from_file reads packed layers.

    lora_rank gives the experts an adapter, as add_lora does.

    With group, a process group or a DeviceMesh of one dimension, the experts are spread over its
    ranks. Every rank has its own tokens, the whole router, and its part of the experts. All ranks make the layer, and
    get the router and the shared experts of rank 0. Results
    have the same bits as on one device that has the tokens of all ranks in order. Gradients of
    weights are sums over the tokens of all ranks, and losses on the router are over these tokens, too.
    With balance_by "sequence" all ranks have sequences of one length. max_tokens is the largest number of tokens of a
    rank in a pass. deadline is the longest time of a pass in seconds: if a rank fails, the passes
    of all ranks raise an error. All ranks must make the same passes in the same order, and want the
    same gradients. To spread the experts of layers that exist already, use shard_experts. Use it also for a model that
    DistributedDataParallel wraps: a forward pass raises an error if DistributedDataParallel holds experts of a layer
    with group.

    With partial_sums, a rank adds up its experts' rows for each token of another rank, and sends the
    sum instead of the rows. Fewer bytes move. The output and the gradient of x then differ in their
    last bits from those of one device, and depend on the number of ranks, but not on the run.
    """

    _pair = False
    balance_by = "batch"
    # loads holds the number of tokens of each expert in training passes, [E] i32. It is None if
    # passes do not count.
    loads: Tensor | None = None
    _units: Tensor | None = None
    # _factors has the place, type and shape of each factor of the adapter.
    _factors: tuple[tuple[int, torch.dtype, tuple[int, ...]], ...] = ()
    # _spread tells how the experts are spread over ranks. _mesh is the DeviceMesh of the parameters
    # that are DTensors.
    _spread = _mesh = None

    def __init__(
        self, hidden: int, intermediate: int, num_experts: int, top_k: int, *, balance: float = 0.0, z_loss: float = 0.0,
        balance_by: str = "batch", lora_rank: int = 0, lora_alpha: float = 0.0, rslora: bool = False,
        lora_dtype: torch.dtype = torch.float32, device=None, dtype: torch.dtype = torch.bfloat16,
        group=None, max_tokens: int = 0, chunks: int = 0, deadline: float = 60.0,
        partial_sums: bool = False, **config,
    ):  # fmt: skip
        super().__init__()
        if balance_by not in ("batch", "sequence"):
            raise ArgumentError(f"balance_by is {balance_by!r}, must be 'batch' or 'sequence'")
        for name, value in (("balance", balance), ("z_loss", z_loss)):
            if not isinstance(value, (int, float)):
                raise ArgumentError(f"{name} is {value!r}, must be a number")
        self.balance_by = balance_by
        if dtype is torch.float16:
            config.setdefault("logits", "f16")
        self.config = c = Config(hidden, intermediate, num_experts, top_k, type=config_type(dtype), **config)
        if c.shared_gate and not c.shared_experts:
            raise ArgumentError("Config.shared_gate is True, must be False without shared_experts")
        self.balance, self.z_loss = balance, z_loss
        self.gate, self.experts = _Weights(), _Weights()
        if c.shared_experts:
            shared = {n: _Weights() for n in ("gate_proj", "up_proj", "down_proj") if c.gated or n != "gate_proj"}
            self.add_module(_shared(c), nn.ModuleDict(shared))
        if c.shared_gate:
            self.shared_expert_gate = _Weights()
        names = _names(c)
        self._paths = tuple((i, split(names[n])) for i, (n, dtype, _) in enumerate(shapes(c)) if dtype)
        # _plain says whether the library can read the weights in place.
        self._plain = not (c.rounds or c.shared_gate) and c.weights == "plain"
        self._bytes = tuple(i for i, (_, dtype, _) in enumerate(shapes(c)) if dtype is torch.uint8)
        # _reads has each weight that another tensor holds, how it does so, and the weight's shape.
        self._reads = ((i := WEIGHTS.index("shared_gate"), "one row", shapes(c)[i][2]),) if c.shared_gate else ()
        self._f32 = tuple(i for i, (_, dtype, _) in enumerate(shapes(c)) if dtype is torch.float32)
        self._scales = tuple(i for i, (n, dtype, _) in enumerate(shapes(c)) if dtype in CONFIG_TYPES and n in _SCALES)
        if group is not None:
            self._spread_over(group, max_tokens, chunks, deadline, partial_sums)
        for what, dtype, shape in self._shapes():
            if dtype is not None:
                self._make(what, torch.empty((1, *shape) if what == "shared_gate" else shape, device=device, dtype=dtype))
                self._place(what)
        if self._spread is not None:
            from ._ranks import equalise

            equalise(self, self._spread.group)
        if lora_rank or lora_alpha or rslora:
            self.add_lora(lora_rank, lora_alpha, rslora, lora_dtype)

    def _shapes(self) -> Shapes:
        """Returns names, types and shapes of WEIGHTS in this process."""
        return shapes(self.config) if self._spread is None else self._spread.shapes(self.config)

    def _spread_over(self, group, max_tokens: int, chunks: int, deadline: float, partial_sums: bool) -> None:
        """Sets how the layer's experts are spread over ranks. It changes no parameter."""
        from ._ranks import spread  # not every torch has torch.distributed

        if self.config.lora_adapters:
            raise ArgumentError(f"the layer has a table of {self.config.lora_adapters} adapters, must have none with a group")
        self._spread, self._mesh = spread(self.config, group, max_tokens, chunks, deadline, partial_sums)
        self._plain = False

    def _place(self, what: str) -> None:
        """Makes a parameter of this rank's experts a DTensor if the layer has a mesh."""
        if self._mesh is None or what not in PER_EXPERT:
            return
        from ._ranks import placed

        modules, name = next(path for i, path in self._paths if WEIGHTS[i] == what)
        module = self.get_submodule(".".join(modules))
        w = getattr(module, name)
        module.register_parameter(name, nn.Parameter(placed(w.detach(), self._mesh), requires_grad=w.requires_grad))

    def _make(self, what: str, w: Tensor) -> None:
        """Registers a new weight and initialises it."""
        module, _, name = _names(self.config)[what].rpartition(".")
        if what == "selection_bias":
            self.get_submodule(module).register_buffer(name, w)
        else:
            packed = self.config.weights != "plain" and what in _OF_PACKED
            self.get_submodule(module).register_parameter(name, nn.Parameter(w, requires_grad=not packed))
            if packed and not w.is_meta:
                w.zero_()
                return
        if w.is_meta:
            return
        if what in _INIT_ONES or what in _INIT_ZEROS:
            nn.init.constant_(w, what in _INIT_ONES)
        else:
            down = what in ("w2", "shared_w2")
            std = (self.config.intermediate if down else self.config.hidden) ** -0.5
            if self._spread is None or what not in PER_EXPERT:
                nn.init.normal_(w, std=std)
                return
            # All ranks draw the numbers of all experts, so that experts of different ranks differ.
            first, count = self._spread.experts(self.config)
            for e in range(self.config.num_experts):
                drawn = nn.init.normal_(torch.empty_like(w[0]), std=std)
                if first <= e < first + count:
                    w.data[e - first].copy_(drawn)

    def add_lora(self, rank: int, alpha: float, rslora: bool = False, dtype: torch.dtype = torch.float32) -> None:
        """Freezes the layer's parameters, and gives the experts an adapter: y = W·x + alpha/rank·B·(A·x).
        gate and up together have one A, and down has another. With rslora the scale is alpha/√rank.

        The adapter's parameters lie next to the weights: gate_up_proj_lora_A [E, r, d] and
        gate_up_proj_lora_B [E, 2n, r], down_proj_lora_A [E, r, n] and down_proj_lora_B [E, d, r]. With
        weight_order "in-out" their last two dimensions are swapped. With gate_up "apart" there are
        gate_proj_lora_A, which gate and up share, gate_proj_lora_B and up_proj_lora_B. At first A is
        random and B is 0. dtype is the parameters' type. Passes round them to the layer's type. There is no
        dropout, as in PEFT's target_parameters.
        """
        c = self.config
        if c.lora_rank:
            raise ArgumentError(f"the layer has an adapter of rank {self.lora_rank}, must have none")
        if self._spread is not None:
            raise ArgumentError("the layer's experts are spread over ranks, must be whole for a new adapter: add it before shard_experts")
        self.requires_grad_(False)
        self.config = dataclasses.replace(c, **adapters.fields(rank, alpha, rslora))
        self.lora_rank, self.lora_alpha, self._units = rank, float(alpha), None
        self._plain = self._plain and self.config.lora_rank == rank
        paths, exact = dict(self._paths), shapes(dataclasses.replace(self.config, lora_rank=rank))
        for i, (name, (weight, end)) in zip(adapters.PLACES, adapters.FACTORS.items()):
            if exact[i][1] is None:
                continue
            modules, of = paths[WEIGHTS.index(weight)]
            w = at(self, (modules, of))
            factor = torch.zeros(exact[i][2], dtype=dtype, device=w.device)
            if end == "_lora_A":
                bound = (c.intermediate if name == "lora_a2" else c.hidden) ** -0.5
                factor.uniform_(-bound, bound)
            self.get_submodule(".".join(modules)).register_parameter(of + end, nn.Parameter(factor))
            self._paths += ((i, (modules, of + end)),)
            self._factors += ((i, *shapes(self.config)[i][1:]),)

    def factors(self) -> dict[str, nn.Parameter]:
        """Returns the adapter's parameters by their names in moe."""
        places = dict(self._paths)
        return {name: at(self, places[i]) for i, name in zip(adapters.PLACES, adapters.FACTORS) if i in places}

    @classmethod
    def from_hf(
        cls, block: nn.Module, *, weights: str | None = None, lora_rank: int = 0, lora_alpha: float = 0.0, rslora: bool = False, lora_dtype: torch.dtype = torch.float32
    ) -> "SonicMoE":  # fmt: skip
        """Returns a layer with the parameters of an MoE block of transformers 5.

        The layer follows the block's configuration, and keeps the names of the block's modules and
        weights. If the block's forward returns a pair, as in gpt-oss and Llama-4, the layer returns
        the output and None. FP8 experts in blocks of 128 x 128, FP4 experts and gpt-oss's MXFP4
        experts stay packed. Shared experts in FP8 are dequantised. With weights "mxfp4" the experts' 16-bit weights
        are rounded to MXFP4. lora_rank gives the experts an adapter, as add_lora does.

        If no Config describes the block's router or experts, the error says why.
        register_with_transformers can run the experts of more blocks, which keep their own routers.
        """
        kind, (_, experts), (_, gate) = type(block).__name__, child(block, "experts"), child(block, "gate", "router")
        # Llama-4's experts have no config, so the config of another module of the block is used.
        config = next((m.config for m in block.modules() if hasattr(m, "config")), None)
        if config is None and kind in CONFIGS:
            config = CONFIGS[kind](block)
        if gate is None or experts is None:
            raise ArgumentError(f"{kind} has no router and experts, must be a block of experts of transformers 5")
        if config is None:
            raise no_config(block)
        if "base_layer" in experts._modules:
            raise refusal(block, config, f"has experts in a {type(experts).__name__}, must get its adapters after from_hf")
        for name in ("jitter_noise", "input_jitter_noise"):
            if getattr(block, name, 0):
                raise ArgumentError(f"{kind} has {name} {getattr(block, name)}, must be 0")
        made = {}  # modules that replace modules of the block
        packed = packing(experts)
        if weights not in (None, packed):
            if weights != "mxfp4" or packed != "plain":
                raise ArgumentError(f"weights is {weights!r}, must be None or {packed!r}, the block's format, or 'mxfp4' for a block of 16-bit weights")
            made["experts"] = experts = to_mxfp4(experts)
            packed = "mxfp4"
        elif packed == "mxfp4":
            made["experts"] = experts = mxfp4(experts)
        if packed != "plain":
            made |= {name: dequantised(m) for name in ("shared_experts", "shared_expert", "shared_mlp") if (m := getattr(block, name, None)) is not None}
        own = torch.bfloat16 if packed != "plain" else next(experts.parameters()).dtype
        if own not in CONFIG_TYPES and own is not torch.float32:
            raise ArgumentError(f"{kind} of {config.model_type} {quantised_words(config, own)}")
        try:
            fields = json.loads(config.to_json_string(use_diff=False))
            fields.pop("quantization_config", None)  # the weights themselves were examined
            c = Config.of_model(json.dumps(fields))
        except ArgumentError as err:
            raise refusal(block, config, f"has no Config: {reason_of(err)}") from None
        if c.shared_experts and kind.startswith("GraniteMoe") and child(block, "shared_experts", "shared_expert", "shared_mlp")[1] is None:
            c = dataclasses.replace(c, shared_experts=0)  # the decoder layer itself adds the shared expert
        c = dataclasses.replace(c, type=config_type(own), logits="f16" if own is torch.float16 and c.logits == "bf16" else c.logits)
        if packed != "plain":
            c = dataclasses.replace(c, weights=packed, weight_order="out-in")
        fields = {f.name: getattr(c, f.name) for f in dataclasses.fields(c) if f.name != "type"}
        self = cls(**fields, device="meta", dtype=own)
        self._reads = ()
        check_unchanged(block, gate, experts, config, c)
        self.training, self._pair = block.training, kind in PAIRS
        # Modules keep the block's names, so that checkpoints of the block fit this layer.
        others = {"gate": ("router",), "shared_experts": ("shared_expert", "shared_mlp")}
        modules = {name: child(block, name, *others.get(name, ())) for name, _ in self.named_children()}
        self._modules.clear()
        for name, module in modules.values():
            self.add_module(name, made.get(name, module))
        names = dict(modules) | {"shared_expert": modules.get("shared_expert", modules.get("shared_experts"))}
        paths, held = [], {}
        for i, (m, name) in self._paths:
            usual = ".".join((*m, name))
            other = next((o for o in OTHER_NAMES.get(usual, ()) if there(block, o)), None)
            path = ((names[m[0]][0], *m[1:]), name) if other is None else split(other)
            held[i] = "one row" if WEIGHTS[i] == "shared_gate" else "" if other is None else OTHER_NAMES[usual][other]
            if not path[0]:  # a tensor of the block itself
                self._adopt(block, path[1])
            paths.append((i, path))
        self._paths = tuple(paths)
        self._covers(block, config, made, held)
        if lora_rank or lora_alpha or rslora:
            self.add_lora(lora_rank, lora_alpha, rslora, lora_dtype)
        return self

    @classmethod
    def from_file(cls, path: str | os.PathLike, *, device=None, pair: bool = False) -> "SonicMoE":
        """Returns the layer in a file that store_layer, or examples/layer -store, wrote. Packed weights
        stay packed. With pair the layer returns the output and None, as blocks of gpt-oss and Llama-4
        do."""
        from safetensors import safe_open

        c = Config.of_stored(path)
        fields = {f.name: getattr(c, f.name) for f in dataclasses.fields(c) if f.name != "type"}
        self = cls(**fields, device="meta", dtype=DTYPES[c.type])
        with safe_open(path, "pt", device=str(device or "cpu")) as file:
            for i, (modules, name) in self._paths:
                module, w = self.get_submodule(".".join(modules)), file.get_tensor(WEIGHTS[i])
                if WEIGHTS[i] == "shared_gate":
                    w = w[None]
                if name in module._buffers:
                    module.register_buffer(name, w)
                else:
                    module.register_parameter(name, nn.Parameter(w, requires_grad=getattr(module, name).requires_grad))
        self._pair = pair
        return self

    def _adopt(self, block: nn.Module, name: str) -> None:
        """Registers a parameter or buffer of a block as one of this layer."""
        t = getattr(block, name)
        if isinstance(t, nn.Parameter):
            self.register_parameter(name, t)
        else:
            self.register_buffer(name, t, persistent=name not in block._non_persistent_buffers_set)

    def _covers(self, block: nn.Module, config, made: dict[str, nn.Module], held: dict[int, str]) -> None:
        """Raises an error if the weights of a block differ from this layer's weights. held tells how
        the block's tensors hold them. It ignores modules that were newly made."""
        ours = set()
        for i, path in self._paths:
            name, shape = ".".join((*path[0], path[1])), shapes(self.config)[i][2]
            try:
                w = at(self, path)
            except AttributeError:
                what = WEIGHTS[i].replace("_", " ")
                raise refusal(block, config, f"keeps its {what}, {list(shape)}, where SonicMoE does not find it") from None
            want = HOLDS[held[i]][0](shape) if held[i] else shape
            if w.shape != want:
                raise refusal(block, config, f"has {name} of {list(w.shape)}, must be {list(want)}")
            if held[i]:
                self._reads += ((i, held[i], shape),)
                self._plain = False
            ours.add(w)
        # Scales of activations are only used in products of two FP8 matrices.
        skip = lambda n: n.partition(".")[0] in made or n.endswith("activation_scale")  # noqa: E731
        others = [n for n, p in (*block.named_parameters(), *block.named_buffers()) if p not in ours and not skip(n)]
        if others:
            raise refusal(block, config, f"has {', '.join(others)} as well, must have what its configuration says alone")

    def __call__(self, *args, **kwargs):
        # If the module has no hooks, the library finds the weights itself. The call of an nn.Module
        # and the search in Python cost the host as much as two kernels.
        own = self.__class__ is SonicMoE and SonicMoE.forward is _FORWARD
        if own and not torch.compiler.is_dynamo_compiling() and len(args) == 1 and not kwargs and self._plain:
            given = self._by_plan(args[0])
            if given is not None:
                return (given, None) if self._pair else given
        return super().__call__(*args, **kwargs)

    def _by_plan(self, x: Tensor) -> Tensor | None:
        """Returns the output of a pass of the same kind as the last one, or None if the pass must
        take another way."""
        c = self.config
        if not torch.is_grad_enabled():
            return c.plan and c.plan.infer_module(x, self.__dict__, self._paths)
        if c.trains[0] is None or self.loads is not None or self.balance and self.balance_by == "sequence" or _any_autocast():
            return None
        return train_module(x, self.__dict__, self._paths, c, (self.balance, self.z_loss))

    def forward(self, hidden_states: Tensor) -> Tensor | tuple[Tensor, None]:
        o, _ = self.with_logits(hidden_states, False)
        return (o, None) if self._pair else o

    def with_logits(self, hidden_states: Tensor, logits: bool = True) -> tuple[Tensor, Tensor | None]:
        """Returns the layer's output and the router's logits [T, E], from which a caller can
        compute losses."""
        if "base_layer" not in self._modules["experts"]._modules:
            return self._run(hidden_states, logits)
        if self.config.lora_rank:
            raise ArgumentError("PEFT's wrappers are around experts with an adapter of their own, must be around experts without one")
        with contextlib.ExitStack() as unfused:
            own, found = adapters.under_wrappers(self._modules["experts"], unfused)
            return self._run(hidden_states, logits, own, found)

    def _run(
        self, hidden_states: Tensor, logits: bool, experts: nn.Module | None = None, found: adapters.Adapters | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Like with_logits, but uses the weights of the module experts, if it is given, instead of
        the layer's own, with the adapters found."""
        c, x, compiling = self.config, hidden_states, torch.compiler.is_compiling()
        if not isinstance(x, Tensor):
            raise ArgumentError(f"x is {x!r:.60}, must be a tensor [..., {c.hidden}]")
        rounds = self.training and c.rounds
        weights = [None] * len(WEIGHTS)
        for i, path in self._paths:
            if experts is not None and path[0] == ("experts",):
                weights[i] = getattr(experts, path[1]).contiguous()
                continue
            if compiling:
                weights[i] = at(self, path)
                continue
            # This is at without the search of nn.Module, which costs the host as much as all
            # checks.
            m = self
            for part in path[0]:
                m = m._modules[part]
            w = m._parameters.get(path[1])
            if w is None and (w := getattr(m, path[1], None)) is None:
                raise ArgumentError(f"the layer's {'.'.join(path[0])} is a {type(m).__name__} without {path[1]}, must be the module itself: use add_lora for an adapter")
            weights[i] = w
        if found:
            names = {w: self._name_of(w) for w in ("w1", "w3", "w2") if shapes(c)[WEIGHTS.index(w)][1]}
            c, factors = adapters.adapted(c, names, found)
            for name, factor in factors.items():
                weights[WEIGHTS.index(name)] = factor
        for i, dtype, shape in self._factors:
            if self._mesh is not None:
                weights[i] = weights[i].to_local()
            weights[i] = adapters.fitted(weights[i], dtype, shape)
        # The cheap test comes first.
        if (compiling or _any_autocast()) and torch.is_autocast_enabled(x.device.type):
            whole = self._f32 + self._bytes + self._scales
            kept = [weights[i] for i in whole]
            x, *weights = autocast(x, *weights)
            for i, w in zip(whole, kept):
                weights[i] = w
        for i in self._bytes:
            weights[i] = weights[i].detach().view(torch.uint8)
        for i in self._f32:
            weights[i] = weights[i].float()
        for i, how, shape in self._reads:
            weights[i] = HOLDS[how][1](weights[i], shape)
        sequence = x.shape[-2] if self.balance and self.balance_by == "sequence" and x.dim() > 2 else 0
        if self._spread is not None:
            from ._ranks import moe_over_ranks

            loads = self._counted(x.device) if self.loads is not None and self.training and torch.is_grad_enabled() else None
            o, l = moe_over_ranks(self, rows(x, c.hidden), weights, c, self._spread, logits, (self.balance, self.z_loss, sequence), loads)
            return o.view(hidden_states.shape), l
        if self._units is not None and not logits and eager(x, *weights):
            o, _ = infer(rows(x, c.hidden), weights, c, False, None, self._units)
            return o.view(hidden_states.shape), None
        loads = self.loads
        if loads is not None:
            loads = self._counted(x.device) if self.training and torch.is_grad_enabled() else None
        if not (rounds or watched()):
            given = short(x, weights, c, logits, self.balance, self.z_loss, sequence, loads)
            if given is not None:
                return given
        o, l = moe_of(rows(x, c.hidden), weights, c, self.balance, self.z_loss, logits, rounds, None, sequence, loads)
        return o if hidden_states.dim() == 2 else o.view(hidden_states.shape), l

    def _name_of(self, weight: str) -> str:
        """Returns the name of a weight in the experts."""
        return dict(self._paths)[WEIGHTS.index(weight)][1]

    @torch.no_grad()
    def arrange(self) -> None:
        """Keeps a second copy of packed weights, in the order that the kernels for small batches
        read. Inference of small batches is then faster, and has the same bits. Call it when the
        weights are on their device, and again after they were changed in place. Moving the module
        and load_state_dict drop the second copy."""
        weights: list[Tensor | None] = [None] * len(WEIGHTS)
        for i, path in self._paths:
            weights[i] = at(self, path).detach()
        for i in self._bytes:
            weights[i] = weights[i].view(torch.uint8)
        self._units = arrange(weights, self.config)

    # Moving and loading change the weights, so the second copy is no longer right.
    def _apply(self, fn, *args, **kwargs):
        self._units = None
        # Packed weights keep their types, because rounded scales would mean other weights.
        packed = {id(at(self, path)) for i, path in self._paths if self.config.weights != "plain" and WEIGHTS[i] in _OF_PACKED}

        def kept(t: Tensor) -> Tensor:
            changed = fn(t)
            return changed if id(t) not in packed or changed.dtype is t.dtype else t.to(changed.device)

        return super()._apply(kept, *args, **kwargs)

    def _load_from_state_dict(self, *args, **kwargs):
        self._units = None
        super()._load_from_state_dict(*args, **kwargs)

    def count_loads(self) -> None:
        """Makes training passes count the tokens of each expert in loads. The counts start at 0."""
        self.loads = torch.zeros(self.config.num_experts, dtype=torch.int32, device=at(self, self._paths[0][1]).device)

    def _counted(self, device: torch.device) -> Tensor:
        """Returns loads on the device of a pass, to which the module may have been moved."""
        if self.loads.device != device:
            self.loads = self.loads.to(device)
        return self.loads

    @torch.no_grad()
    def update_selection_bias(self, rate: float = 1e-3) -> None:
        """Changes the selection bias in place, by the loads since the last call. See the function
        update_selection_bias."""
        if not self.config.selection_bias:
            raise ArgumentError("the layer has no selection bias, must be made with selection_bias=True")
        if self.loads is None:
            raise ArgumentError("the layer has not counted its loads, must do so after count_loads()")
        bias = at(self, next(path for i, path in self._paths if WEIGHTS[i] == "selection_bias"))
        if bias.dtype is not torch.float32:
            raise ArgumentError(f"the selection bias is {bias.dtype}, must be torch.float32: a step of {rate} is lost in its rounding")
        update_selection_bias(self._counted(bias.device), bias.view(-1), self.config, rate)

    def wait_for_ranks(self) -> None:
        """Waits for this layer's passes on the current stream. Raises an error if a rank of its
        group has failed: on GPUs a pass may then be queued already, and its results are wrong."""
        if self._spread is None:
            raise ArgumentError("the layer has no group, must be made with one, or by shard_experts")
        from ._ranks import rank_of

        w = at(self, self._paths[0][1])
        rank_of(self.config, self._spread, w).wait(w)

    def extra_repr(self) -> str:
        c = self.config
        return f"hidden={c.hidden}, intermediate={c.intermediate}, num_experts={c.num_experts}, top_k={c.top_k}"


_FORWARD = SonicMoE.forward  # a program may replace SonicMoE.forward later
