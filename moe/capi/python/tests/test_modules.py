"""Tests of the module SonicMoE, of the names of SonicMoE's own package, and of models of
transformers."""

import contextlib
import copy
import enum
import inspect
import json
import pickle
import types
import warnings

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
    """Checks names and shapes of the weights, and compares the loss with its formula."""
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


# The arguments of SonicMoE's constructor, in its order.
ARGUMENTS = ("num_experts", "num_experts_per_tok", "hidden_size", "intermediate_size", "activation_function", "add_bias", "std")
GATED = {"swiglu": F.silu, "geglu": F.gelu, "reglu": F.relu}
PLAIN = {"relu_sq": lambda x: F.relu(x).square(), "relu": F.relu, "gelu": F.gelu, "silu": F.silu}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", [*GATED, *PLAIN])
def test_sonicmoes_constructor(device, kind, bias):
    """Compares layers of every kind and size that the constructor accepts with float64, and checks
    names and shapes of the state. Arguments are given by keyword."""
    values = (5, 3, 192, 64, sonicmoe.ActivationType(kind), bias, 0.07)
    assert tuple(inspect.signature(sonicmoe.MoE).parameters) == ARGUMENTS
    block = sonicmoe.MoE(**dict(zip(ARGUMENTS, values))).to(device, torch.bfloat16)
    rows = 128 if kind in GATED else 64
    assert sonicmoe.MoE(*values[:4], kind, *values[5:]).c_fc.weight.shape == block.c_fc.weight.shape
    names = {"router.weight": [5, 192], "c_fc.weight": [5, rows, 192], "c_proj.weight": [5, 192, 64]}
    names |= {"c_fc.bias": [5, rows], "c_proj.bias": [5, 192]} if bias else {}
    assert {n: list(t.shape) for n, t in block.state_dict().items()} == names
    assert abs(block.c_fc.weight.float().std().item() / 0.07 - 1) < 0.05
    with torch.no_grad():
        for n, p in block.named_parameters():
            p.normal_(std=0.09) if "bias" not in n else p.normal_()
    x = torch.randn(3, 7, 192, device=device, dtype=torch.bfloat16)
    got, loss = block(x)
    assert got.shape == x.shape and loss.shape == () and loss.isfinite()
    alone, again = block(x, is_inference_mode=True)
    assert torch.equal(alone, got) and torch.equal(again, loss) and not again.requires_grad
    biases = [block.c_fc.bias, block.c_proj.bias] if bias else []
    x, router, w1, w2, *b = wide(x.flatten(0, 1), block.router.weight, block.c_fc.weight, block.c_proj.weight, *biases)
    ids = topk(x, router, 3)
    scores = torch.softmax((x @ router.T).gather(1, ids), dim=-1)
    want = torch.zeros_like(x)
    for e in range(5):
        token, slot = torch.where(ids == e)
        h = x[token] @ w1[e].T + (b[0][e] if bias else 0)
        a = GATED[kind](h[:, ::2]) * h[:, 1::2] if kind in GATED else PLAIN[kind](h)
        want = want.index_add(0, token, scores[token, slot, None] * (a @ w2[e].T + (b[1][e] if bias else 0)))
    assert distance(got.flatten(0, 1), want) < 6e-3


@pytest.mark.parametrize("kind", ["gelu", "geglu"])
def test_gelu_is_exact(device, kind):
    """At -3 the approximation of GELU by a hyperbolic tangent is a tenth off."""
    block = sonicmoe.MoE(4, 2, 128, 64, kind, True, 0.1).to(device, torch.bfloat16)
    with torch.no_grad():
        block.c_fc.weight.zero_()
        block.c_fc.bias.fill_(-3)
        if kind == "geglu":
            block.c_fc.bias[:, 1::2] = 1
        block.c_proj.bias.zero_()
    x = torch.randn(9, 128, device=device, dtype=torch.bfloat16)
    x, router, w2 = wide(x, block.router.weight, block.c_proj.weight)
    ids = topk(x, router, 2)
    scores = torch.softmax((x @ router.T).gather(1, ids), dim=-1)
    want = F.gelu(torch.tensor(-3.0).double()) * (scores[..., None] * w2.sum(-1)[ids]).sum(1)
    got, _ = block(x.to(device, torch.bfloat16))
    assert distance(got, want) < 6e-3


@pytest.mark.parametrize("bias", [False, True])
def test_sonicmoes_layer_compiles(device, bias):
    block = sonicmoe.MoE(4, 2, 128, 64, "swiglu", bias, 0.1).to(device, torch.bfloat16)
    x = torch.randn(24, 128, device=device, dtype=torch.bfloat16, requires_grad=True)
    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    passes = [torch.autograd.grad(y.float().sum() + aux, (x, *block.parameters())) + (y, aux) for y, aux in (compiled(x), block(x))]
    for got, want in zip(*passes):
        assert distance(got, want.double().cpu()) < 1e-6


def test_sonicmoes_own_enums(device):
    """Programs may still use the enums of SonicMoE's own package, which have the same values."""
    kind, backend = enum.Enum("ActivationType", {"RELU": "relu"}).RELU, enum.Enum("KernelBackendMoE", {"sonicmoe": "sonicmoe"}).sonicmoe
    block = sonicmoe.MoE(4, 2, 128, 64, kind, False, 0.1).to(device, torch.bfloat16)
    x = torch.randn(4, 128, device=device, dtype=torch.bfloat16)
    assert block.activation_function is sonicmoe.ActivationType.RELU
    assert torch.equal(block(x, backend)[0], block(x)[0])


def test_sonicmoes_wrong_calls(device):
    block = sonicmoe.MoE(4, 2, 128, 64, sonicmoe.ActivationType.SWIGLU, False, 0.1).to(device, torch.bfloat16)
    x = torch.randn(4, 128, device=device, dtype=torch.bfloat16)
    with pytest.raises(sonicmoe_go.ArgumentError, match="kernel_backend_moe"):
        block(x, sonicmoe.KernelBackendMoE.scattermoe)
    w1, w2 = block.c_fc.weight.permute(1, 2, 0), block.c_proj.weight.permute(1, 2, 0)
    with pytest.raises(sonicmoe_go.ArgumentError, match="b1 and b2"):
        sonicmoe.moe_TC_softmax_topk_layer(x, block.router.weight, w1, torch.zeros(4, 128), w2, None, 2, 0)
    i = torch.zeros(4, dtype=torch.int32, device=device)
    with pytest.raises(sonicmoe_go.ArgumentError, match="token_indices is \\[3\\], must be \\[4\\]"):
        sonicmoe.moe_general_routing_inputs(x, i.float(), i[1:], i, w1, None, w2, None, 4, 0, sonicmoe.ActivationType.SWIGLU)


def test_general_routing(device):
    """Tests tokens with any number of experts, including none, and the gradients of the scores."""
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
    # Each pair becomes one row: a token that has only one expert.
    rows = experts(ws[0][token.long()], ws[1][:, None], expert[:, None], *ws[2:], interleaved=True)
    want = torch.zeros(24, 128, dtype=torch.double).index_add(0, token.long(), rows)
    d_o = torch.randn_like(x)
    got = torch.autograd.grad((o * d_o).sum(), (x, scores, w1, w2))
    assert distance(o, want) < 6e-3
    for g, w in zip(got, torch.autograd.grad((want * d_o.double().cpu()).sum(), ws)):
        assert distance(g, w) < 1e-2
    *_, outside = sonicmoe.moe_general_routing_inputs(
        x, scores[:5], token[:5].to(device), torch.tensor([3, -1, 4, 0, 3], device=device), w1.permute(1, 2, 0), None, w2.permute(1, 2, 0), None, 4, 0, "swiglu"
    )
    assert outside.tolist() == [1, 0, 0, 2]
    none = torch.zeros(0, dtype=torch.int32, device=device)
    o, freq = sonicmoe.moe_general_routing_inputs(
        x, none.float(), none, none, w1.permute(1, 2, 0), None, w2.permute(1, 2, 0), None, 4, 0, "swiglu", True
    )
    assert not o.any() and not freq.any()


FAMILIES = {
    "mixtral": {"intermediate_size": 64, "num_local_experts": 4},
    "qwen3_moe": {"intermediate_size": 256, "moe_intermediate_size": 64, "num_experts": 4, "norm_topk_prob": True, "head_dim": 32},
    "olmoe": {"intermediate_size": 64, "num_experts": 4},
    "gpt_oss": {"intermediate_size": 64, "num_local_experts": 4, "head_dim": 32},
    "glm4_moe": {
        "intermediate_size": 256, "moe_intermediate_size": 64, "n_routed_experts": 4, "head_dim": 32, "first_k_dense_replace": 1,
        "n_group": 1, "topk_group": 1,
    },
    "phimoe": {"intermediate_size": 64, "num_local_experts": 4},
    "deepseek_v3": {
        "intermediate_size": 256, "moe_intermediate_size": 64, "n_routed_experts": 4, "first_k_dense_replace": 1, "n_group": 2,
        "topk_group": 1, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 32,
    },
}  # fmt: skip


def model_of(family, device, families=FAMILIES):
    # Older versions refuse the layers_block_type of GraniteMoeHybrid.
    transformers = pytest.importorskip("transformers", minversion="5.23" if family == "granitemoehybrid" else "5")
    if family not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {family}")
    common = {
        "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 96,
        "num_experts_per_tok": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None, "initializer_range": 0.08,
    }  # fmt: skip
    config = transformers.AutoConfig.for_model(family, **(common | families[family]))
    model = transformers.AutoModelForCausalLM.from_config(config).to(device, torch.bfloat16)
    return model.eval()  # the router of Phi-3.5 draws random numbers in training


def switch(model, name):
    model.set_experts_implementation(name)
    return model


def experts_of(model):
    return [m for n, m in model.named_modules() if n.endswith(".experts") and hasattr(m, "down_proj")]


@contextlib.contextmanager
def routed_as(model, routing):
    """Makes the experts of a model use the routing of another run, a list of ids and scores.
    Otherwise the results of two runs could not be compared, because tokens with almost equal logits
    may choose other experts. If the list is empty, the model's own routing is appended to it."""
    rest = iter(list(routing))

    def hook(_, args):
        x, own_ids, own = args
        if (given := next(rest, None)) is None:
            routing.append((own_ids, own.detach()))
            return args
        ids, scores = given[0], given[1].to(own.dtype)
        same = (own_ids == ids).all(-1, keepdim=True) & ((own - scores).abs() < 0.1).all(-1, keepdim=True)
        return x, ids, torch.where(same, own, scores)

    hooks = [m.register_forward_pre_hook(hook) for m in experts_of(model)]
    yield
    for h in hooks:
        h.remove()
    assert len(routing) == len(hooks) > 2


@pytest.mark.parametrize("family", FAMILIES)
def test_models_of_transformers(device, family):
    """Logits must be about as near to float64 as eager's logits in bf16, and so must the gradients
    of the loss."""
    name = sonicmoe_go.register_with_transformers()
    model = model_of(family, device)
    tokens, routing = torch.randint(1, 96, (2, 12), device=device), []
    off, grads = {}, {}
    for which in ("eager", name):
        switch(model, which).zero_grad()
        with routed_as(model, routing):
            out = model(tokens, labels=tokens)
            out.loss.backward()
        off[which] = out.logits.detach().double().cpu()
        grads[which] = {n: p.grad.double() for n, p in model.named_parameters() if p.grad is not None}
    wide = switch(copy.deepcopy(model).double(), "eager")
    with routed_as(wide, routing):
        truth = wide(tokens).logits.detach().cpu()
    off = {which: distance(got, truth) for which, got in off.items()}
    assert off[name] < 1.1 * off["eager"] + 1e-3, off
    assert grads[name].keys() == grads["eager"].keys()
    total = sum((grads[name][n] - g).square().sum() for n, g in grads["eager"].items())
    far = (total / sum(g.square().sum() for g in grads["eager"].values())).sqrt()
    assert far < 0.1


# Blocks of transformers that SonicMoE can replace: sigmoids, groups, shared experts with and without
# a gate, a router's bias, weights in the other order, and interleaved gate and up.
BLOCKS = FAMILIES | {
    "qwen2_moe": {"moe_intermediate_size": 64, "num_experts": 4, "shared_expert_intermediate_size": 128},
    "qwen3_next": {"moe_intermediate_size": 64, "num_experts": 4, "shared_expert_intermediate_size": 128},
    "minimax": {"intermediate_size": 64, "num_local_experts": 4, "head_dim": 32},
    "granitemoe": {"intermediate_size": 64, "num_local_experts": 4},
    "deepseek_v2": FAMILIES["deepseek_v3"],
    "llama4_text": {"intermediate_size": 64, "num_local_experts": 4},
    "minimax_m2": {"intermediate_size": 64, "num_local_experts": 4, "head_dim": 32},
    "ernie4_5_moe": {"intermediate_size": 256, "moe_intermediate_size": 64, "moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 2},
    "lfm2_moe": {"intermediate_size": 256, "moe_intermediate_size": 64, "num_experts": 4, "num_dense_layers": 1, "layer_types": ["full_attention"] * 4},
    "hunyuan_v1_moe": {"intermediate_size": 64, "num_experts": 4, "moe_topk": 2, "head_dim": 32},
    "granitemoehybrid": {
        "intermediate_size": 64, "num_local_experts": 4, "shared_intermediate_size": 128, "layers_block_type": ["attention"] * 4,
        "mamba_n_heads": 4, "mamba_d_head": 64,
    },
    "dbrx": {
        "d_model": 128, "n_heads": 4, "n_layers": 2, "max_seq_len": 64,
        "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
        "attn_config": {"kv_n_heads": 4, "rope_theta": 1e4, "clip_qkv": 8},
    },
    "afmoe": {"intermediate_size": 256, "moe_intermediate_size": 64, "num_experts": 4, "num_shared_experts": 1, "head_dim": 32, "num_dense_layers": 1},
    "minimax_m3_vl_text": {
        "intermediate_size": 64, "dense_intermediate_size": 256, "shared_intermediate_size": 64, "num_local_experts": 4, "head_dim": 32,
    },
}  # fmt: skip


@pytest.mark.parametrize("act", ["gelu", "gelu_new", "gelu_pytorch_tanh"])
def test_gelus_from_hf(device, act):
    """Compares layers at -3, where the two kinds of GELU differ by a tenth."""
    block = block_of("mixtral", device, {"mixtral": FAMILIES["mixtral"] | {"hidden_act": act}})
    with torch.no_grad():
        block.experts.gate_up_proj[:, :64] = -3 / 128
        block.experts.gate_up_proj[:, 64:] = 1 / 128
    x = torch.ones(1, 5, 128, device=device, dtype=torch.bfloat16)
    truth = copy.deepcopy(block).double()
    truth.experts.config._experts_implementation = "eager"
    block.experts.config._experts_implementation = sonicmoe_go.register_with_transformers()
    with torch.no_grad():
        want = truth(x.double())
        assert distance(sonicmoe_go.SonicMoE.from_hf(block)(x), want) < 2e-2
        assert distance(block(x), want) < 2e-2


def block_of(family, device, families=BLOCKS):
    """Returns the last MoE block of a small model, with weights and buffers that are scaled so that
    outputs are of order 1."""
    blocks = [m for m in model_of(family, device, families).modules() if isinstance(getattr(m, "experts", None), torch.nn.Module)]
    with torch.no_grad():
        for p in blocks[-1].parameters():
            p.normal_(std=0.09)
        for b in blocks[-1].buffers():
            b.uniform_(0, 0.3)
    return blocks[-1]


@pytest.mark.parametrize(
    "family", ["mixtral", "qwen3_moe", "olmoe", "glm4_moe", "deepseek_v3", "gpt_oss", "qwen2_moe", "qwen3_next", "minimax", "granitemoe", "deepseek_v2", "llama4_text", "minimax_m2", "ernie4_5_moe", "lfm2_moe", "hunyuan_v1_moe", "granitemoehybrid",
     "dbrx", "afmoe", "minimax_m3_vl_text"]
)  # fmt: skip
def test_from_hf(device, family):
    """Compares a block and its gradients with the eager block in float64. The test uses the median
    over the tokens, because tokens with almost equal logits may choose other experts."""
    block = block_of(family, device)
    truth = copy.deepcopy(block).double()
    if hasattr(truth.experts, "config"):  # Llama-4's experts have no configuration of their own
        truth.experts.config._experts_implementation = "eager"
    ours = sonicmoe_go.SonicMoE.from_hf(block)
    assert getattr(ours.experts, "down_proj", None) is getattr(block.experts, "down_proj", None)
    x = torch.randn(2, 12, 128, device=device, dtype=torch.bfloat16, requires_grad=True)
    wide_x = x.detach().double().requires_grad_()
    want = truth(wide_x)
    want = (want[0] if isinstance(want, tuple) else want).view(x.shape)
    got = ours(x)
    got = got[0] if isinstance(got, tuple) else got
    d_o = torch.randn_like(x)
    got.backward(d_o)
    want.backward(d_o.double())

    def median(a, b):
        return ((a.double() - b).norm(dim=-1) / b.norm(dim=-1)).median().item()

    assert median(got.detach(), want.detach()) < 6e-3
    assert median(x.grad, wide_x.grad) < 1.5e-2
    ours_of = {id(p) for p in ours.parameters()}
    for (name, p), q in zip(block.named_parameters(), truth.parameters()):
        assert id(p) in ours_of, name
        if not q.requires_grad:  # the selection bias of ERNIE-4.5
            continue
        assert p.grad is not None, name
        got, want = (g.double().view(-1, g.shape[-1]) for g in (p.grad, q.grad))
        rows = (got - want).norm(dim=-1) / want.norm(dim=-1).clamp(min=1e-9)
        assert rows.median() < 0.1, (name, rows.median())


@pytest.mark.parametrize("family", ["gpt_oss", "granitemoe", "llama4_text", "minimax_m2", "qwen2_moe", "dbrx", "minimax_m3_vl_text"])
def test_from_hf_in_a_model(device, family):
    """A layer that replaces a block in a model must return what the model unpacks. gpt-oss and
    Llama-4 expect a pair, but a batch of two sequences must not be taken for a pair. The state must
    keep its names."""
    model = model_of(family, device, BLOCKS)
    ours, text = copy.deepcopy(model), torch.randint(1, 96, (2, 12), device=device)
    for parent in list(ours.modules()):
        for name, block in list(parent.named_children()):
            if isinstance(getattr(block, "experts", None), torch.nn.Module):
                setattr(parent, name, made := sonicmoe_go.SonicMoE.from_hf(block))
                assert made.training == block.training
    assert ours.state_dict().keys() == model.state_dict().keys()
    for grad in (True, False, False):
        with torch.set_grad_enabled(grad):
            got, want = ours(text).logits, model(text).logits
            assert ((got - want).norm(dim=-1) / want.norm(dim=-1)).median() < 0.03
    ours.load_state_dict(model.state_dict())
    assert torch.equal(pickle.loads(pickle.dumps(made))(torch.ones(2, 2, 128, device=device).bfloat16())[0], made(torch.ones(2, 2, 128, device=device).bfloat16())[0])


@pytest.mark.parametrize(
    "family, change, words",
    [
        ("qwen3_moe", lambda block: setattr(block.gate, "top_k", 1), "Qwen3MoeTopKRouter has top_k 1, must be 2"),
        ("qwen3_moe", lambda block: setattr(block.experts.config, "num_experts_per_tok", 1), "has top_k 2, must be 1"),
        ("qwen3_moe", lambda block: setattr(block.gate, "norm_topk_prob", False), "has norm_topk_prob False, must be True"),
        ("deepseek_v3", lambda block: setattr(block.gate, "routed_scaling_factor", 1.0), "has routed_scaling_factor 1.0, must be 2.5"),
        ("deepseek_v3", lambda block: setattr(block.gate, "num_group", 1), "has num_group 1, must be 2"),
        ("gpt_oss", lambda block: setattr(block.experts, "limit", 5.0), "GptOssExperts has limit 5.0, must be 7.0"),
    ],
)
def test_from_hf_of_a_changed_block(device, family, change, words):
    """A block whose attributes disagree with its configuration must be refused."""
    change(block := block_of(family, device))
    with pytest.raises(sonicmoe_go.ArgumentError, match=words):
        sonicmoe_go.SonicMoE.from_hf(block)


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])
def test_experts_of_transformers_compile(device, family):
    """The router and the experts must compile into one graph, with gradients."""
    block = block_of(family, device)
    block.experts.config._experts_implementation = sonicmoe_go.register_with_transformers()
    x = torch.randn(2, 12, 128, device=device, dtype=torch.bfloat16, requires_grad=True)
    torch._dynamo.reset()
    got, want = (y[0] if isinstance(y, tuple) else y for y in (torch.compile(block, fullgraph=True, backend="aot_eager")(x), block(x)))
    assert torch.equal(got, want)
    assert all(map(torch.equal, *(torch.autograd.grad(y.float().sum(), (x, block.experts.down_proj)) for y in (got, want))))


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])
def test_experts_of_a_part_of_the_ranks(device, family):
    """In transformers' expert-parallel plan a rank has a part of the experts, and gets their number
    as the id of every other expert. The parts of the output add up, and each expert has the same
    gradients as in one process."""
    experts = block_of(family, device).experts
    experts.config._experts_implementation = sonicmoe_go.register_with_transformers()
    x, scores = torch.randn(24, 128, device=device, dtype=torch.bfloat16), torch.rand(24, 2, device=device)
    ids = torch.stack([torch.randperm(4, device=device)[:2] for _ in range(24)])
    want = experts(x, ids, scores)
    want.float().sum().backward()
    got = torch.zeros_like(want, dtype=torch.float32)
    for first in (0, 2):
        part, mine = copy.deepcopy(experts), (ids >= first) & (ids < first + 2)
        part.num_experts = 2
        for name, p in experts.named_parameters():
            setattr(part, name, torch.nn.Parameter(p.detach()[first : first + 2].clone()))
        assert mine.any(1).logical_not().any()  # some tokens have no expert here
        o = part(x, torch.where(mine, ids - first, 2), scores)
        o.float().sum().backward()
        got += o.detach().float()
        for name, p in experts.named_parameters():
            assert torch.equal(getattr(part, name).grad, p.grad[first : first + 2]), name
    assert (got - want.float()).abs().max() < 0.02 * want.float().abs().max()


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])
def test_experts_of_transformers_under_autocast(device, family):
    """Weights are FP32, as in training, and must get gradients."""
    experts = block_of(family, device).experts.float()
    experts.config._experts_implementation = sonicmoe_go.register_with_transformers()
    x, ids = torch.randn(24, 128, device=device), torch.randint(0, 4, (24, 2), device=device)
    with torch.autocast(device, torch.bfloat16):
        got = experts(x, ids, scores := torch.rand(24, 2, device=device))
    got.sum().backward()
    grads = {n: p.grad for n, p in experts.named_parameters()}
    want = copy.deepcopy(experts).bfloat16()(x.bfloat16(), ids, scores)
    assert got.dtype == torch.float32 and torch.equal(got, want.float())
    assert all(g.dtype == torch.float32 and g.any() for g in grads.values())
    with pytest.raises(sonicmoe_go.ArgumentError, match="weights are torch.float32"):
        experts(x, ids, scores)


SIZES = {
    "hidden_size": 128, "intermediate_size": 64, "moe_intermediate_size": 64, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 4,
    "swiglu_limit": 0.5, "swiglu_alpha": 1.702, "hidden_act": "silu", "mlp_gate_softcap": 5.0, "mlp_up_softcap": 5.0,
}  # fmt: skip


@pytest.mark.parametrize(
    "family, kind",
    [
        ("beam", "BeamExperts"), ("deepseek_v4", "DeepseekV4Experts"), ("glm5_next", "Glm5NextTextExperts"), ("hy_v4", "HYV4Experts"),
        ("minimax_m3_vl", "MiniMaxM3VLExperts"), ("openai_privacy_filter", "OpenAIPrivacyFilterExperts"), ("inkling2", "Inkling2Experts"),
    ],
)  # fmt: skip
def test_experts_with_a_gate_of_their_own(device, family, kind):
    """Experts whose gate no kernel computes must be refused. All others must agree with eager in
    float64, with a limit that clamps every second value."""
    module = pytest.importorskip(f"transformers.models.{family}.modeling_{family}", exc_type=ImportError)
    name = sonicmoe_go.register_with_transformers()
    experts = getattr(module, kind)(config := types.SimpleNamespace(**SIZES, _experts_implementation="eager")).to(device, torch.bfloat16)
    with torch.no_grad():
        for p in experts.parameters():
            p.normal_(std=0.09)
    x, ids = torch.randn(24, 128, device=device, dtype=torch.bfloat16), torch.stack([torch.randperm(4, device=device)[:2] for _ in range(24)])
    scores, results = torch.rand(24, 2, device=device), {}
    wide = copy.deepcopy(experts).double()
    for which, e, x in (("eager", wide, x.double()), (name, experts, x)):
        config._experts_implementation = e.config._experts_implementation = which
        x.requires_grad_()
        if kind == "Inkling2Experts" and which == name:
            with pytest.raises(sonicmoe_go.ArgumentError, match="Inkling2Experts has a gate of its own, must have that of most models or of BeamExperts, "):
                e(x, ids, scores)
            return
        o = e(x, ids, scores.to(x.dtype) if which == "eager" else scores)
        o.sum().backward()
        results[which] = o.detach(), x.grad, *(p.grad for p in e.parameters())
    assert distance(results[name][0], results["eager"][0]) < 6e-3
    for got, want in zip(results[name][1:], results["eager"][1:]):
        # The median of the rows, because a value next to the limit may be clamped in one format alone.
        rows = (got.double() - want).norm(dim=-1) / want.norm(dim=-1).clamp(min=1e-9)
        assert rows.median() < 1e-2


def test_a_limit_of_zero_is_refused(device):
    """Eager experts with this limit have outputs of 0, but for the library it means no limit."""
    experts = block_of("gpt_oss", device).experts
    experts.config._experts_implementation, experts.limit = sonicmoe_go.register_with_transformers(), 0.0
    with pytest.raises(sonicmoe_go.ArgumentError, match="GptOssExperts has limit 0.0, must be above 0"):
        experts(torch.randn(2, 128, device=device).bfloat16(), torch.tensor([[0, 1]] * 2, device=device), torch.rand(2, 2, device=device))


def test_from_hf_says_what_it_can_not(device):
    """A refusal must name the block, its family, the reason, and a way out that exists."""

    def refused(block, words):
        with pytest.raises(sonicmoe_go.ArgumentError, match=words):
            sonicmoe_go.SonicMoE.from_hf(block.to(torch.bfloat16))

    refused(block_of("phimoe", device), "PhimoeSparseMoeBlock of phimoe has no Config: .*SparseMixer, .* register_with_transformers\\(\\) runs the experts of this block with")
    transformers = pytest.importorskip("transformers")
    module = pytest.importorskip("transformers.models.switch_transformers.modeling_switch_transformers")
    block = module.SwitchTransformersSparseMLP(transformers.SwitchTransformersConfig(d_model=64, d_ff=64, num_experts=4))
    refused(block, "SwitchTransformersSparseMLP of switch_transformers has no Config: .* drop tokens beyond a capacity; .* because they never ask for an experts_implementation: leave")
    module = pytest.importorskip("transformers.models.nllb_moe.modeling_nllb_moe")
    block = module.NllbMoeSparseMLP(transformers.NllbMoeConfig(d_model=64, num_experts=4), 64)
    refused(block, "NllbMoeSparseMLP of nllb_moe has no Config: .* drop tokens beyond a capacity, .*: leave the block as it is")
    module = pytest.importorskip("transformers.models.inkling2.modeling_inkling2", exc_type=ImportError)
    block = module.Inkling2SparseMoeBlock(transformers.Inkling2TextConfig(**{n: v for n, v in SIZES.items() if not n.startswith("swiglu")}))
    refused(block, "of inkling2.* has soft caps; register_with_transformers\\(\\) cannot run .* because Inkling2Experts has a gate of its own, .*: leave the block as it is")


def test_from_hf_of_quantised_experts(device):
    block = block_of("qwen3_moe", device)
    block.experts.config.quantization_config = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    sonicmoe_go.SonicMoE.from_hf(block)  # the weights were dequantised when they were loaded
    for p in block.experts.parameters():
        p.data = p.data.to(torch.float8_e4m3fn)
    with pytest.raises(sonicmoe_go.ArgumentError, match="of qwen3_moe has quantised weights in fp8, torch.float8_e4m3fn, .*dequantize=True"):
        sonicmoe_go.SonicMoE.from_hf(block)


def test_a_quantised_model_is_spoken_of(device):
    config = FAMILIES["mixtral"] | {"model_type": "mixtral", "hidden_size": 128, "num_experts_per_tok": 2, "num_hidden_layers": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = sonicmoe_go.Config.of_model(json.dumps(config))
    with pytest.warns(UserWarning, match="weights quantised by awq"):
        assert sonicmoe_go.Config.of_model(json.dumps(config | {"quantization_config": {"quant_method": "awq", "bits": 4}})) == plain


@pytest.mark.parametrize(
    "sizes, words",
    [
        ((65, 64, 4, 2), "Config.hidden is 65, must be a multiple of 16"),
        ((64, 8, 4, 2), "Config.intermediate is 8, must be a multiple of 16"),
        ((64, 64, 0, 2), "Config.num_experts is 0"),
        ((64, 64, 8, 9), "Config.top_k is 9, must be 1 to 8"),
    ],
)
def test_wrong_sizes_are_refused_when_a_layer_is_made(sizes, words):
    with pytest.raises(sonicmoe_go.ArgumentError, match=words):
        sonicmoe_go.SonicMoE(*sizes)


def test_a_layer_of_packed_weights(device):
    layer = sonicmoe_go.SonicMoE(128, 64, 4, 2, weights="mxfp4", device=device)
    assert {n: list(p.shape) for n, p in layer.experts.named_parameters()} == {
        "gate_up_proj": [4, 128, 64], "down_proj": [4, 128, 32], "gate_up_proj_scales": [4, 128, 4], "down_proj_scales": [4, 128, 2],
    }  # fmt: skip
    x = torch.randn(5, 128, dtype=torch.bfloat16, device=device, requires_grad=True)
    o = layer(x)
    o.sum().backward()  # packed weights have no gradients
    assert not o.any() and x.grad is not None and layer.experts.down_proj.grad is None and layer.gate.weight.grad is not None


def test_no_tensor(device):
    with pytest.raises(sonicmoe_go.ArgumentError, match="x is None, must be a tensor"):
        sonicmoe_go.SonicMoE(128, 64, 4, 2, device=device)(None)


@pytest.mark.parametrize("wrong", [None, [[1.0] * 128], "x", 3], ids=["None", "list", "text", "number"])
@pytest.mark.parametrize("name", ["x", "router", "w1", "w2", "scores", "expert_ids"])
def test_functions_name_what_is_no_tensor(name, wrong, device):
    layer = sonicmoe_go.SonicMoE(128, 64, 4, 2, device=device)
    given = {"w1": layer.experts.gate_up_proj, "w2": layer.experts.down_proj, "x": torch.zeros(8, 128, device=device, dtype=torch.bfloat16)}
    if name in ("scores", "expert_ids"):
        run = sonicmoe_go.moe_experts
        given |= {"scores": torch.zeros(8, 2, device=device), "expert_ids": torch.zeros(8, 2, device=device, dtype=torch.int32)}
    else:
        run = sonicmoe_go.moe
        given["router"] = layer.gate.weight
    with pytest.raises(sonicmoe_go.ArgumentError, match=rf"^{name} is .*, must be "):
        run(**given | {name: wrong}, config=layer.config)


@pytest.mark.parametrize("name", ["balance", "z_loss"])
@pytest.mark.parametrize("wrong", [None, "0.1"])
def test_a_coefficient_is_a_number(name, wrong):
    with pytest.raises(sonicmoe_go.ArgumentError, match=f"{name} is {wrong!r}, must be a number"):
        sonicmoe_go.SonicMoE(128, 64, 4, 2, **{name: wrong})


def test_experts_of_lfm2(device):
    """The activation of these experts is a function instead of a module."""
    block, name = block_of("lfm2_moe", device), sonicmoe_go.register_with_transformers()
    x, want = torch.randn(2, 12, 128, device=device, dtype=torch.bfloat16), {}
    for which in ("eager", name):
        block.experts.config._experts_implementation = which
        want[which] = block(x).detach().double().cpu()
    assert distance(want[name], want["eager"]) < 1e-2


def test_registration_of_a_model(device):
    """A model must be refused if its experts do not look for an implementation, unless a SonicMoE
    replaces their block."""
    model = model_of("mixtral", device, BLOCKS)
    assert sonicmoe_go.register_with_transformers(model) == model.config._experts_implementation == "sonicmoe_go"
    model = model_of("llama4_text", device, BLOCKS)
    with pytest.raises(sonicmoe_go.ArgumentError, match="Llama4TextExperts of Llama4ForCausalLM would run eager, .*from_hf"):
        sonicmoe_go.register_with_transformers(model)
    for layer in model.model.layers:
        layer.feed_forward = sonicmoe_go.SonicMoE.from_hf(layer.feed_forward)
    sonicmoe_go.register_with_transformers(model)
    experts = block_of("gpt_oss", device).experts
    experts.has_post_expert_norm = True
    with pytest.raises(sonicmoe_go.ArgumentError, match="experts of Sequential cannot run here: GptOssExperts has a norm after its experts, must have none"):
        sonicmoe_go.register_with_transformers(torch.nn.Sequential(torch.nn.ModuleDict({"experts": experts})))


def test_experts_that_are_rows_of_a_matrix(device):
    """DBRX's experts may have an adapter of the layer, which must act as the sum of weights and
    adapter. They must refuse what needs a dimension of experts."""
    block = block_of("dbrx", device)
    layer, x = sonicmoe_go.SonicMoE.from_hf(copy.deepcopy(block), lora_rank=8, lora_alpha=16.0), torch.randn(24, 128, device=device, dtype=torch.bfloat16)
    with torch.no_grad():
        for name, factor in layer.factors().items():
            factor.normal_(std=0.1 if name.startswith("lora_a") else 0.05)
        f, mlp = {n: 2 * t if "_b" in n else t for n, t in layer.factors().items()}, block.experts.mlp
        mlp.w1 += (f["lora_b1"] @ f["lora_a1"]).view(256, 128)
        mlp.v1 += (f["lora_b3"] @ f["lora_a1"]).view(256, 128)
        mlp.w2 += (f["lora_b2"] @ f["lora_a2"]).transpose(1, 2).reshape(256, 128)
        got, want = layer(x), block.double()(x[None].double())[0]
    assert ((got - want).norm(dim=-1) / want.norm(dim=-1)).median() < 1e-2
    with pytest.raises(sonicmoe_go.ArgumentError, match="the experts of a DbrxFFN are rows of one matrix"):
        sonicmoe_go.shard_experts(layer, None, max_tokens=8)
    with pytest.raises(sonicmoe_go.ArgumentError, match="DbrxExperts has no down_proj, must have one with a dimension of experts for MXFP4"):
        sonicmoe_go.SonicMoE.from_hf(block, weights="mxfp4")
    layer.experts.mlp = torch.nn.Sequential(layer.experts.mlp)  # as PEFT wraps it
    with pytest.raises(sonicmoe_go.ArgumentError, match="the layer's experts.mlp is a Sequential without w1, .* use add_lora"):
        layer(x)


def test_from_hf_of_what_is_no_block(device):
    with pytest.raises(sonicmoe_go.ArgumentError, match="Linear has no router and experts"):
        sonicmoe_go.SonicMoE.from_hf(torch.nn.Linear(2, 2))
    block = block_of("qwen3_moe", device)
    block.norm = torch.nn.LayerNorm(128)
    with pytest.raises(sonicmoe_go.ArgumentError, match="has norm.weight, norm.bias as well"):
        sonicmoe_go.SonicMoE.from_hf(block)


@pytest.mark.parametrize(
    "config",
    [
        {"router_bias": True, "bias": True, "activation": "swiglu-oai", "alpha": 1.702, "limit": 7.0},
        {"score": "sigmoid", "selection_bias": True, "renormalize": "sum", "norm_epsilon": 1e-20, "shared_experts": 2, "logits": "f32"},
        {"score": "softmax", "shared_experts": 1, "shared_gate": True, "logits": "f32"},
        {"expert_scale": True, "score": "softmax"},
        {"activation": "relu2", "shared_experts": 1},
    ],
    ids=lambda c: next(iter(c)),
)
def test_module_of_every_weight(device, config):
    """All parameters must get gradients. The gradients must have the same bits through the
    operators of torch's dispatcher."""
    block = sonicmoe_go.SonicMoE(128, 64, 4, 2, device=device, **config)
    with torch.no_grad():
        for p in (*block.parameters(), *block.buffers()):
            p.normal_(std=0.1)
    x = torch.randn(24, 128, device=device, dtype=torch.bfloat16)
    d_o = torch.randn_like(x)
    y = block(x)
    eager = torch.autograd.grad(y, list(block.parameters()), d_o)
    assert all(g.isfinite().all() and g.any() for g in eager)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")(x)
    assert torch.equal(y, compiled)
    assert all(torch.equal(a, b) for a, b in zip(eager, torch.autograd.grad(compiled, list(block.parameters()), d_o)))


@pytest.mark.parametrize("rule", ["nearest", "stochastic", "up", "capacity-drop"])
def test_module_rounds(device, rule):
    """Training must round by torch's seed, inference must not round, and the gradients must
    exist."""
    how = {"rounding_capacity": 0.75} if rule == "capacity-drop" else {"rounding_tile": 8}
    block = sonicmoe_go.SonicMoE(128, 64, 4, 2, device=device, rounding_rule=rule, **how)
    plain = sonicmoe_go.SonicMoE(128, 64, 4, 2, device=device)
    plain.load_state_dict(block.state_dict())
    x = torch.randn(37, 128, device=device, dtype=torch.bfloat16, requires_grad=True)

    def train(seed):
        torch.manual_seed(seed)
        y = block(x)
        return y, *torch.autograd.grad(y.float().square().sum(), (x, *block.parameters()))

    first, again, other = train(1), train(1), train(2)
    assert all(torch.equal(a, b) for a, b in zip(first, again)) and all(t.isfinite().all() for t in first)
    assert rule != "stochastic" or any(not torch.equal(train(s)[0], first[0]) for s in range(2, 8)) or not torch.equal(other[0], first[0])
    assert not torch.equal(first[0], plain(x)) and torch.equal(block.eval()(x), plain(x))
    block.train()
    again = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
    torch.autograd.grad(again.float().sum(), x)
    with torch.device("meta"):  # the seed is a CPU tensor, whatever torch's default device is
        assert block(x).isfinite().all()
    with pytest.raises(sonicmoe_go.ArgumentError, match="rounds is True, must be False"):
        sonicmoe_go.moe(x, plain.gate.weight, plain.experts.gate_up_proj, plain.experts.down_proj, plain.config, rounds=True)


def test_rounding_compiles(device):
    block = sonicmoe_go.SonicMoE(128, 64, 4, 2, device=device, rounding_rule="nearest", rounding_tile=8)
    x = torch.randn(24, 128, device=device, dtype=torch.bfloat16)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")(x)
    assert torch.equal(compiled, block(x))
    want = torch.autograd.grad(block(x).float().sum(), list(block.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(torch.autograd.grad(compiled.float().sum(), list(block.parameters())), want))
