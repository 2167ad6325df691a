"""Compares models of transformers with several kinds of experts in one run: the library's, by
registration and by from_hf, eager, and torch's grouped_mm. It prints errors of logits against
float64, agreement of greedy text, losses of a training run, and speed.

    python hf.py [--device emulated] [--steps 100] [--families mixtral,olmoe] [--width 1024 --tokens 4096]

The models are random and small, and learn an artificial text. Speeds are measured only with
--width, the width of the models. With --steps 0 only speeds are measured.
"""

import argparse
import copy
import statistics
from collections.abc import Callable

import torch
import transformers

import sonicmoe_go
from bench import median_ms

VOCABULARY = 96
LAYERS = 4


def families(n: int, experts: int) -> dict[str, dict]:
    """Returns the fields of each family's configuration, with a number of experts of width n."""
    dense = {"intermediate_size": 4 * n, "moe_intermediate_size": n}
    return {
        "qwen3_moe": {**dense, "num_experts": experts, "norm_topk_prob": True, "head_dim": 32},
        "mixtral": {"intermediate_size": n, "num_local_experts": experts},
        "olmoe": {"intermediate_size": n, "num_experts": experts},
        "glm4_moe": {**dense, "n_routed_experts": experts, "head_dim": 32, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1},
        "gpt_oss": {"intermediate_size": n, "num_local_experts": experts, "head_dim": 32, "layer_types": ["full_attention"] * LAYERS},
        "deepseek_v3": {
            **dense, "n_routed_experts": experts, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1, "q_lora_rank": 64,
            "kv_lora_rank": 64, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 32,
        },
    }  # fmt: skip


def model_of(family: str, device: str, width: int = 256, n: int = 128, experts: int = 8, top_k: int = 2) -> torch.nn.Module:
    """Returns a random model of a family."""
    config = transformers.AutoConfig.for_model(
        family, hidden_size=width, num_hidden_layers=LAYERS, num_attention_heads=8, num_key_value_heads=8, vocab_size=VOCABULARY,
        num_experts_per_tok=top_k, max_position_embeddings=8192, pad_token_id=0, bos_token_id=None,
        eos_token_id=None, **families(n, experts)[family],
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).to(device, torch.bfloat16)


def batch(step: int, device: str) -> torch.Tensor:
    """Returns sequences that count upward. Each sequence has a step of its own."""
    g = torch.Generator().manual_seed(step)
    first, by = torch.randint(1, VOCABULARY, (2, 16, 1), generator=g)
    return ((first + (1 + by % 5) * torch.arange(32)) % (VOCABULARY - 1) + 1).to(device)


def train(model: torch.nn.Module, steps: int, rate: float, device: str) -> list[float]:
    """Trains a model and returns the loss of each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    losses = []
    for step in range(steps):
        tokens = batch(step, device)
        loss = model(tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def logits_off(model: torch.nn.Module, names: tuple[str, ...], device: str) -> dict[str, float]:
    """Returns the median distance of a token's logits from the eager logits in float64. It is the
    median, because a token whose experts have almost equal logits may choose another expert in
    another format."""
    tokens = batch(20_000, device)

    def logits(m, name):
        m.set_experts_implementation(name)
        return m(tokens).logits.double()

    truth = logits(copy.deepcopy(model).double(), "eager")
    return {n: ((logits(model, n) - truth).norm(dim=-1) / truth.norm(dim=-1)).median().item() for n in names}


@torch.no_grad()
def greedy(model: torch.nn.Module, ours: str, device: str) -> tuple[int, int, float]:
    """Compares greedy text with the text that eager chooses. Returns how many tokens ours also
    chooses after the same text, the number of tokens, and the largest margin at which ours chooses
    another token. The margin is the difference of eager's two largest logits, divided by the spread
    of its logits."""
    model.set_experts_implementation("eager")
    text = model.generate(batch(10_000, device)[:4, :8], max_new_tokens=16, do_sample=False)
    want = model(text[:, :-1]).logits[:, 7:].float()
    model.set_experts_implementation(ours)
    got = model(text[:, :-1]).logits[:, 7:].float()
    best = want.topk(2, dim=-1).values
    margin = (best[..., 0] - best[..., 1]) / want.std(dim=-1)
    other = got.argmax(-1) != want.argmax(-1)
    return other.numel() - int(other.sum()), other.numel(), margin[other].max().item() if other.any() else 0.0


def passes(model: torch.nn.Module, text: torch.Tensor) -> tuple[Callable[[], None], ...]:
    """Returns functions that run prefill of four sequences, the decoding of one token for each of 16
    sequences, and a training step."""
    one, at = text[:, :1].repeat(4, 1), torch.full((16, 1), 64, device=text.device)

    @torch.no_grad()
    def prefill():
        model(text)

    with torch.no_grad():
        cache = model(text[:, :64].repeat(4, 1), use_cache=True).past_key_values

    @torch.no_grad()
    def decode():
        model(one, past_key_values=cache, position_ids=at, use_cache=True)
        cache.crop(-1)

    def step():
        model(text, labels=text, use_cache=False).loss.backward()
        model.zero_grad()

    return prefill, decode, step


ROUNDS = 10


def turn(calls: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Returns the median time of each call, in milliseconds. The calls alternate, because the cores of
    a shared machine can be slower for seconds."""
    times = {name: [] for name in calls}
    for i in range(ROUNDS):
        for name, call in list(calls.items())[:: -1 if i % 2 else 1]:
            times[name].append(median_ms(call, 1, 0 if i else 2))
    return {name: statistics.median(of) for name, of in times.items()}


def models_by_experts(model: torch.nn.Module, ours: str) -> dict[str, torch.nn.Module]:
    """Returns copies of a model with each kind of experts. Not every kind of blocks has a from_hf."""
    models = {name: copy.deepcopy(model) for name in ("eager", "grouped_mm", ours, "from_hf")}
    for name in ("eager", "grouped_mm", ours):
        models[name].set_experts_implementation(name)
    for parent in list(models["from_hf"].modules()):
        for name, block in list(parent.named_children()):
            if isinstance(getattr(block, "experts", None), torch.nn.Module):
                setattr(parent, name, sonicmoe_go.SonicMoE.from_hf(block))
    return models


def measure(family: str, args: argparse.Namespace, ours: str) -> None:
    """Prints the times of a model with each kind of experts: the median of the turns and, in brackets,
    their range. Below a kind of ours are its times divided by the times of grouped_mm in the same
    turn. Eager, which is slow, has only one turn in three."""
    model = model_of(family, args.device, args.width, args.width // 2, args.experts, args.top_k)
    calls, text = {}, torch.randint(1, VOCABULARY, (4, args.tokens // 4), device=args.device)
    for name, of in models_by_experts(model, ours).items():
        try:
            calls[name] = passes(of, text)
            for call in calls[name]:
                call()
        except (RuntimeError, NotImplementedError, ValueError) as err:  # grouped_mm does not support every layout
            print(f"{family:12s} {name:12s} {type(err).__name__}: {str(err).splitlines()[0][:80]}", flush=True)
            calls.pop(name, None)
    times = {name: [] for name in calls}
    for i in range(args.turns):
        of = {name: c for name, c in calls.items() if name != "eager" or i % 3 == 0}
        medians = [turn({name: c[k] for name, c in of.items()}) for k in range(3)]
        for name in of:
            times[name].append([m[name] for m in medians])

    def line(name, turns):
        columns = (f"{statistics.median(ms):.2f} ({min(ms):.2f} to {max(ms):.2f})" for ms in zip(*turns))
        print(f"{family:12s} {name:12s}" + "".join(f"{c:>26s}" for c in columns), flush=True)

    for name, turns in times.items():
        line(name, turns)
        if name in (ours, "from_hf") and "grouped_mm" in times:
            line("  ratio", [[a / b for a, b in zip(*pair)] for pair in zip(turns, times["grouped_mm"])])


def learn(args: argparse.Namespace, ours: str) -> None:
    """Trains small models and prints how near their results are to eager's."""
    names = "eager", ours
    print(f"{'':12s}{'logits from float64':>24s}{'greedy':>18s}{'loss of ' + str(args.steps) + ' steps':>32s}{'eager, FP32':>20s}")
    print(f"{'':12s}{'eager':>12s}{'here':>12s}{'same':>9s}{'margin':>9s}{'eager':>12s}{'here':>10s}{'%':>10s}{'':>10s}{'%':>10s}")
    for family in args.families.split(","):
        model = model_of(family, args.device)
        losses = {}
        for name in names:
            trained = copy.deepcopy(model)
            trained.set_experts_implementation(name)
            losses[name] = train(trained, args.steps, args.rate, args.device)
            if name == "eager":
                learned = copy.deepcopy(trained)
        model.set_experts_implementation("eager")
        losses["fp32"] = train(model.float(), args.steps, args.rate, args.device)
        off = logits_off(learned, names, args.device)
        same, of, margin = greedy(learned, ours, args.device)
        tail = max(1, args.steps // 10)
        a, b, c = (sum(losses[n][-tail:]) / tail for n in (*names, "fp32"))
        print(f"{family:12s}{off['eager']:12.5f}{off[ours]:12.5f}{f'{same}/{of}':>9s}{margin:9.4f}{a:12.4f}{b:10.4f}{100 * (b / a - 1):+10.2f}"
              f"{c:10.4f}{100 * (c / a - 1):+10.2f}", flush=True)  # fmt: skip


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--device", default="cuda" if torch.cuda.is_available() else "emulated", help="cuda, or emulated, as in the Go programs")
    flags.add_argument("--steps", type=int, default=100)
    flags.add_argument("--rate", type=float, default=0.1, help="learning rate")
    flags.add_argument("--families", default=",".join(families(1, 1)), help="which of " + ", ".join(families(1, 1)))
    for name, value in {"width": 0, "experts": 64, "top-k": 8, "tokens": 4096, "turns": 3}.items():
        flags.add_argument("--" + name, type=int, default=value)
    args = flags.parse_args()
    if args.device in ("emulated", "cpu"):  # tensors of the CPU are copied to the emulated device
        sonicmoe_go.emulate()
        args.device = "cpu"
    ours = sonicmoe_go.register_with_transformers()
    if args.steps:
        learn(args, ours)
    if args.width:
        print(f"{'ms':12s} {'experts by':12s}{'prefill':>26s}{'decode':>26s}{'training':>26s}")
        for family in args.families.split(","):
            measure(family, args, ours)


if __name__ == "__main__":
    main()
