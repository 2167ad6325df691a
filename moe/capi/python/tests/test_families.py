"""Tests from_hf on the blocks of every family that the installed transformers has: a layer must be
right, or the refusal must name family, reason and a way out that exists."""

import copy
import re

import pytest
import torch
from reference import distance

import sonicmoe_go

transformers = pytest.importorskip("transformers", minversion="5")
FAMILIES = [name for name, config in sorted(transformers.CONFIG_MAPPING.items()) if re.search("num_(local_)?experts|n_routed_experts|ffn_config", str(vars(config)))]

# The values of fields of all configurations, by every name that a family has for them.
NAMES = {
    128: "hidden_size d_model", 64: "intermediate_size moe_intermediate_size expert_ffn_hidden_size ffn_hidden_size shared_intermediate_size max_position_embeddings"
    " shared_expert_intermediate_size moe_shared_expert_intermediate_size", 96: "vocab_size", 32: "head_dim v_head_dim q_lora_rank kv_lora_rank",
    16: "qk_rope_head_dim qk_nope_head_dim", 0: "pad_token_id", 1: "first_k_dense_replace num_dense_layers n_group topk_group decoder_sparse_step"
    " moe_layer_start_index moe_num_shared_experts n_shared_experts num_shared_experts", 2: "num_experts_per_tok moe_topk moe_k moe_top_k top_k_experts",
    4: "num_experts num_local_experts n_routed_experts moe_num_experts num_hidden_layers n_layers num_attention_heads n_heads num_key_value_heads",
}  # fmt: skip
VALUES = {name: value for value, names in NAMES.items() for name in names.split()} | {
    "bos_token_id": None, "eos_token_id": None, "mlp_only_layers": [], "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8},
    "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
}  # fmt: skip


def blocks_of(family, device):
    """Returns one block of each class that has experts in a small model. A family whose model needs
    more than these values is skipped."""
    try:
        c = transformers.AutoConfig.for_model(family).get_text_config()
        c = type(c)(**{name: value for name, value in VALUES.items() if hasattr(c, name)})
        c._experts_implementation = c._attn_implementation = "eager"
        kind = transformers.AutoModelForCausalLM if type(c) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING else transformers.AutoModel
        with torch.device("meta"):
            model = kind.from_config(c)
    except Exception as err:  # every family fails in a way of its own
        pytest.skip(f"{family} is not built: {err!r:.80}")
    found = {type(m): m for m in model.modules() if isinstance(getattr(m, "experts", None), torch.nn.Module)}
    if not found:
        pytest.skip(f"{type(model).__name__} has no block with experts")
    return [copy.deepcopy(m).to_empty(device=device).to(torch.bfloat16).eval() for m in found.values()]


@torch.no_grad()
def runs_registered(experts, device):
    """Reports whether registration runs experts, and right."""
    if not hasattr(experts, "has_gate"):
        return False
    x, scores = torch.randn(24, 128, device=device).bfloat16(), torch.rand(24, 2, device=device)
    ids = torch.stack([torch.randperm(4, device=device)[:2] for _ in range(24)])
    want = copy.deepcopy(experts).double()(x.double(), ids, scores.double())
    experts.config._experts_implementation = sonicmoe_go.register_with_transformers()
    try:
        return distance(experts(x, ids, scores), want) < 6e-3
    except sonicmoe_go.ArgumentError:
        return False
    finally:
        experts.config._experts_implementation = "eager"


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(device, family):
    for block in blocks_of(family, device):
        with torch.no_grad():
            for p in (*block.parameters(), *block.buffers()):
                if p.is_floating_point():
                    p.normal_(std=0.09 if p.dim() > 1 else 0.02)
        try:
            layer = sonicmoe_go.SonicMoE.from_hf(block)
        except sonicmoe_go.ArgumentError as err:
            runs = "register_with_transformers() runs the experts" in str(err)
            assert runs or "cannot run the experts of this block either, because" in str(err) or "has no router and experts" in str(err), err
            assert " keeps its " not in str(err), err
            if runs:
                assert runs_registered(block.experts, device), err
            continue
        x = torch.randn(2, 12, 128, device=device).bfloat16()
        with torch.no_grad():
            got, want = (y[0] if isinstance(y, tuple) else y for y in (layer(x), copy.deepcopy(block).double()(x.double())))
        rows = (got.double() - want.view(x.shape)).norm(dim=-1) / want.view(x.shape).norm(dim=-1)
        assert rows.median() < 6e-3, type(block).__name__  # tokens with almost equal logits may choose other experts
