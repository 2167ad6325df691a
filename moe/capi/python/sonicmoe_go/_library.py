"""The shared library, called through ctypes: devices, layers and errors. This module does not use
tensors.

The library is loaded at its first use. Go does not work in the child of a fork. A child of a
process that has used the library therefore gets an error.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import json
import os
import re
import threading
import warnings
from pathlib import Path

from . import _table

_ENUMS = {
    "type": ("bf16", "f32", "i32", "f16", "u8"),
    "gate_up": ("concatenated", "interleaved", "apart"),
    "weight_order": ("out-in", "in-out"),
    "activation": (
        "swiglu", "swiglu-oai", "geglu-tanh", "geglu-erf", "reglu",
        "relu", "relu2", "silu", "gelu-tanh", "gelu-erf",
    ),
    "logits": ("bf16", "f32", "f16"),
    "score": ("softmax-topk", "softmax", "sigmoid", "sqrt-softplus"),
    "group_score": ("best", "sum2"),
    "renormalize": ("none", "sum", "clamp"),
    "rounding_rule": (
        "none", "nearest", "stochastic", "mass", "balanced", "up", "down", "expert-choice", "capacity-drop",
    ),
    "weights": ("plain", *_table.PACKINGS),
}  # fmt: skip


class Error(RuntimeError):
    """An error of the library or of the device."""


class ArgumentError(Error, ValueError):
    """The error for a wrong argument: its name, its value, and what would be right."""


@dataclasses.dataclass(frozen=True, eq=False)
class Config:
    """The configuration of a layer, with the fields of Config in the Go package.

    With the defaults of all fields but the four sizes it is the layer of Mixtral and Qwen3-MoE. If
    no kernel computes a combination of fields, the first call raises an error that names the field.

    hidden is d, the width of a token, and intermediate is n, the width of an expert: multiples of 16.
    num_experts is E without the shared experts, 1 to 1024. top_k is K, the number of experts of a
    token, 1 to 32. type is the type of tokens, weights and activations, "bf16" or "f16".

    The experts:

    gate_up         where w1 [E, 2n, d] has gate and up: "concatenated" (n rows of gate, then n rows of
                    up), "interleaved" (row 2j is gate j, row 2j+1 is up j), or "apart" (w1 [E, n, d] is
                    gate and w3 [E, n, d] is up)
    weight_order    "out-in" as in torch.nn.Linear, or "in-out" as in gpt-oss: w1 [E, d, 2n], w2 [E, n, d]
    activation      with a gate "swiglu", "swiglu-oai" (gpt-oss), "geglu-tanh", "geglu-erf" or "reglu";
                    without one "relu", "relu2" (the square), "silu", "gelu-tanh" or "gelu-erf", and
                    w1 is [E, n, d]
    alpha, limit    parameters of "swiglu-oai"; a limit also clamps the inputs of "swiglu"
    bias            biases b1 [E, 2n] and b2 [E, d] of the two products
    shared_experts  the number of experts of width n that every token uses, stored as one MLP
    shared_gate     multiplies the output of the shared experts by sigmoid(x·shared_gate)
    weights         "plain", or the format of packed experts. A code c with the scale s of its block is
                    c·s: "mxfp4" (E2M1, a scale E8M0 for 32 inputs), "nvfp4" (E2M1, a scale E4M3 for 16
                    inputs and an FP32 for each matrix), "fp8" and "fp8-ue8m0" (E4M3, a scale FP32 or E8M0
                    for 128 x 128), "fp8-tensor" (a scale FP32 for each matrix), "int4-g32" and
                    "int4-g128" (4 bits minus 8, a scale bf16 for 32 or 128 inputs), "uint4-g32" and
                    "uint4-g128" (4 bits minus a zero point), and "uint4-g32-f16" and "uint4-g128-f16"
                    (the same with scales f16)

    The router:

    logits          the type of the logits, to which their FP32 sums are rounded: "bf16", "f16" or "f32"
    router_f32      FP32 weights; logits must then be "f32"
    router_bias     a bias [E] f32 of the logits
    score           the raw score of a logit: "softmax-topk" (softmax over the K chosen logits), "softmax"
                    (over all E), "sigmoid" or "sqrt-softplus"
    selection_bias  a bias [E] f32 of the raw scores for the choice of experts, and nowhere else
    groups, top_groups, group_score
                    the experts are in groups of equal size, and a token uses experts of the top_groups
                    best ones. Groups are compared by their "best" expert, or by "sum2", the sum of their
                    two best raw scores
    renormalize, norm_epsilon
                    the divisor of the K raw scores: "none" (1), "sum" (their sum + norm_epsilon), or
                    "clamp" (the larger of their sum and norm_epsilon)
    score_scale     multiplies the scores; 0 means 1
    expert_scale    also multiplies each score by its expert's element of a tensor [E] f32
    score_on_input  the score multiplies the input of an expert, not its output (Llama-4)

    Training, serving and adapters:

    rounding_rule   which tokens an expert gets in training: "none" (those that chose it), or a number of
                    them that is a multiple of rounding_tile (0 means 128): "nearest", "stochastic", "mass",
                    "balanced", "up" or "down"; or "expert-choice" or "capacity-drop", where an expert
                    gets rounding_capacity·T·K/E tokens, or at most as many. With rounding_raw_scores all
                    weights are raw scores
    lists           kernels for moe_experts with token_indices
    tokens_hint     the expected number of tokens of a pass. It affects only the choice of tile shapes
    without_backward  no kernels of backward, for inference
    lora_rank, lora_alpha, rslora
                    an adapter of the experts, a multiple of 4 up to 128, times lora_alpha/lora_rank, or
                    lora_alpha/√lora_rank with rslora
    lora_adapters   the number of places of a table of adapters, for inference
    """

    hidden: int
    intermediate: int
    num_experts: int
    top_k: int
    type: str = "bf16"
    gate_up: str = "concatenated"
    weight_order: str = "out-in"
    activation: str = "swiglu"
    alpha: float = 0.0
    limit: float = 0.0
    bias: bool = False
    logits: str = "bf16"
    router_f32: bool = False
    router_bias: bool = False
    score: str = "softmax-topk"
    selection_bias: bool = False
    groups: int = 0
    top_groups: int = 0
    group_score: str = "best"
    renormalize: str = "none"
    norm_epsilon: float = 0.0
    score_scale: float = 0.0
    expert_scale: bool = False
    score_on_input: bool = False
    shared_experts: int = 0
    shared_gate: bool = False
    lists: bool = False
    tokens_hint: int = 0
    without_backward: bool = False
    rounding_rule: str = "none"
    rounding_tile: int = 0
    rounding_capacity: float = 0.0
    rounding_raw_scores: bool = False
    weights: str = "plain"
    lora_rank: int = 0
    lora_alpha: float = 0.0
    rslora: bool = False
    lora_adapters: int = 0

    def __post_init__(self):
        for field, names in _ENUMS.items():
            if getattr(self, field) not in names:
                raise ArgumentError(f"Config.{field} is {getattr(self, field)!r}, must be one of {', '.join(names)}")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type == "int" and (not isinstance(value, int) or not -(2**63) <= value < 2**63):
                raise ArgumentError(f"Config.{field.name} is {value!r}, must be a whole number")
            if field.type == "float" and not isinstance(value, (int, float)):
                raise ArgumentError(f"Config.{field.name} is {value!r}, must be a number")
            if field.type == "bool" and not (isinstance(value, int) and value in (0, 1)):
                raise ArgumentError(f"Config.{field.name} is {value!r}, must be True or False")
        # The library checks all other fields at the first call. It is not loaded here, because a
        # program that forks later could not use it in the child.
        for name in ("hidden", "intermediate"):
            if (width := getattr(self, name)) < 16 or width % 16:
                raise ArgumentError(f"Config.{name} is {width}, must be a multiple of 16, at least 16")
        if self.num_experts < 1:
            raise ArgumentError(f"Config.num_experts is {self.num_experts}, must be at least 1")
        if not 1 <= self.top_k <= self.num_experts:
            raise ArgumentError(f"Config.top_k is {self.top_k}, must be 1 to {self.num_experts}, the number of experts")
        # key is the configuration as text, the form in which operators of torch pass it.
        object.__setattr__(self, "key", json.dumps(dataclasses.asdict(self)))

    # plan is the way that the last inference pass took, which the next pass tries first. trains is
    # the last plan of training, preceded by the coefficients of its losses.
    plan = None
    trains = None, None

    def keep(self, plan) -> None:
        """Makes the next inference pass of this configuration try a plan first."""
        if plan is not self.plan:
            object.__setattr__(self, "plan", plan)

    def keep_training(self, losses: tuple[float, float], plan) -> None:
        """Makes the next pass of this configuration that autograd records with these loss
        coefficients try a plan first."""
        if (losses, plan) != self.trains:
            object.__setattr__(self, "trains", (losses, plan))

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name not in ("plan", "trains")}

    # Configurations are compared by text, whose hash is cached, because a call compares them more
    # than once.
    def __hash__(self):
        return hash(self.key)

    def __eq__(self, other):
        return self.key == other.key if isinstance(other, Config) else NotImplemented

    @staticmethod
    @functools.lru_cache(maxsize=4096)
    def of(key: str) -> "Config":
        """Returns the configuration with a key."""
        return Config(**json.loads(key))

    @staticmethod
    def of_model(config: str) -> "Config":
        """Returns the Config for the text of a published model's config.json. If no Config
        describes the model's layers, the error says why. If the model's files are quantised, a
        warning says so, because the layer takes weights of another format."""
        if method := _quant_method(config):
            said = f"the model's files have weights quantised by {method}; the layer takes bf16 or fp16: dequantise them when they are loaded"
            warnings.warn(said, stacklevel=2)
        return _written("sm_config_of_model", config)

    @staticmethod
    def of_stored(path: str | os.PathLike) -> "Config":
        """Returns the Config of the layer in a file that store_layer wrote."""
        return _written("sm_config_of_stored", os.fspath(path))

    @property
    def saves_logits(self) -> bool:
        """Whether a backward pass through the router needs the logits."""
        return self.score != "softmax-topk" or self.expert_scale

    @property
    def rounds(self) -> bool:
        """Whether the layer has a rounding rule."""
        return self.rounding_rule != "none"

    @property
    def draws(self) -> bool:
        """Whether the rounding rule draws random numbers."""
        return self.rounding_rule in ("stochastic", "mass")

    @property
    def gated(self) -> bool:
        """Whether the activation has a gate. w1 has 2n rows with a gate, and n without one."""
        return "glu" in self.activation

    @property
    def h_width(self) -> int:
        """The width of h, which is also the number of rows of w1 of an expert."""
        return self.intermediate * (2 if self.gated else 1)

    @property
    def lora_u_width(self) -> int:
        """The numbers of lora_u for each row of h, see sonicmoe.h."""
        return 2 * -(-self.lora_rank // 8) * 8


def _quant_method(config: str) -> str:
    """Returns the format of quantised weights that a config.json names, or "" if it names none."""
    try:
        fields = json.loads(config)
    except ValueError:
        return ""  # the library reports what is wrong with the text
    for of in (fields, fields.get("text_config")) if isinstance(fields, dict) else ():
        q = of.get("quantization_config") if isinstance(of, dict) else None
        if q:
            return str(q.get("quant_method", "an unknown method")) if isinstance(q, dict) else "an unknown method"
    return ""


class _ConfigStruct(ctypes.Structure):
    """The C struct sm_config."""

    _fields_ = [("size", ctypes.c_uint64)] + [
        (f.name, ctypes.c_double if f.type == "float" else ctypes.c_int64) for f in dataclasses.fields(Config)
    ]

    @classmethod
    def of(cls, config: Config) -> "_ConfigStruct":
        s = cls(size=ctypes.sizeof(cls))
        for f in dataclasses.fields(config):
            value = getattr(config, f.name)
            setattr(s, f.name, _ENUMS[f.name].index(value) if f.name in _ENUMS else value)
        return s


def _written(function: str, text: str) -> Config:
    """Returns the Config that a function of the library writes for a text."""
    s = _ConfigStruct(size=ctypes.sizeof(_ConfigStruct))
    check(getattr(library(), function)(text.encode(), s))
    values = {f.name: getattr(s, f.name) for f in dataclasses.fields(Config)}
    values |= {name: names[values[name]] for name, names in _ENUMS.items()}
    return Config(**values | {f.name: bool(values[f.name]) for f in dataclasses.fields(Config) if f.type == "bool"})


def store_layer(folder: str | os.PathLike, layer: int, path: str | os.PathLike) -> None:
    """Reads an expert layer from a folder with a published model, config.json and safetensors files,
    and writes it to one file, for SonicMoE.from_file. Layers are counted from 0. Weights that are
    packed in a format of Config stay packed; other quantised weights become 16-bit weights."""
    check(library().sm_store_layer(os.fspath(folder).encode(), layer, os.fspath(path).encode()))


class _Sizes(ctypes.Structure):
    """The C struct sm_sizes_of."""

    _fields_ = [("size", ctypes.c_uint64)] + [
        (name, ctypes.c_int64) for name in ("workspace", "backward_workspace", "h", "o", "scores", "expert_ids", "rounded_rows", "shared_h", "units")
    ]


_handle = ctypes.c_uint64
_SIGNATURES = {
    "sm_open": (ctypes.c_char_p, ctypes.POINTER(_handle)),
    "sm_layer_new": (_handle, ctypes.POINTER(_ConfigStruct), ctypes.POINTER(_handle)),
    "sm_config_of_model": (ctypes.c_char_p, ctypes.POINTER(_ConfigStruct)),
    "sm_store_layer": (ctypes.c_char_p, ctypes.c_int64, ctypes.c_char_p),
    "sm_config_of_stored": (ctypes.c_char_p, ctypes.POINTER(_ConfigStruct)),
    "sm_sizes": (_handle, ctypes.c_int64, ctypes.c_int64, ctypes.POINTER(_Sizes)),
    "sm_forward": (_handle, ctypes.c_char_p),
    "sm_experts": (_handle, ctypes.c_char_p),
    "sm_arrange": (_handle, ctypes.c_char_p),
    "sm_backward": (_handle, ctypes.c_char_p),
    "sm_experts_backward": (_handle, ctypes.c_char_p),
    "sm_loads": (_handle, ctypes.c_uint64, ctypes.c_int64, ctypes.c_uint64, ctypes.c_uint64),
    "sm_update_selection_bias": (_handle, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_double),
    "sm_join": (_handle, ctypes.POINTER(_ConfigStruct), ctypes.c_void_p, ctypes.POINTER(_handle)),
    "sm_rank_sizes": (_handle, ctypes.c_void_p),
    "sm_rank_forward": (_handle, ctypes.c_char_p, ctypes.c_void_p),
    "sm_rank_backward": (_handle, ctypes.c_char_p, ctypes.c_void_p),
    "sm_rank_wait": (_handle, ctypes.c_uint64),
    "sm_check_kernel": (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64),
    "sm_close": (_handle,),
    "sm_warm": (ctypes.c_char_p, ctypes.POINTER(_ConfigStruct), ctypes.c_char_p),
    "sm_add_bundle": (ctypes.c_char_p,),
    "sm_alloc": (_handle, ctypes.c_int64, ctypes.POINTER(ctypes.c_uint64)),
    "sm_free": (_handle, ctypes.c_uint64),
    "sm_write": (_handle, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int64),
    "sm_read": (_handle, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int64),
}
_INVALID = 1


class _State:
    """The loaded library, and the layers, ranks and plans of this process."""

    def __init__(self):
        self.lock = threading.Lock()
        self.library = None
        self.forked = False
        self.devices = {}
        self.layers = {}
        self.ranks = {}
        self.plans = {}


current = _State()


def _after_fork():
    forked = current.library is not None or current.forked
    current.__init__()  # a new lock, because a thread that fork did not copy may have held the old one
    current.forked = forked


os.register_at_fork(after_in_child=_after_fork)


def path() -> str:
    """Returns the path of the library."""
    return os.environ.get("SONICMOE_GO_LIBRARY") or str(Path(__file__).with_name("libsonicmoe.so"))


def bundle() -> Path:
    """Returns the path of the bundle of kernels of known models, which lies next to the library, or
    None if the wheel has no bundle."""
    return Path(path()).with_name("models.bundle")


def _has_usable_bundle() -> bool:
    """Whether the wheel has a bundle and, if SONICMOE_CACHE_KEY is set, a signature of the
    bundle."""
    needed = [bundle()]
    if os.environ.get("SONICMOE_CACHE_KEY"):
        needed.append(bundle().with_name(bundle().name + ".minisig"))
    return all(file.exists() for file in needed)


def library() -> ctypes.CDLL:
    """Returns the library, loaded at the first call."""
    if current.library is None:
        if current.forked:
            raise Error(
                "this process was forked from one that had used sonicmoe_go, which can't go on here: start workers with "
                "multiprocessing's 'spawn' or 'forkserver', or use sonicmoe_go in the children only"
            )
        try:
            lib = ctypes.CDLL(path())
        except OSError as err:
            raise Error(f"the shared library of sonicmoe_go can't be loaded: {err}") from err
        for name, arguments in _SIGNATURES.items():
            function = getattr(lib, name)
            function.argtypes, function.restype = arguments, ctypes.c_int
        lib.sm_error_text.argtypes, lib.sm_error_text.restype = (), ctypes.c_char_p
        if _has_usable_bundle() and lib.sm_add_bundle(os.fsencode(bundle())):
            said = lib.sm_error_text().decode("utf-8", "replace")
            warnings.warn(f"kernels of known models are compiled, for those of the package can't be used: {said}", stacklevel=2)
        current.library = lib
    return current.library


# The names of Config's fields in Python, by their names in errors of the library, in lower case.
_FIELDS = {"inout": "weight_order", "groupsumoftwo": "group_score", "rounding": "rounding_rule"}
for _name in (f.name for f in dataclasses.fields(Config)):
    _FIELDS[_name.replace("rounding_", "rounding.").replace("_", "")] = _name
_FIELD = re.compile(r"\b(Config\.|with |without |where |(?=Rounding\.))((?:Rounding\.)?[A-Z]\w*)")


def _renamed(m: re.Match) -> str:
    """Returns a match of _FIELD with the field's name in Python."""
    name = _FIELDS.get(m[2].lower())
    return m[0] if name is None else (m[1] or "Config.") + name


def check(status: int) -> None:
    """Raises the last error of the calling thread if the status is not 0."""
    if status:
        text = library().sm_error_text().decode("utf-8", "replace")
        text = _FIELD.sub(_renamed, text)
        for name, true, false in (("weight_order", "in-out", "out-in"), ("group_score", "sum2", "best")):
            text = text.replace(f"{name} is true, must be false", f"{name} is {true}, must be {false}")
        raise (ArgumentError if status == _INVALID else Error)(text)


def device(name: str) -> int:
    """Returns the handle of an open device: "cuda:0", or "emulated"."""
    with current.lock:
        handle = current.devices.get(name)
        if handle is None:
            out = _handle()
            check(library().sm_open(name.encode(), out))
            handle = current.devices[name] = out.value
        return handle


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The bytes of workspace that a pass needs, the number of entries of the list that rounding
    writes, and the bytes of units (the order of packed weights for small batches)."""

    workspace: int
    backward_workspace: int
    rounded_rows: int
    units: int


class Layer:
    """A compiled layer on one device. It exists until the process ends."""

    def __init__(self, config: Config, name: str):
        self.config = config
        self.device = device(name)
        lib, out = library(), _handle()
        check(lib.sm_layer_new(self.device, _ConfigStruct.of(config), out))
        self.handle = out.value
        self._forward, self._experts = lib.sm_forward, lib.sm_experts
        self._backward, self._experts_backward = lib.sm_backward, lib.sm_experts_backward
        self._sizes: dict[tuple[int, int], Sizes] = {}

    def sizes(self, tokens: int, entries: int = 0) -> Sizes:
        """Returns the sizes of a pass over a number of tokens. entries is the length of the list
        that routes it, or 0."""
        known = self._sizes.get((tokens, entries))
        if known is None:
            s = _Sizes(size=ctypes.sizeof(_Sizes))
            check(library().sm_sizes(self.handle, tokens, entries, s))
            if len(self._sizes) >= 4096:
                self._sizes.clear()
            known = self._sizes[tokens, entries] = Sizes(s.workspace, s.backward_workspace, s.rounded_rows, s.units)
        return known

    def rounded_rows(self, tokens: int) -> int:
        """Returns the number of entries of the list that rounding writes for a number of tokens."""
        return self.sizes(tokens).rounded_rows

    def forward(self, packed: bytes, *, routed: bool) -> None:
        """Queues sm_forward, or sm_experts if the caller gave the routing."""
        check((self._experts if routed else self._forward)(self.handle, packed))

    def address(self, function: str) -> int:
        """Returns the address of a C function that queues a pass."""
        return ctypes.cast(getattr(self, "_" + function), ctypes.c_void_p).value

    def backward(self, packed: bytes, *, routed: bool) -> None:
        """Queues sm_backward, or sm_experts_backward if the caller gave the routing."""
        check((self._experts_backward if routed else self._backward)(self.handle, packed))


def layer(key: str, name: str) -> Layer:
    """Returns the layer with the key of a configuration on a device. It is made at the first
    call."""
    found = current.layers.get((key, name))
    if found is None:
        made = Layer(Config.of(key), name)
        found = current.layers.setdefault((key, name), made)
        if found is not made:  # another thread made the layer at the same time
            check(library().sm_close(made.handle))
    return found


def warm(config: Config, chip: str = "H200", directory: str = "") -> None:
    """Stores the kernels of a layer in a cache directory, without a GPU: PTX, and machine code if
    NVIDIA's ptxas is installed. The directory "" is the one that layers read by default."""
    check(library().sm_warm(chip.encode(), _ConfigStruct.of(config), directory.encode()))
