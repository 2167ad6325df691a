"""Writes golden.json: results of the expert blocks of the transformers library, forward and
backward, for small layers with the settings of published models.

    pip install torch transformers numpy
    python3 internal/golden/golden.py

The file does not contain weights and inputs. Go and Python compute them by the same formula, with
values that every 16-bit type holds exactly. Blocks run in float64, except where they convert to
float32 themselves. The gradient of a matrix is stored as its product with a vector, over the last
dimension. An error in any element shows in this product.
"""

import base64
import importlib
import json
import os
import re

import numpy as np
import torch

here = os.path.dirname(os.path.abspath(__file__))
D, N, E, K, T = 128, 64, 4, 2, 4  # the smallest sizes that the kernels support

# These settings make the model of a config.json small.
SMALL = {
    "hidden_size": D, "d_model": D, "moe_intermediate_size": N, "ffn_hidden_size": N,
    "num_experts": E, "num_local_experts": E, "n_routed_experts": E, "moe_num_experts": E,
    "num_experts_per_tok": K, "num_experts_per_token": K, "experts_per_token": K, "moe_topk": K, "moe_k": K,
    "moe_top_k": K, "top_k_experts": K,
    "shared_expert_intermediate_size": 2 * N, "moe_shared_expert_intermediate_size": 2 * N,
    "num_shared_expert": 1, "num_hidden_layers": 4, "n_layers": 4, "hybrid_override_pattern": "MEME",
}

# A model of each family, with the class of its configuration and the class of its block.
BLOCKS = {
    "Mixtral 8x7B": ("mixtral", "MixtralConfig", "MixtralSparseMoeBlock"),
    "DBRX": ("dbrx", "DbrxConfig", "DbrxFFN"),
    "Phi-3.5-MoE": ("phimoe", "PhimoeConfig", "PhimoeSparseMoeBlock"),
    "MiniMax-M1": ("minimax", "MiniMaxConfig", "MiniMaxSparseMoeBlock"),
    "Llama-4 Scout": ("llama4", "Llama4TextConfig", "Llama4TextMoe"),
    "gpt-oss-20b": ("gpt_oss", "GptOssConfig", "GptOssMLP"),
    "Qwen2-57B-A14B": ("qwen2_moe", "Qwen2MoeConfig", "Qwen2MoeSparseMoeBlock"),
    "DeepSeek-V2-Lite": ("deepseek_v2", "DeepseekV2Config", "DeepseekV2Moe"),
    "DeepSeek-V2": ("deepseek_v2", "DeepseekV2Config", "DeepseekV2Moe"),
    "DeepSeek-V3": ("deepseek_v3", "DeepseekV3Config", "DeepseekV3MoE"),
    "Kimi K2": ("deepseek_v3", "DeepseekV3Config", "DeepseekV3MoE"),
    "Kimi-Linear-48B-A3B": ("kimi_linear", "KimiLinearConfig", "KimiLinearMoE"),
    "OLMoE-1B-7B": ("olmoe", "OlmoeConfig", "OlmoeSparseMoeBlock"),
    "Qwen3-30B-A3B": ("qwen3_moe", "Qwen3MoeConfig", "Qwen3MoeSparseMoeBlock"),
    "Qwen3-Next-80B-A3B": ("qwen3_next", "Qwen3NextConfig", "Qwen3NextSparseMoeBlock"),
    "Qwen3.5-397B-A17B": ("qwen3_5_moe", "Qwen3_5MoeTextConfig", "Qwen3_5MoeSparseMoeBlock"),
    "GLM-4.5": ("glm4_moe", "Glm4MoeConfig", "Glm4MoeMoE"),
    "MiniMax-M2": ("minimax_m2", "MiniMaxM2Config", "MiniMaxM2SparseMoeBlock"),
    "Granite 3.1 3B-A800M": ("granitemoe", "GraniteMoeConfig", "GraniteMoeMoE"),
    "Gemma-4 26B-A4B": ("gemma4", "Gemma4TextConfig", None),
    "Nemotron-3-Nano": ("nemotron_h", "NemotronHConfig", "NemotronHMoE"),
    "ERNIE-4.5-21B-A3B": ("ernie4_5_moe", "Ernie4_5_MoeConfig", "Ernie4_5_MoeSparseMoeBlock"),
    "Hunyuan-A13B": ("hunyuan_v1_moe", "HunYuanMoEV1Config", "HunYuanMoEV1Moe"),
}

# The names of a block's tensors here, by their names in the block.
NAMES = [
    (r"^(gate|router)(\.(wg|layer|proj))?\.weight$", "router"),
    (r"^router\.bias$", "routerBias"),
    (r"e_score_correction_bias$", "selectionBias"),
    (r"^router\.per_expert_scale$", "expertScale"),
    (r"^experts\.gate_up_proj$", "w1"), (r"^experts\.up_proj$", "w1"), (r"^experts\.down_proj$", "w2"),
    (r"^experts\.gate_up_proj_bias$", "b1"), (r"^experts\.down_proj_bias$", "b2"),
    (r"^experts\.mlp\.w1$", "w1"), (r"^experts\.mlp\.v1$", "w3"), (r"^experts\.mlp\.w2$", "w2"),
    (r"^shared_expert_gate\.weight$", "sharedGate"),
    (r"^shared_\w+\.gate_proj\.weight$", "sharedW1"), (r"^shared_\w+\.up_proj\.weight$", "sharedW3"),
    (r"^shared_\w+\.down_proj\.weight$", "sharedW2"),
]

# The seed and the largest value of each tensor.
SCALES = {
    "x": 2, "do": 2, "router": 0.5, "routerBias": 1, "selectionBias": 0.25, "expertScale": 2,
    "w1": 0.25, "w3": 0.25, "w2": 0.5, "b1": 1, "b3": 1, "b2": 1,
    "sharedW1": 0.25, "sharedW3": 0.25, "sharedW2": 0.5, "sharedGate": 0.25, "vector": 1,
}


def values(name, shape):
    """Integers from -128 to 127, drawn by SplitMix64, divided by 128 and multiplied by the scale."""
    count = int(np.prod(shape))
    with np.errstate(over="ignore"):
        z = (np.arange(count, dtype=np.uint64) + np.uint64(1 + (list(SCALES).index(name) << 32))) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    v = ((z >> np.uint64(56)).astype(np.float64) - 128) / 128 * SCALES[name]
    return torch.tensor(v.reshape(shape), dtype=torch.float64)


def small(config):
    """Returns a config.json with small sizes and all other settings unchanged."""
    out = {}
    for key, v in config.items():
        if isinstance(v, dict) and key in ("text_config", "ffn_config"):
            v = small(v)
        elif key == "intermediate_size":
            v = N
        elif key == "num_experts_per_tok" and v == 1:
            pass
        elif key in SMALL and v != 0:
            v = SMALL[key]
        elif key == "n_group" and v > 1:
            v = 2
        elif key == "topk_group" and v > 1:
            v = 1
        elif key in ("first_k_dense_replace", "moe_layer_start_index"):
            v = 1
        out[key] = v
    return out


class Gemma4(torch.nn.Module):
    """The router and the experts of Gemma-4, without the norms around them."""

    def __init__(self, module, config):
        super().__init__()
        self.router = module.Gemma4TextRouter(config)
        self.experts = module.Gemma4TextExperts(config)
        self.router.norm = torch.nn.Identity()
        d = config.hidden_size
        self.router.scale = torch.nn.Parameter(torch.full((d,), d**0.5), requires_grad=False)

    def forward(self, x):
        x = x.reshape(-1, x.shape[-1])
        _, weights, ids = self.router(x)
        return self.experts(x, ids, weights)


def make(kind, config_class, block_class, config):
    module = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    classes = importlib.import_module(f"transformers.models.{kind}.configuration_{kind}")
    config = {k: v for k, v in config.get("text_config", config).items() if k not in ("model_type",)}
    if kind == "dbrx":
        ffn = dict(config["ffn_config"], hidden_size=config["d_model"])
        ffn.pop("model_type", None)
        ffn["moe_normalize_expert_weights"] = float(ffn["moe_normalize_expert_weights"])
        config = dict(config, ffn_config=ffn)
    c = getattr(classes, config_class)(**config)
    c._experts_implementation = "eager"
    if kind == "dbrx":
        c.ffn_config._experts_implementation = "eager"
    if block_class is None:
        return Gemma4(module, c)
    if kind == "hunyuan_v1_moe":
        return module.HunYuanMoEV1Moe(c, layer_idx=1)
    return getattr(module, block_class)(c)


def tensors(block, kind):
    """Maps the names used here to the block's tensors. For each it gives a function that reads the
    tensor, and the layout of its gradient."""
    for path, p in list(block.named_parameters()) + list(block.named_buffers()):
        ours = [to for pattern, to in NAMES if re.search(pattern, path)]
        if not ours:
            assert path == "router.scale", path
            continue
        ours = ours[0]
        if kind == "nemotron_h" and ours == "sharedW3":  # without a gate there is only one matrix
            ours = "sharedW1"
        yield ours, p


def laid_out(kind, name, v):
    if kind == "dbrx" and name in ("w1", "w3", "w2"):
        v = v.reshape(E, N, D)
        if name == "w2":
            v = v.transpose(1, 2)
    return v


def encoded(v):
    return base64.b64encode(v.detach().to(torch.float32).contiguous().numpy().tobytes()).decode()


def golden(name, config, kind, config_class, block_class):
    config = small(config)
    block = make(kind, config_class, block_class, config).double().eval()
    for ours, p in tensors(block, kind):
        shape = laid_out(kind, ours, p.detach()).shape
        v = values(ours, shape)
        if kind == "dbrx" and ours == "w2":
            v = v.transpose(1, 2)
        with torch.no_grad():
            p.copy_(v.reshape(p.shape))
    seen = {}

    def hook(_, __, out):
        seen["router"] = out
        if isinstance(out, tuple) and len(out) == 3 and out[1].requires_grad:
            out[1].retain_grad()

    (block.router if hasattr(block, "router") else block.gate).register_forward_hook(hook)
    x = values("x", (1, T, D)).requires_grad_()
    out = block(x)
    o = (out[0] if isinstance(out, tuple) else out).reshape(T, D)
    (o * values("do", (T, D))).sum().backward()

    routed = seen["router"]
    if isinstance(routed, tuple) and len(routed) == 3:
        scores, ids = routed[1], routed[2]
    else:  # the router returns the scores of all logits
        logits = routed[1] if isinstance(routed, tuple) else routed
        scores, ids = None, logits.topk(config.get("text_config", config).get("num_experts_per_tok", K)).indices
    result = {"config": config, "ids": ids.flatten().tolist(), "o": encoded(o), "gradients": {"x": encoded(x.grad.reshape(T, D))}}
    if kind == "phimoe":
        result["scores"], result["gradients"]["scores"] = encoded(scores), encoded(scores.grad)
    for ours, p in tensors(block, kind):
        if p.grad is None or kind == "phimoe" and ours == "router":
            continue
        g = laid_out(kind, ours, p.grad)
        if g.dim() > 1 and ours != "sharedGate":
            g = g @ values("vector", (g.shape[-1],))
        result["gradients"][ours] = encoded(g)
    return result


def main():
    with open(os.path.join(here, "../../moe/checkpoint/published.json")) as f:
        published = {m["name"]: m["config"] for m in json.load(f)}
    import transformers

    lines = []
    for name, (kind, config_class, block_class) in BLOCKS.items():
        print(name)
        g = golden(name, published[name], kind, config_class, block_class)
        lines.append(f"{json.dumps(name)}: {json.dumps(g)}")
    with open(os.path.join(here, "golden.json"), "w") as f:
        f.write('{"version": %s, "tokens": %d, "blocks": {\n' % (json.dumps(transformers.__version__), T))
        f.write(",\n".join(lines) + "\n}}\n")


if __name__ == "__main__":
    main()
