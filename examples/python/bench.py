"""Times a block of Qwen3-MoE on a GPU: eager, with torch's grouped_mm, and with this library, in
one run.

    python bench.py [--hidden 2048 --intermediate 768 --experts 128 --top-k 8 --tokens 4096]

Times are medians of device time between events. If the host takes longer for a call, they are the
host's time.
"""

import argparse
import statistics

import torch
import transformers

import sonicmoe_go


def median_ms(f, rounds: int, warm: int = 3) -> float:
    """Returns the median time of f on the device, in milliseconds, after calls that warm it up."""
    for _ in range(warm):
        f()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(rounds):
        start.record()
        f()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"hidden": 2048, "intermediate": 768, "experts": 128, "top-k": 8, "tokens": 4096, "few": 16}.items():
        flags.add_argument("--" + name, type=int, default=value)
    args = flags.parse_args()
    config = transformers.AutoConfig.for_model(
        "qwen3_moe", hidden_size=args.hidden, moe_intermediate_size=args.intermediate, num_experts=args.experts,
        num_experts_per_tok=args.top_k, norm_topk_prob=True, num_hidden_layers=1, num_attention_heads=16,
        num_key_value_heads=4, head_dim=128, vocab_size=512,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config).cuda().bfloat16()
    block = model.model.layers[0].mlp
    x = torch.randn(1, args.tokens, args.hidden, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    few = x[:, : args.few].detach()
    whole = sonicmoe_go.SonicMoE.from_hf(block)

    def measure(name, layer):
        @torch.no_grad()
        def infer(tokens):
            layer(tokens)

        def train():
            torch.autograd.grad(layer(x), [x, *block.parameters()], x)

        ms = median_ms(lambda: infer(x), 20), median_ms(lambda: infer(few), 20), median_ms(train, 10)
        print(f"{name:24s}" + "".join(f"{t:12.3f}" for t in ms), flush=True)

    print(f"{'ms':24s}{f'T={args.tokens}':>12s}{f'T={args.few}':>12s}{'training':>12s}")
    for name in ("eager", "grouped_mm", sonicmoe_go.register_with_transformers()):
        model.set_experts_implementation(name)
        measure(name, block)
    measure("sonicmoe_go.from_hf", whole)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        whole(x)
    print(f"GPU, SonicMoE of a graph {median_ms(graph.replay, 30):12.3f} ms")


if __name__ == "__main__":
    main()
