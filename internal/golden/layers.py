"""Compares layers of published models at their real sizes with the blocks of the transformers
library in float32: the output, the routing, and the gradients of tokens and of every weight.
examples/layer runs the layers from files in the models' formats.

    CGO_ENABLED=0 go build -o layer ./examples/layer
    python3 internal/golden/layers.py --layer ./layer --device cuda --folder /dev/shm

Weights are random. Sizes and settings come from the model's config.json. A token may have logits
that are almost equal: a change of its values in the sixth bit then changes its experts, and the
layer may choose other experts than the block. Such a token does not count in the norm of the
output, and its gradient is set to zero. All other tokens must have the block's experts.

The program prints one line for each model. It exits with code 1 if a model exceeds a bound.
"""

import argparse
import copy
import gc
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

import torch
from safetensors import safe_open
from safetensors.torch import save_file

import golden

BOUND, ROUTER_BOUND = 6e-3, 1e-2  # relative norms; the router's bound is larger, because its gradients are differences of the scores' gradients
NEAR, TRIES = 2**-6, 48  # the relative change of a token's values, and the number of random changes

# One model of each family. golden.BLOCKS has the code of its block.
MODELS = (
    "Granite 3.1 3B-A800M", "OLMoE-1B-7B", "DeepSeek-V2-Lite", "Qwen3-30B-A3B", "ERNIE-4.5-21B-A3B", "gpt-oss-20b", "Mixtral 8x7B",
    "Qwen3-Next-80B-A3B", "Qwen2-57B-A14B", "Kimi-Linear-48B-A3B", "Nemotron-3-Nano", "Llama-4 Scout", "Hunyuan-A13B", "GLM-4.5", "MiniMax-M2",
    "MiniMax-M1", "Phi-3.5-MoE", "Gemma-4 26B-A4B", "DBRX", "DeepSeek-V3",
)  # fmt: skip

# Models whose router no layer supports. Only their experts are tested, with the routing of the
# block's router.
ROUTED = ("Phi-3.5-MoE", "Gemma-4 26B-A4B")

# The names of a layer's experts, and of their matrices, in the checkpoints of each family.
PLACES = {
    "llama4": "language_model.model.layers.{}.feed_forward.", "nemotron_h": "backbone.layers.{}.mixer.", "dbrx": "transformer.blocks.{}.ffn.",
    "gemma4": "model.language_model.layers.{}.",
    **dict.fromkeys(("mixtral", "minimax", "minimax_m2", "granitemoe", "kimi_linear"), "model.layers.{}.block_sparse_moe."),
}  # fmt: skip
TOGETHER = {
    "dbrx": {}, "gemma4": {}, "gpt_oss": {}, "llama4": {}, "qwen3_5_moe": {},
    "granitemoe": {"experts.gate_up_proj": "input_linear.weight", "experts.down_proj": "output_linear.weight", "router.weight": "router.layer.weight"},
}  # fmt: skip
LETTERS = ("mixtral", "minimax", "minimax_m2", "kimi_linear")

# The names that examples/layer gives to the gradients of golden.py's tensors.
GRADIENTS = {
    "router": "drouter.weight", "routerBias": "drouter.bias", "w1": "dexperts.gate_up", "w3": "dexperts.up", "w2": "dexperts.down", "b1": "dexperts.gate_up_bias",
    "b2": "dexperts.down_bias", "sharedW1": "dshared.gate", "sharedW3": "dshared.up", "sharedW2": "dshared.down", "sharedGate": "dshared.score",
}  # fmt: skip


def first_layer(config):
    """Returns the number of the first layer that has experts."""
    text = config.get("text_config", config)
    if "hybrid_override_pattern" in text:
        return text["hybrid_override_pattern"].index("E")
    return text.get("first_k_dense_replace", text.get("moe_layer_start_index", 0))


def block_of(config, kind, config_class, block_class, device):
    """Returns the block with weights that are scaled so that outputs are of order 1. The experts'
    weights are bf16. The other weights have a wider type, but values that bf16 holds."""
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        block = golden.make(kind, config_class, block_class, config)
    torch.set_default_dtype(torch.float32)
    block.eval()
    with torch.no_grad():
        for name, p in (*block.named_parameters(), *block.named_buffers()):
            if p.dim() < 2 or p.shape[0] == 1:
                p.uniform_(-0.1, 0.1)
            else:
                turned = p.dim() == 3 and kind in ("gpt_oss", "llama4")  # [E, in, out]
                inputs = p.shape[-2 if turned else -1]
                if name == "experts.mlp.w2":  # DBRX's matrices are [in, out], one expert after another
                    inputs = p.shape[0] // block.experts.num_experts
                p.normal_(std=inputs**-0.5)
    for name, m in block.named_children():
        if name != "experts":
            m.float()
    return block


def write(folder, config, layer, block, kind):
    """Writes the model's folder: config.json, and the weights of one layer in several files, under
    the names that the checkpoint uses."""
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    place, tensors, held, files = PLACES.get(kind, "model.layers.{}.mlp.").format(layer), {}, 0, 0

    def flush():
        nonlocal tensors, held, files
        save_file(tensors, os.path.join(folder, f"model-{files:05d}.safetensors"))
        tensors, held, files = {}, 0, files + 1

    def put(name, t, dtype=torch.bfloat16):
        nonlocal held
        tensors[place + name] = t = t.detach().to(dtype).cpu().contiguous()
        held += t.nbytes
        if held > 4 << 30:
            flush()

    up, gate, down = ("w3", "w1", "w2") if kind in LETTERS else ("up_proj", "gate_proj", "down_proj")
    for name, p in (*block.named_parameters(), *block.named_buffers()):
        if kind in TOGETHER or not re.fullmatch(r"experts\.\w+_proj", name):
            put(TOGETHER.get(kind, {}).get(name, name), p, torch.float32 if "e_score" in name else torch.bfloat16)
            continue
        for e in range(p.shape[0]):
            if name.endswith("gate_up_proj"):
                for part, t in zip((gate, up), p[e].chunk(2)):
                    put(f"experts.{e}.{part}.weight", t)
            else:
                put(f"experts.{e}.{down if name.endswith('down_proj') else up}.weight", p[e])
    if tensors:
        flush()


class Experts(torch.autograd.Function):
    """The experts of a block in float32, one at a time. backward calls found with the gradients of
    each expert as soon as they are computed."""

    @staticmethod
    def forward(ctx, x, scores, ids, experts, found):
        ctx.save_for_backward(x, scores)
        ctx.of = ids, experts, found
        o = torch.zeros_like(x)
        for _, one, token, slot in each(experts, x, ids):
            o.index_add_(0, token, run(one, x[token], scores, token, slot))
        return o

    @staticmethod
    def backward(ctx, d_o):
        x, scores = ctx.saved_tensors
        ids, experts, found = ctx.of
        dx, d_scores = torch.zeros_like(x), None if scores is None else torch.zeros_like(scores)
        for e, one, token, slot in each(experts, x, ids):
            with torch.enable_grad():
                rows, given = x[token].requires_grad_(), None if scores is None else scores.detach().requires_grad_()
                o = run(one, rows, given, token, slot)
                weights = dict(one.named_parameters())
                of = [rows, *([] if given is None else [given]), *weights.values()]
                d_rows, *got = torch.autograd.grad(o, of, d_o[token])
            dx.index_add_(0, token, d_rows)
            if given is not None:
                d_scores += got.pop(0)
            for name, g in zip(weights, got):
                found(e, name, g.squeeze(0))
        return dx, d_scores, None, None, None


def each(experts, x, ids):
    """Yields each expert that has tokens, as a float32 module with one expert, and the numbers of
    the rows of x for this expert."""
    count = experts.num_experts
    for e in range(count):
        one = only(experts, e, count)
        one.num_experts = 1
        if ids is None:  # every expert has a row for each token
            rows = x.shape[0] // count
            token, slot = torch.arange(e * rows, (e + 1) * rows, device=x.device), None
        else:
            token, slot = torch.where(ids == e)
        if len(token):
            yield e, one, token, slot


def only(module, e, count):
    """Returns a copy of a module with only the parameters of one expert. In the module the
    parameters of all experts are stored one after another."""
    one = copy.copy(module)
    one._parameters = {n: p.detach().chunk(count)[e].float().requires_grad_() for n, p in module._parameters.items()}
    one._modules = {n: only(m, e, count) for n, m in module._modules.items()}
    return one


def run(one, rows, scores, token, slot):
    if scores is None:
        return one.eager(rows)
    return one.eager(rows, torch.zeros(len(token), 1, dtype=torch.long, device=rows.device), scores[token, slot, None]).reshape(rows.shape)


class Reference:
    """A block whose experts are computed by the class Experts."""

    def __init__(self, block, bf16_logits):
        self.block, self.found, self.quick = block, lambda *_: None, False
        router = block.router if hasattr(block, "router") else block.gate
        self.router = next(p for p in router.parameters() if p.dim() == 2)
        self.bf16_logits = bf16_logits
        type(block.experts).eager = type(block.experts).forward
        block.experts.forward = self.experts
        router.register_forward_hook(self.routed)

    def routed(self, _, __, out):
        self.logits = out[1] if isinstance(out, tuple) else out

    def experts(self, x, ids=None, scores=None):
        x = x.reshape(-1, x.shape[-1])
        self.given = x, ids, scores
        self.ids = self.logits.topk(1).indices if ids is None else ids
        if self.quick:
            return torch.zeros_like(x)
        return Experts.apply(x, None if scores is None else scores.float(), ids, self.block.experts, self.found)

    def __call__(self, x):
        linear = torch.nn.functional.linear

        def rounding(x, w, b=None):
            y = linear(x, w, b)
            return y + (y.bfloat16().float() - y).detach() if w is self.router and self.bf16_logits else y

        torch.nn.functional.linear = rounding
        try:
            o = self.block(x[None])
        finally:
            torch.nn.functional.linear = linear
        return (o[0] if isinstance(o, tuple) else o).reshape(x.shape)

    @torch.no_grad()
    def chosen(self, x):
        """Returns the experts of each token in ascending order."""
        self.quick = True
        self(x)
        self.quick = False
        return self.ids.reshape(len(x), -1).sort(-1).values

    def nearly_ties(self, x):
        """Returns the tokens whose experts may change if their values change in the last bits."""
        first, ties = self.chosen(x), torch.zeros(len(x), dtype=torch.bool, device=x.device)
        for _ in range(TRIES):
            ties |= (self.chosen(x + NEAR * x * torch.randn_like(x)) != first).any(-1)
        return first, ties


def measure(name, config, args):
    """Returns the line to print for a model, and whether the model is within the bounds."""
    started, kind = time.time(), golden.BLOCKS[name][0]
    torch.manual_seed(1)
    block = block_of(config, *golden.BLOCKS[name], args.device)
    folder = tempfile.mkdtemp(dir=args.folder)
    try:
        layer = first_layer(config)
        write(os.path.join(folder, "model"), config, layer, block, kind)
        import sonicmoe_go

        of = sonicmoe_go.Config.of_model(json.dumps(config))
        reference = Reference(block, of.logits == "bf16")
        x = torch.randn(args.tokens, of.hidden, device=args.device).bfloat16()
        ids, ties = reference.nearly_ties(x.float())
        d_o = torch.randn_like(x) * ~ties[:, None]
        with safe_open(ran_on(folder, layer, args, x=x, do=d_o), "pt") as got:
            return compare(name, reference, x, d_o, ids, ties, got, started)
    finally:
        shutil.rmtree(folder)


def ran_on(folder, layer, args, **tensors):
    """Runs examples/layer on the tensors, with the model in the folder. Removes the folder and
    returns the output."""
    put, out, model = (os.path.join(folder, name) for name in ("in.safetensors", "out.safetensors", "model"))
    save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, put)
    ran = subprocess.run(
        [args.layer, "-model", model, "-layer", str(layer), "-input", put, "-output", out, "-device", "cuda" if args.device == "cuda" else "emulated"],
        capture_output=True, text=True,
    )  # fmt: skip
    shutil.rmtree(model)
    if ran.returncode:
        raise RuntimeError(ran.stderr.strip().splitlines()[-1])
    return out


def measure_routed(name, config, args):
    """Like measure, for a model in ROUTED. It compares o, dx, and the gradients of the scores and
    of every expert's weights."""
    started, kind = time.time(), golden.BLOCKS[name][0]
    torch.manual_seed(1)
    block = block_of(config, *golden.BLOCKS[name], args.device)
    folder = tempfile.mkdtemp(dir=args.folder)
    try:
        layer = first_layer(config)
        write(os.path.join(folder, "model"), config, layer, block, kind)
        reference = Reference(block, False)
        reference.chosen(torch.randn(args.tokens, config.get("text_config", config)["hidden_size"], device=args.device))
        x, ids, scores = reference.given
        x, scores = x.detach().bfloat16(), scores.detach().float()
        d_o = torch.randn_like(x)
        with safe_open(ran_on(folder, layer, args, x=x, do=d_o, scores=scores, experts=ids.int()), "pt") as got:
            errors, wide, given = Errors(), x.float().requires_grad_(), scores.requires_grad_()
            slices = {name: got.get_slice("d" + name) for name in ("experts.gate_up", "experts.down")}
            found = lambda e, n, g: errors.add("dexperts." + n, slices["experts." + n.removesuffix("_proj")][e], g)  # noqa: E731
            want = Experts.apply(wide, given, ids, block.experts, found)
            want.backward(d_o.float())
            errors.add("o", got.get_tensor("o"), want.detach())
            errors.add("dx", got.get_tensor("dx"), wide.grad)
            errors.add("dscores", got.get_tensor("dscores"), given.grad)
        return f"{name}: {len(x)} tokens routed by the block; {errors}; {time.time() - started:.0f} s", errors.good()
    finally:
        shutil.rmtree(folder)


class Errors(dict):
    """Sums of the squared differences and of the squared values, for each tensor."""

    def add(self, what, ours, theirs):
        was = self.get(what, (0, 0))
        theirs = theirs.float()
        difference = ours.to(theirs.device).float() - theirs
        self[what] = was[0] + difference.square().sum().item(), was[1] + theirs.square().sum().item()

    def far(self):
        return {k: (a / b) ** 0.5 for k, (a, b) in self.items()}

    def good(self):
        return all(v <= (ROUTER_BOUND if k.startswith("drouter") else BOUND) for k, v in self.far().items())

    def __str__(self):
        return ", ".join(f"{k} {v:.4f}" for k, v in self.far().items())


def compare(name, reference, x, d_o, ids, ties, got, started):
    errors = Errors()
    chosen = got.get_tensor("experts").to(x.device).sort(-1).values
    other = (chosen != ids).any(-1)
    ours_of = {path: GRADIENTS[next(to for pattern, to in golden.NAMES if re.search(pattern, path))]
               for path, p in reference.block.named_parameters() if p.requires_grad}  # fmt: skip
    if "dexperts.gate" in got.keys():
        ours_of = {path: {"dexperts.gate_up": "dexperts.gate"}.get(n, n) for path, n in ours_of.items()}
    slices = {p: got.get_slice(n) for p, n in ours_of.items() if p.startswith("experts.")}

    def expert(e, parameter, gradient):
        ours = slices["experts." + parameter][e]
        errors.add(ours_of["experts." + parameter], ours.T if parameter == "mlp.w2" else ours, gradient)

    reference.found = expert
    wide = x.float().requires_grad_()
    o = reference(wide)
    o.backward(d_o.float())
    errors.add("o", got.get_tensor("o")[~ties.cpu()], o.detach()[~ties])
    errors.add("dx", got.get_tensor("dx")[~ties.cpu()], wide.grad[~ties])
    for path, p in reference.block.named_parameters():
        if path in ours_of and not path.startswith("experts."):
            ours = got.get_tensor(ours_of[path] if ours_of[path] in got.keys() else "dshared.gate")
            errors.add(ours_of[path], ours.reshape(p.shape), p.grad)
    wrong = int((other & ~ties).sum())
    line = f"{name}: {len(x)} tokens, {int(ties.sum())} nearly tie, of those {int((other & ties).sum())} go elsewhere, of the others {wrong}; "
    return f"{line}{errors}; {time.time() - started:.0f} s", errors.good() and not wrong


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--layer", required=True, help="the program examples/layer")
    flags.add_argument("--device", default="cuda")
    flags.add_argument("--folder", default=None, help="folder for temporary files of twice the size of the weights")
    flags.add_argument("--tokens", type=int, default=2048)
    flags.add_argument("--models", default=",".join(MODELS))
    flags.add_argument("--small", action="store_true", help="small sizes with the same settings")
    args = flags.parse_args()
    with open(os.path.join(golden.here, "../../moe/checkpoint/published.json")) as f:
        published = {m["name"]: m["config"] for m in json.load(f)}
    bad = 0
    for name in args.models.split(","):
        config = golden.small(published[name]) if args.small else published[name]
        try:
            line, good = (measure_routed if name in ROUTED else measure)(name, config, args)
        except Exception as err:  # an error must not keep the other models from being measured
            line, good = f"{name}: {type(err).__name__}: {err}", False
        bad += not good
        print("" if good else "BEYOND  ", line, sep="", flush=True)
        gc.collect()  # frees a block and its reference, which refer to each other
        if args.device == "cuda":
            torch.cuda.empty_cache()
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
