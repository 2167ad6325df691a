"""SonicMoE, SonicMoE's own names, and models of transformers."""

import copy

import pytest
import torch
import torch.nn.functional as F
from reference import CONFIG, distance, experts, layer, tensors, topk, wide

import sonicmoe_go
from sonicmoe_go import sonicmoe


def test_module_trains(device):
    block = sonicmoe_go.SonicMoE(128, 64, 4, 2, device=device, balance=0.01)
    assert {n: list(p.shape) for n, p in block.named_parameters()} == {
        "gate.weight": [4, 128], "experts.gate_up_proj": [4, 128, 128], "experts.down_proj": [4, 128, 64],
    }  # fmt: skip
    x = torch.randn(2, 12, 128, device=device, dtype=torch.bfloat16)
    y = block(x)
    y.float().square().mean().backward()
    assert y.shape == x.shape and all(p.grad is not None and p.grad.any() for p in block.parameters())
    assert "hidden=128" in repr(block)


@pytest.mark.parametrize(
    "config, names",
    [
        ({"bias": True}, {"gate_up_proj": [4, 128, 128], "down_proj": [4, 128, 64], "gate_up_proj_bias": [4, 128], "down_proj_bias": [4, 128]}),
        ({"gate_up": "apart", "weight_order": "in-out"}, {"gate_proj": [4, 128, 64], "up_proj": [4, 128, 64], "down_proj": [4, 64, 128]}),
        ({"activation": "relu2"}, {"up_proj": [4, 64, 128], "down_proj": [4, 128, 64]}),
    ],
)
def test_module_of_other_kinds(device, config, names):
    block = sonicmoe_go.SonicMoE(128, 64, 4, 2, device=device, **config)
    assert {n: list(p.shape) for n, p in block.experts.named_parameters()} == names
    y = block(torch.randn(12, 128, device=device, dtype=torch.bfloat16))
    y.float().square().mean().backward()
    assert y.isfinite().all() and all(p.grad.any() for p in block.parameters())


def test_module_compiles(device):
    block = sonicmoe_go.SonicMoE(128, 64, 4, 2, device=device)
    x = torch.randn(24, 128, device=device, dtype=torch.bfloat16)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), block(x))


def test_autocast(device):
    block = sonicmoe_go.SonicMoE(128, 64, 4, 2, device=device).float()
    x = torch.randn(24, 128, device=device)
    with torch.autocast(device, torch.bfloat16):
        y = block(x)
    y.float().sum().backward()
    assert y.dtype == torch.bfloat16 and block.experts.down_proj.grad.dtype == torch.float32
    with pytest.raises(sonicmoe_go.ArgumentError, match="x is torch.float32"):
        block(x)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("how", ["constructor", "function"])
def test_sonicmoes_layer(device, how, bias):
    """SonicMoE's constructor, weight names, and shapes; the loss beside its formula."""
    args = (4, 2, 128, 64, sonicmoe.ActivationType.SWIGLU, bias, 0.1)
    block = sonicmoe.MoE(*args).to(device, torch.bfloat16)
    biases = [block.c_fc.bias, block.c_proj.bias] if bias else []
    with torch.no_grad():
        for b in biases:
            b.normal_()
    assert {n: list(p.shape) for n, p in block.named_parameters() if "bias" not in n} == {
        "router.weight": [4, 128], "c_fc.weight": [4, 128, 128], "c_proj.weight": [4, 128, 64],
    }  # fmt: skip
    x = torch.randn(2, 12, 128, device=device, dtype=torch.bfloat16, requires_grad=True)
    of = (x, block.router.weight, block.c_fc.weight, block.c_proj.weight, *biases)
    ws = wide(x.flatten(0, 1), *of[1:])
    ids = topk(ws[0], ws[1], 2)
    b1, b2 = ws[4:] if bias else (None, None)
    want, logits = layer(*ws[:4], ids, b1=b1, b2=b2, interleaved=True)
    d_o = torch.randn_like(x)
    count = torch.bincount(ids.flatten(), minlength=4)
    loss = 4 * (F.normalize(logits.softmax(-1).sum(0), p=1, dim=0) * count / count.sum()).sum()
    if how == "constructor":
        o, aux = block(x)
        assert abs(aux.item() - loss.item()) < 1e-2 * loss.item()
        (got := (o * d_o).sum() + aux).backward()
        wanted = torch.autograd.grad((want * d_o.flatten(0, 1).double().cpu()).sum() + loss, ws)
        for t, w in zip(of, wanted):
            assert distance(t.grad.reshape(w.shape), w) < 1e-2
        assert got.isfinite()
    else:
        o, l, freq = sonicmoe.moe_TC_softmax_topk_layer(
            x.flatten(0, 1), of[1], of[2].permute(1, 2, 0), block.c_fc.bias, of[3].permute(1, 2, 0), block.c_proj.bias, 2, 0,
            "swiglu", True,
        )
        assert freq.tolist() == count.tolist() and not o.requires_grad and distance(l, logits) < 6e-3
    assert distance(o.reshape(want.shape), want) < 6e-3


def test_sonicmoes_wrong_calls(device):
    block = sonicmoe.MoE(4, 2, 128, 64, sonicmoe.ActivationType.SWIGLU, False, 0.1).to(device, torch.bfloat16)
    x = torch.randn(4, 128, device=device, dtype=torch.bfloat16)
    with pytest.raises(sonicmoe_go.ArgumentError, match="kernel_backend_moe"):
        block(x, sonicmoe.KernelBackendMoE.torch)
    w1, w2 = block.c_fc.weight.permute(1, 2, 0), block.c_proj.weight.permute(1, 2, 0)
    with pytest.raises(sonicmoe_go.ArgumentError, match="b1 and b2"):
        sonicmoe.moe_TC_softmax_topk_layer(x, block.router.weight, w1, torch.zeros(4, 128), w2, None, 2, 0)
    i = torch.zeros(4, dtype=torch.int32, device=device)
    with pytest.raises(sonicmoe_go.ArgumentError, match="token_indices is \\[3\\], must be \\[4\\]"):
        sonicmoe.moe_general_routing_inputs(x, i.float(), i[1:], i, w1, None, w2, None, 4, 0, sonicmoe.ActivationType.SWIGLU)


def test_general_routing(device):
    """Any number of experts a token, none among them, with gradients of scores."""
    x, _, w1, w2 = tensors(device)
    counts = torch.tensor([0, 1, 3, 4, 2, 0] * 4)
    token = torch.repeat_interleave(torch.arange(24), counts).int()[torch.randperm(int(counts.sum()))]
    expert = torch.randint(0, 4, token.shape).int()
    scores = torch.rand(len(token), requires_grad=True, device=device)
    o, freq = sonicmoe.moe_general_routing_inputs(
        x, scores, token.to(device), expert.to(device), w1.permute(1, 2, 0), None, w2.permute(1, 2, 0), None, 4, 0,
        sonicmoe.ActivationType.SWIGLU,
    )  # fmt: skip
    assert freq.tolist() == torch.bincount(expert, minlength=4).tolist()
    ws = wide(x, scores, w1, w2)
    # Row by row: every pair is a token of its own with one expert.
    rows = experts(ws[0][token.long()], ws[1][:, None], expert[:, None], *ws[2:], interleaved=True)
    want = torch.zeros(24, 128, dtype=torch.double).index_add(0, token.long(), rows)
    d_o = torch.randn_like(x)
    got = torch.autograd.grad((o * d_o).sum(), (x, scores, w1, w2))
    assert distance(o, want) < 6e-3
    for g, w in zip(got, torch.autograd.grad((want * d_o.double().cpu()).sum(), ws)):
        assert distance(g, w) < 1e-2
    none = torch.zeros(0, dtype=torch.int32, device=device)
    o, freq = sonicmoe.moe_general_routing_inputs(
        x, none.float(), none, none, w1.permute(1, 2, 0), None, w2.permute(1, 2, 0), None, 4, 0, "swiglu", True
    )
    assert not o.any() and not freq.any()


FAMILIES = {
    "mixtral": {"intermediate_size": 64, "num_local_experts": 4},
    "qwen3_moe": {"intermediate_size": 256, "moe_intermediate_size": 64, "num_experts": 4, "norm_topk_prob": True, "head_dim": 32},
    "olmoe": {"intermediate_size": 64, "num_experts": 4},
    "glm4_moe": {
        "intermediate_size": 256, "moe_intermediate_size": 64, "n_routed_experts": 4, "head_dim": 32, "first_k_dense_replace": 1,
        "n_group": 1, "topk_group": 1,
    },
    "deepseek_v3": {
        "intermediate_size": 256, "moe_intermediate_size": 64, "n_routed_experts": 4, "first_k_dense_replace": 1, "n_group": 2,
        "topk_group": 1, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 32,
    },
}  # fmt: skip


def model_of(family, device):
    transformers = pytest.importorskip("transformers", minversion="5")
    common = {
        "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 96,
        "num_experts_per_tok": 2, "max_position_embeddings": 64, "pad_token_id": 0, "initializer_range": 0.08,
    }  # fmt: skip
    config = transformers.AutoConfig.for_model(family, **(common | FAMILIES[family]))
    return transformers.AutoModelForCausalLM.from_config(config).to(device, torch.bfloat16)


def switch(model, name):
    model.set_experts_implementation(name)
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_models_of_transformers(device, family):
    """Logits as near to float64 as eager bf16 is, and gradients of the loss beside eager's.

    Tokens whose experts are almost level go one way here and another there: the median
    of tokens tells, and the bound on gradients leaves room for a few.
    """
    name = sonicmoe_go.register_with_transformers()
    model = model_of(family, device)
    tokens = torch.randint(1, 96, (2, 12), device=device)
    truth = switch(copy.deepcopy(model).double(), "eager")(tokens).logits.detach().cpu()
    off, grads = {}, {}
    for which in ("eager", name):
        switch(model, which).zero_grad()
        out = model(tokens, labels=tokens)
        off[which] = ((out.logits.detach().double().cpu() - truth).norm(dim=-1) / truth.norm(dim=-1)).median().item()
        out.loss.backward()
        grads[which] = {n: p.grad.double() for n, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert off[name] < 1.1 * off["eager"] + 1e-3, off
    assert grads[name].keys() == grads["eager"].keys()
    total = sum((grads[name][n] - g).square().sum() for n, g in grads["eager"].items())
    assert (total / sum(g.square().sum() for g in grads["eager"].values())).sqrt() < 0.2


def test_from_hf_shares_parameters(device):
    model = model_of("qwen3_moe", device)
    block = model.model.layers[0].mlp
    ours = sonicmoe_go.SonicMoE.from_hf(block)
    assert ours.experts.gate_up_proj is block.experts.gate_up_proj and ours.gate.weight is block.gate.weight
    x = torch.randn(2, 12, 128, device=device, dtype=torch.bfloat16)
    truth = switch(model.double(), "eager").model.layers[0].mlp(x.double()).detach().cpu()
    ours.bfloat16()
    assert distance(ours(x), truth) < 6e-3


@pytest.mark.parametrize("family, words", [("glm4_moe", "Glm4MoeTopkRouter, must have one of"), ("deepseek_v3", "must have one of")])
def test_from_hf_says_what_it_can_not(device, family, words):
    with pytest.raises(sonicmoe_go.ArgumentError, match=words):
        sonicmoe_go.SonicMoE.from_hf(model_of(family, device).model.layers[1].mlp)
    with pytest.raises(sonicmoe_go.ArgumentError, match="Linear has no gate.weight"):
        sonicmoe_go.SonicMoE.from_hf(torch.nn.Linear(2, 2))
