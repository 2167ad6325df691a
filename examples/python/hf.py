"""Models of transformers on the library's experts, beside eager: losses of a training run, greedy text.

    python hf.py [--device cpu] [--steps 100] [--families mixtral,olmoe]

The models are random and small; the text they learn is made up.
"""

import argparse
import copy

import torch
import transformers

import sonicmoe_go

FAMILIES = {
    "qwen3_moe": {"intermediate_size": 512, "moe_intermediate_size": 128, "num_experts": 8, "norm_topk_prob": True, "head_dim": 32},
    "mixtral": {"intermediate_size": 128, "num_local_experts": 8},
    "olmoe": {"intermediate_size": 128, "num_experts": 8},
    "glm4_moe": {
        "intermediate_size": 512, "moe_intermediate_size": 128, "n_routed_experts": 8, "head_dim": 32, "first_k_dense_replace": 1,
        "n_group": 1, "topk_group": 1,
    },
    "deepseek_v3": {
        "intermediate_size": 512, "moe_intermediate_size": 128, "n_routed_experts": 8, "first_k_dense_replace": 1, "n_group": 2,
        "topk_group": 1, "q_lora_rank": 64, "kv_lora_rank": 64, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 32,
    },
}  # fmt: skip
VOCABULARY = 96


def model_of(family: str, device: str) -> torch.nn.Module:
    """A small random model of that family."""
    config = transformers.AutoConfig.for_model(
        family, hidden_size=256, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=8, vocab_size=VOCABULARY,
        num_experts_per_tok=2, max_position_embeddings=128, pad_token_id=0, bos_token_id=None,
        eos_token_id=None, **FAMILIES[family],
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).to(device, torch.bfloat16)


def batch(step: int, device: str) -> torch.Tensor:
    """Sequences that count upward in steps of their own."""
    g = torch.Generator().manual_seed(step)
    first, by = torch.randint(1, VOCABULARY, (2, 16, 1), generator=g)
    return ((first + (1 + by % 5) * torch.arange(32)) % (VOCABULARY - 1) + 1).to(device)


def train(model: torch.nn.Module, steps: int, device: str) -> list[float]:
    """The loss of each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        tokens = batch(step, device)
        loss = model(tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    flags.add_argument("--steps", type=int, default=100)
    flags.add_argument("--families", default=",".join(FAMILIES), help="which of " + ", ".join(FAMILIES))
    args = flags.parse_args()
    if args.device == "cpu":
        sonicmoe_go.emulate()
    ours = sonicmoe_go.register_with_transformers()
    for family in args.families.split(","):
        model = model_of(family, args.device)
        losses, texts = {}, {}
        for name in ("eager", ours):
            trained = copy.deepcopy(model)
            trained.set_experts_implementation(name)
            losses[name] = train(trained, args.steps, args.device)
            if name == "eager":
                learned = copy.deepcopy(trained)
        for name in losses:
            learned.set_experts_implementation(name)
            prompt = batch(10_000, args.device)[:4, :8]
            texts[name] = learned.generate(prompt, max_new_tokens=16, do_sample=False)
        tail = max(1, args.steps // 10)
        a, b = (sum(losses[n][-tail:]) / tail for n in losses)
        same = (texts["eager"] == texts[ours]).float().mean().item()
        print(f"{family:12s} loss {losses['eager'][0]:.4f} to {a:.4f} eager, {b:.4f} here ({100 * (b / a - 1):+.2f} %); "
              f"greedy tokens that agree {100 * same:.1f} %", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
