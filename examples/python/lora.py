"""Compares LoRA training of a model's experts in one run: PEFT on transformers (eager and
grouped_mm), PEFT on the library (registered experts and layers of from_hf), and the library's own
adapter. It prints the mean loss of all steps and of the last tenth, times of a step, and how far
logits move when an adapter goes to another kind of experts through files.

    python lora.py [--device emulated] [--steps 100] [--width 2048 --n 768 --experts 128 --top-k 8] [--compile]

The model is a random Qwen3-MoE that learns an artificial text. With --compile torch.compile fuses
the attention and the norms of all kinds.
"""

import argparse
import contextlib
import copy
import statistics
import tempfile
import time

import peft
import torch

import hf
import sonicmoe_go

TARGETS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


def batch(step: int, sequences: int, length: int, device: str) -> torch.Tensor:
    """Returns sequences that count upward, like the ones of hf.py."""
    g = torch.Generator().manual_seed(step)
    first, by = torch.randint(1, hf.VOCABULARY, (2, sequences, 1), generator=g)
    return ((first + (1 + by % 5) * torch.arange(length)) % (hf.VOCABULARY - 1) + 1).to(device)


def with_layers(model: torch.nn.Module) -> torch.nn.Module:
    """Replaces the blocks of a model with layers of from_hf."""
    for layer in model.model.layers:
        layer.mlp = sonicmoe_go.SonicMoE.from_hf(layer.mlp)
    return model


def adapted(model: torch.nn.Module, way: str, rank: int) -> torch.nn.Module:
    """Returns a copy of a model with an adapter of its experts. All ways start with the same
    factors."""
    made = copy.deepcopy(model)
    if way in ("from_hf", "own"):
        made = with_layers(made)
    else:
        made.set_experts_implementation(way)
    torch.manual_seed(1)
    made = peft.get_peft_model(made, peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=[], target_parameters=TARGETS))
    if way != "own":
        return made
    with tempfile.TemporaryDirectory() as folder:
        made.save_pretrained(folder)
        own = with_layers(copy.deepcopy(model)).requires_grad_(False)
        sonicmoe_go.load_adapter(own, folder)
    return own


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def train(model: torch.nn.Module, args: argparse.Namespace) -> tuple[list[float], list[float]]:
    """Trains the adapter of a model. Returns the loss and the milliseconds of each step."""
    if args.compile:
        for name, module in model.named_modules():
            if name.endswith(("self_attn", "layernorm", "model.norm")):
                module.compile()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=args.rate, weight_decay=0.0)
    losses, times = [], []
    for step in range(args.steps):
        tokens = batch(step, args.sequences, args.length, args.device)
        synchronise(args.device)
        begin = time.perf_counter()
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        synchronise(args.device)
        times.append(1e3 * (time.perf_counter() - begin))
        losses.append(loss.item())
    return losses, times


@torch.no_grad()
def logits(model: torch.nn.Module, args: argparse.Namespace) -> torch.Tensor:
    return model(input_ids=batch(20_000, args.sequences, args.length, args.device), use_cache=False).logits.double()


def moved(a: torch.Tensor, b: torch.Tensor) -> float:
    """Returns the median distance of a token's logits."""
    return ((a - b).norm(dim=-1) / b.norm(dim=-1)).median().item()


def exchange(model: torch.nn.Module, theirs: torch.nn.Module, ours: torch.nn.Module, args: argparse.Namespace) -> None:
    """Prints how far logits move when each side loads the adapter that the other has saved."""
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder + "/theirs")
        read = with_layers(copy.deepcopy(model))
        sonicmoe_go.load_adapter(read, folder + "/theirs")
        print(f"adapter of PEFT, loaded here: logits move by {moved(logits(read, args), logits(theirs, args)):.5f}")
        sonicmoe_go.save_adapter(ours, folder + "/ours")
        other = copy.deepcopy(model)
        other.set_experts_implementation("eager")
        other = peft.PeftModel.from_pretrained(other, folder + "/ours")
        print(f"adapter of this library, loaded by PEFT: logits move by {moved(logits(other, args), logits(ours, args)):.5f}")
        print(f"for comparison, without the adapters: {moved(logits(model, args), logits(ours, args)):.5f}", flush=True)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--device", default="cuda" if torch.cuda.is_available() else "emulated", help="cuda, or emulated, as in the Go programs")
    flags.add_argument("--compile", action="store_true", help="compile the attention and the norms")
    flags.add_argument("--rate", type=float, default=5e-4, help="learning rate")
    for name, value in {"steps": 100, "width": 256, "n": 128, "experts": 8, "top-k": 2, "layers": 2, "rank": 16, "sequences": 64, "length": 64}.items():
        flags.add_argument("--" + name, type=int, default=value)
    args = flags.parse_args()
    if args.device in ("emulated", "cpu"):  # tensors of the CPU are copied to the emulated device
        sonicmoe_go.emulate()
        args.device = "cpu"
    registered, hf.LAYERS = sonicmoe_go.register_with_transformers(), args.layers
    model = hf.model_of("qwen3_moe", args.device, args.width, args.n, args.experts, args.top_k)
    print(f"{args.sequences * args.length} tokens, rank {args.rank}\n{'experts by':12s}{'mean loss':>10s}{'%':>8s}{'last':>10s}{'%':>8s}{'ms':>10s}{'times':>8s}")
    first, kept = None, {}
    for way in ("eager", "grouped_mm", registered, "from_hf", "own"):
        with contextlib.suppress(NotImplementedError):  # grouped_mm does not support every device
            kept = {w: m for w, m in kept.items() if w == "eager"}
            kept[way] = adapted(model, way, args.rank)
            losses, times = train(kept[way], args)
            mean, last, ms = statistics.mean(losses), statistics.mean(losses[-max(1, args.steps // 10) :]), statistics.median(times[len(times) // 2 :])
            first = first or (mean, last, ms)
            print(f"{way:12s}{mean:10.4f}{100 * (mean / first[0] - 1):+8.2f}{last:10.4f}{100 * (last / first[1] - 1):+8.2f}{ms:10.2f}{first[2] / ms:8.2f}", flush=True)
    exchange(model, kept["eager"], kept["own"], args)


if __name__ == "__main__":
    main()
