"""Trains a small gpt-oss of transformers with MXFP4 experts by LoRA.

    python qlora.py [--device emulated] [--steps 100] [--sequences 16]

The model is random, and learns the artificial text of hf.py. A published gpt-oss already has MXFP4
experts: from_hf then keeps them, and rounds nothing.
"""

import argparse

import torch

import sonicmoe_go
from hf import batch, model_of

flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
flags.add_argument("--device", default="cuda" if torch.cuda.is_available() else "emulated", help="cuda, or emulated, as in the Go programs")
flags.add_argument("--steps", type=int, default=100)
flags.add_argument("--sequences", type=int, default=16)
args = flags.parse_args()
if args.device in ("emulated", "cpu"):  # tensors of the CPU are copied to the emulated device
    sonicmoe_go.emulate()
    args.device = "cpu"

model = model_of("gpt_oss", args.device).requires_grad_(False)
for layer in model.model.layers:
    layer.mlp = sonicmoe_go.SonicMoE.from_hf(layer.mlp, weights="mxfp4", lora_rank=16, lora_alpha=32)
base = {name: p.clone() for name, p in model.named_parameters() if not p.requires_grad}
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)

for step in range(args.steps):
    tokens = batch(step, args.device)[: args.sequences]
    loss = model(tokens, labels=tokens).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0 or step == args.steps - 1:
        print(f"step {step:3d}  loss {loss.item():.4f}", flush=True)
assert all(torch.equal(p, base[name]) for name, p in model.named_parameters() if name in base), "the base has changed"
sonicmoe_go.save_adapter(model, "adapter")
