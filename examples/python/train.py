"""Trains a layer to give the outputs of another layer: forward, backward, AdamW.

    python train.py [--device emulated] [--steps 20]

Without a GPU the layer runs on the emulated device, slowly and exactly.
"""

import argparse

import torch

import sonicmoe_go

flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
flags.add_argument("--device", default="cuda" if torch.cuda.is_available() else "emulated", help="cuda, or emulated, as in the Go programs")
flags.add_argument("--steps", type=int, default=20)
args = flags.parse_args()
if args.device in ("emulated", "cpu"):  # tensors of the CPU are copied to the emulated device
    sonicmoe_go.emulate()
    args.device = "cpu"

torch.manual_seed(0)
sizes = {"hidden": 128, "intermediate": 64, "num_experts": 4, "top_k": 2}
teacher = sonicmoe_go.SonicMoE(**sizes, device=args.device)
layer = sonicmoe_go.SonicMoE(**sizes, device=args.device, balance=0.01)
optimizer = torch.optim.AdamW(layer.parameters(), lr=3e-3)
x = torch.randn(256, sizes["hidden"], device=args.device, dtype=torch.bfloat16)
with torch.no_grad():
    target = teacher(x).float()

for step in range(args.steps):
    loss = (layer(x).float() - target).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step:3d}  loss {loss.item():.4f}")
