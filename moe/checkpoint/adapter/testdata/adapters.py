"""Makes an adapter of small experts with PEFT, or reads one.

usage: adapters.py make DIR | adapters.py read DIR FILE

Both write the sums that PEFT adds to the weights: DIR/deltas.safetensors, or FILE. The experts
have the names and the order of Qwen3-MoE. make fills the factors by a seed.
"""

import sys

import peft
import torch
from safetensors.torch import save_file
from torch import nn

EXPERTS, HIDDEN, WIDTH = 3, 48, 16


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.zeros(EXPERTS, 2 * WIDTH, HIDDEN))
        self.down_proj = nn.Parameter(torch.zeros(EXPERTS, HIDDEN, WIDTH))


def model() -> nn.Module:
    """Returns a model with the experts model.layers.0.mlp.experts and those of layer 1."""
    of = nn.Module()
    of.model = nn.Module()
    of.model.layers = nn.ModuleList()
    for _ in range(2):
        layer = nn.Module()
        layer.mlp = nn.Module()
        layer.mlp.experts = Experts()
        of.model.layers.append(layer)
    return of


def deltas(adapted: nn.Module) -> dict[str, torch.Tensor]:
    found = {}
    for name, m in adapted.named_modules():
        if hasattr(m, "parameter_name"):
            layer = name.split("layers.")[1].split(".")[0]
            found[f"{layer}.{m.parameter_name}"] = m.get_delta_weight("default").detach().contiguous()
    return found


def main(what: str, dir: str, file: str = "") -> None:
    if what == "make":
        torch.manual_seed(5)
        config = peft.LoraConfig(r=4, lora_alpha=6, use_rslora=True, target_modules=[], target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])
        adapted = peft.get_peft_model(model(), config)
        for name, p in adapted.named_parameters():
            if "lora_" in name:
                p.data.normal_()
        adapted.save_pretrained(dir)
    else:
        adapted = peft.PeftModel.from_pretrained(model(), dir)
    save_file(deltas(adapted), file or f"{dir}/deltas.safetensors")


main(*sys.argv[1:])
