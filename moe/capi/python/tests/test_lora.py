"""Tests layers with adapters: the functions, the module, and its files."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from reference import distance, layer, topk

import sonicmoe_go
from sonicmoe_go import _weights

CONFIG = sonicmoe_go.Config(hidden=128, intermediate=64, num_experts=4, top_k=2, lora_rank=16, lora_alpha=24.0)
NAMES = "lora_a1", "lora_b1", "lora_a2", "lora_b2"


def given(device, c=CONFIG, tokens=24):
    """Returns x, router, w1, w2 and the factors by name. The factors are so large that a layer
    without them has another output."""
    e, d, n, r = c.num_experts, c.hidden, c.intermediate, c.lora_rank
    shapes = {"x": (tokens, d), "router": (e, d), "w1": (e, c.h_width, d), "w2": (e, d, n)}
    shapes |= {"lora_a1": (e, r, d), "lora_b1": (e, c.h_width, r), "lora_a2": (e, r, n), "lora_b2": (e, d, r)}
    ts = {name: (torch.randn(s) * (1 if name == "x" else s[-1] ** -0.5)).bfloat16() for name, s in shapes.items()}
    if c.weight_order == "in-out":
        ts |= {name: t.transpose(1, 2).contiguous() for name, t in ts.items() if t.dim() == 3}
    return {name: t.to(device).requires_grad_(name not in ("w1", "w2")) for name, t in ts.items()}


def truth(ts, c, scale):
    """Returns the output in float64 and a function for its gradients."""
    wide = {name: t.detach().double().cpu().requires_grad_(t.requires_grad) for name, t in ts.items()}
    w = {name: t.transpose(1, 2) if t.dim() == 3 and c.weight_order == "in-out" else t for name, t in wide.items()}
    w1 = w["w1"] + scale * w["lora_b1"] @ w["lora_a1"]
    w2 = w["w2"] + scale * w["lora_b2"] @ w["lora_a2"]
    o, _ = layer(w["x"], w["router"], w1, w2, topk(ts["x"].cpu(), ts["router"].cpu(), c.top_k))
    return o, lambda d_o: torch.autograd.grad((o * d_o.double().cpu()).sum(), [t for t in wide.values() if t.requires_grad])


@pytest.mark.parametrize(
    ("change", "scale"),
    [({}, 24 / 16), ({"weight_order": "in-out", "rslora": True, "lora_rank": 8}, 24 / 8**0.5)],
    ids=str,
)
def test_adapter(device, change, scale):
    """A layer must compute with W + scale·B·A, forward and backward."""
    c = dataclasses.replace(CONFIG, **change)
    ts = given(device, c)
    want, gradients = truth(ts, c, scale)
    o, _ = sonicmoe_go.moe(**ts, config=c)
    assert distance(o, want) < 0.01
    d_o = torch.randn_like(o)
    trained = {name: t for name, t in ts.items() if t.requires_grad}
    got = torch.autograd.grad((o * d_o).sum(), list(trained.values()))
    for name, g, w in zip(trained, got, gradients(d_o), strict=True):
        assert distance(g, w) < 0.015, name
    with torch.no_grad():
        assert torch.equal(sonicmoe_go.moe(**ts, config=c)[0], o)


def test_adapter_of_a_given_routing(device):
    ts = given(device)
    del ts["router"]
    x, ids = ts["x"], torch.rand(24, 4, device=device).argsort(-1)[:, :2].int().contiguous()
    scores = torch.rand(24, 2, device=device).requires_grad_()
    o = sonicmoe_go.moe_experts(**ts, scores=scores, expert_ids=ids, config=CONFIG)
    wide = {name: t.detach().double().cpu() for name, t in ts.items()}
    w1, w2 = (wide[w] + 1.5 * wide[b] @ wide[a] for w, a, b in (("w1", "lora_a1", "lora_b1"), ("w2", "lora_a2", "lora_b2")))
    want = torch.zeros_like(wide["x"])
    for t in range(24):
        for e, s in zip(ids[t].tolist(), scores[t].tolist()):
            gate, up = (w1[e] @ wide["x"][t]).chunk(2)
            want[t] += s * (w2[e] @ (F.silu(gate) * up))
    assert distance(o, want) < 0.01
    o.sum().backward()
    assert all(ts[name].grad is not None for name in NAMES) and scores.grad.any() and x.grad.any()


def test_main_grad_of_factors(device):
    """Gradients are added to a factor's main_grad, in FP32, and autograd gets none."""
    ts = given(device)
    o, _ = sonicmoe_go.moe(**ts, config=CONFIG)
    d_o = torch.randn_like(o)
    want = torch.autograd.grad((o * d_o).sum(), ts["lora_b1"], retain_graph=True)[0]
    ts["lora_b1"].main_grad = torch.ones_like(ts["lora_b1"], dtype=torch.float32)
    (o * d_o).sum().backward()
    assert ts["lora_b1"].grad is None and ts["lora_a1"].grad is not None
    assert distance(ts["lora_b1"].main_grad - 1, want.double().cpu()) < 5e-3


def test_compiled_adapter(device):
    ts = given(device)

    def step(ts):
        return sonicmoe_go.moe(**ts | {"x": ts["x"] * 1.0}, config=CONFIG)[0].float().square().mean()

    compiled = torch.compile(step, fullgraph=True, backend="inductor" if device == "cuda" else "aot_eager")
    trained = [t for t in ts.values() if t.requires_grad]
    for g, w in zip(torch.autograd.grad(compiled(ts), trained), torch.autograd.grad(step(ts), trained), strict=True):
        assert distance(g, w.double().cpu()) < 0.01


def test_wrong_factors(device):
    ts = given(device)
    for change, said in (
        ({"lora_b2": None}, r"lora_b2 is None, must be \[4, 128, 16\]"),
        ({"lora_a1": ts["lora_b1"]}, r"lora_a1 is \[4, 128, 16\], must be \[4, 16, 128\]"),
        ({"lora_b3": ts["lora_b1"]}, "lora_b3 is .*must be None with gate_up 'concatenated'"),
        ({"config": dataclasses.replace(CONFIG, lora_rank=0, lora_alpha=0.0)}, "lora_a1 is .*must be None with lora_rank 0"),
        ({"config": dataclasses.replace(CONFIG, lora_alpha=float("nan"))}, "Config.lora_alpha is NaN"),
    ):
        with pytest.raises(sonicmoe_go.ArgumentError, match=said):
            sonicmoe_go.moe(**{"config": CONFIG} | ts | change)
    o, _ = sonicmoe_go.moe(**ts | {"w1": ts["w1"].clone().requires_grad_()}, config=CONFIG)
    with pytest.raises(sonicmoe_go.ArgumentError, match="DW1 is bf16 .*must be none: a layer with lora_rank has gradients of the adapter's factors"):
        o.sum().backward()


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({}, {"gate_up_proj_lora_A": [4, 4, 128], "gate_up_proj_lora_B": [4, 128, 4], "down_proj_lora_A": [4, 4, 64], "down_proj_lora_B": [4, 128, 4]}),
        (
            {"gate_up": "apart", "weight_order": "in-out", "bias": True, "rslora": True},
            {"gate_proj_lora_A": [4, 128, 4], "gate_proj_lora_B": [4, 4, 64], "up_proj_lora_B": [4, 4, 64], "down_proj_lora_A": [4, 64, 4], "down_proj_lora_B": [4, 4, 128]},
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_module_with_an_adapter(device, config, names, dtype):
    """A module of rank 4, which is padded, must have the output of the module whose weights the
    adapter changed, and train nothing but the adapter."""
    block = sonicmoe_go.SonicMoE(128, 64, 4, 2, device=device, lora_rank=4, lora_alpha=6, lora_dtype=dtype, **config)
    trained = {n.removeprefix("experts."): p for n, p in block.named_parameters() if p.requires_grad}
    assert {n: list(p.shape) for n, p in trained.items()} == names and all(p.dtype is dtype for p in trained.values())
    plain = sonicmoe_go.SonicMoE(128, 64, 4, 2, device=device, **{n: v for n, v in config.items() if n != "rslora"})
    missing = block.load_state_dict(plain.state_dict(), strict=False).missing_keys
    assert {n.removeprefix("experts.") for n in missing} == set(names)
    x = torch.randn(3, 8, 128, device=device, dtype=torch.bfloat16)
    assert torch.equal(block(x), plain(x))  # lora_B is 0
    with torch.no_grad():
        for n, p in trained.items():
            if n.endswith("_B"):
                p.normal_(std=0.3)
        scale = 6 / (4**0.5 if block.config.rslora else 4)
        for n in names:
            if n.endswith("_B"):
                w, b = getattr(plain.experts, n.removesuffix("_lora_B")), trained[n].float()
                a = trained.get(n.removesuffix("B") + "A", trained.get("gate_proj_lora_A")).float()
                w += (scale * (a @ b if config else b @ a)).to(w.dtype)
        want = plain(x)
        assert distance(block(x), want.double().cpu()) < 0.01
    y = block(x)
    y.float().square().mean().backward()
    assert all(p.grad.any() and p.grad.dtype is dtype for p in trained.values())
    assert all(p.grad is None for p in block.parameters() if not p.requires_grad)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), y)
    got = torch.autograd.grad(compiled(x).float().square().mean(), list(trained.values()))
    assert all(distance(g, p.grad.double().cpu()) < 0.01 for g, p in zip(got, trained.values()))


def test_adapter_over_packed_weights(device):
    """A layer over packed weights must have the bits of the layer over their values, in all
    gradients of the adapter."""
    pytest.importorskip("transformers", minversion="5")
    from test_packed import packed

    x = torch.randn(24, 128, device=device, dtype=torch.bfloat16)
    how = {"device": device, "lora_rank": 8, "lora_alpha": 8}
    block, plain = sonicmoe_go.SonicMoE(128, 64, 4, 2, weights="mxfp4", **how), sonicmoe_go.SonicMoE(128, 64, 4, 2, **how)
    for name, rows, columns in (("gate_up_proj", 128, 128), ("down_proj", 128, 64)):
        codes, scales, _, _, values = packed("mxfp4", 4, rows, columns, device)
        for of, name_of, t in ((block, name, codes), (block, name + "_scales", scales), (plain, name, values)):
            getattr(of.experts, name_of).data.copy_(t)
    with torch.no_grad():
        for p in block.parameters():
            if p.requires_grad:
                p.normal_(std=0.2)
        plain.gate.load_state_dict(block.gate.state_dict())
        plain.load_state_dict({n: p for n, p in block.state_dict().items() if "lora" in n}, strict=False)
    grads = []
    for of in (block, plain):
        of(x).float().square().mean().backward()
        grads.append([p.grad for p in of.parameters() if p.grad is not None])
    assert len(grads[0]) == 4 and all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_wrong_adapters(device):
    block = sonicmoe_go.SonicMoE(128, 64, 4, 2, device=device, lora_rank=8, lora_alpha=8)
    with pytest.raises(sonicmoe_go.ArgumentError, match="has an adapter of rank 8, must have none"):
        block.add_lora(8, 8)
    for how, said in (
        ({"lora_rank": 129, "lora_alpha": 1}, "lora_rank is 129, must be 1 to 128"),
        ({"lora_rank": 2.5, "lora_alpha": 1}, "lora_rank is 2.5, must be 1 to 128"),
        ({"lora_rank": 8}, "lora_alpha is 0.0, must be a number above 0"),
        ({"lora_rank": 8, "lora_alpha": float("nan")}, "lora_alpha is nan, must be a number above 0"),
        ({"lora_alpha": 8.0}, "lora_rank is 0, must be 1 to 128"),
    ):
        with pytest.raises(sonicmoe_go.ArgumentError, match=said):
            sonicmoe_go.SonicMoE(128, 64, 4, 2, **how)


@pytest.mark.parametrize("layout", ["peft", "per-expert", "stacked"])
@pytest.mark.parametrize("config", [{}, {"gate_up": "interleaved", "weight_order": "in-out"}, {"gate_up": "apart"}, {"activation": "relu2"}], ids=str)
def test_files(device, config, layout, tmp_path):
    """A layer must have the same factors after it wrote and another layer read them."""
    pytest.importorskip("safetensors")

    def model(**lora):
        of = torch.nn.Module()
        of.mlp = sonicmoe_go.SonicMoE(128, 64, 4, 2, device=device, **config, **lora)
        return of

    wrote = model(lora_rank=12, lora_alpha=6.5, rslora=True)
    with torch.no_grad():
        for p in wrote.mlp.factors().values():
            p.normal_()
    sonicmoe_go.save_adapter(wrote, tmp_path, layout)
    for read in (model(), model(lora_rank=12, lora_alpha=6.5, rslora=True)):
        assert sonicmoe_go.load_adapter(read, tmp_path) == []
        assert read.mlp.config == wrote.mlp.config
        assert all(torch.equal(a, b) for a, b in zip(read.mlp.factors().values(), wrote.mlp.factors().values(), strict=True))
    with pytest.raises(sonicmoe_go.ArgumentError, match="has rank 12, alpha 6.5 and rslora True, must have those of the layer: 12, 6.5 and False"):
        sonicmoe_go.load_adapter(model(lora_rank=12, lora_alpha=6.5), tmp_path)


def test_a_file_with_two_first_factors(device, tmp_path):
    """If gate and up have different lora_A in a file, the layer gets both."""
    save_file = pytest.importorskip("safetensors.torch").save_file
    of = torch.nn.Module()
    of.mlp = sonicmoe_go.SonicMoE(128, 64, 4, 2, device=device)
    names = {"gate_proj": (128, 64), "up_proj": (128, 64), "down_proj": (64, 128)}
    given = {(e, n): (torch.randn(4, i), torch.randn(o, 4)) for e in range(4) for n, (i, o) in names.items() if (e, n) != (2, "down_proj")}
    tensors = {f"base_model.model.mlp.experts.{e}.{n}.lora_{x}.weight": t.contiguous() for (e, n), p in given.items() for x, t in zip("AB", p)}
    save_file(tensors | {"base_model.model.q_proj.lora_A.weight": torch.zeros(4, 4)}, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "lora_dropout": 0.1}')
    with pytest.warns(UserWarning, match="trained with lora_dropout 0.1; training here has no dropout"):
        assert sonicmoe_go.load_adapter(of, tmp_path) == ["base_model.model.q_proj.lora_A.weight"]
    f = {n: p.detach().cpu() for n, p in of.mlp.factors().items()}
    assert of.mlp.lora_rank == 8 and of.mlp.lora_alpha == 16
    for e in range(4):
        w1, w2 = f["lora_b1"][e] @ f["lora_a1"][e], f["lora_b2"][e] @ f["lora_a2"][e]
        want = torch.cat([given[e, n][1] @ given[e, n][0] for n in ("gate_proj", "up_proj")])
        assert torch.allclose(w1, want, atol=1e-5)
        assert torch.allclose(w2, given[e, "down_proj"][1] @ given[e, "down_proj"][0], atol=1e-5) if e != 2 else not w2.any()


@pytest.mark.parametrize("gated", [True, False])
def test_a_file_of_early_peft(device, tmp_path, gated):
    """In files of PEFT before 0.19.1 the columns of lora_A are outputs. In a square weight only the other
    weight, or the version, tells them from the files of later versions."""
    safetensors = pytest.importorskip("safetensors.torch")

    def model():
        m = torch.nn.Module()
        m.mlp = sonicmoe_go.SonicMoE(128, 64, 4, 2, device=device, activation="swiglu" if gated else "relu2")
        return m

    wrote, file = model(), tmp_path / "adapter_model.safetensors"
    wrote.mlp.add_lora(4, 8)
    with torch.no_grad():
        for p in wrote.mlp.factors().values():
            p.normal_()
    sonicmoe_go.save_adapter(wrote, tmp_path)
    want, text = wrote.mlp.factors(), (tmp_path / "adapter_config.json").read_text()
    early = {}
    for at in (".base_layer", ""):
        a, b = (safetensors.load_file(file)[f"base_model.model.mlp.experts{at}.lora_{x}.weight"] for x in "AB")
        a, b = a.unflatten(0, (4, 4)), b.unflatten(1, (4, 4))  # [E, r, in] and [out, r, E]
        early[f"base_model.model.mlp.experts{at}.lora_A.weight"] = b.permute(2, 1, 0).flatten(0, 1).contiguous()
        early[f"base_model.model.mlp.experts{at}.lora_B.weight"] = a.permute(2, 1, 0).flatten(1, 2).contiguous()
    safetensors.save_file(early, file)
    for version in ("", "0.18.1", "0.19.0"):
        (tmp_path / "adapter_config.json").write_text(text.replace("0.19.1", version))
        read = model()
        assert sonicmoe_go.load_adapter(read, tmp_path) == []
        assert all(torch.equal(f, want[n]) for n, f in read.mlp.factors().items())
    (tmp_path / "adapter_config.json").write_text(text)
    with pytest.raises(sonicmoe_go.ArgumentError, match="must be"):
        sonicmoe_go.load_adapter(model(), tmp_path)
    # W1 [2n, d] is square with a gate, and is alone here.
    alone = {n.replace(".base_layer", ""): t for n, t in early.items() if ".base_layer" in n}
    safetensors.save_file(alone, file)
    (tmp_path / "adapter_config.json").write_text(text.replace("0.19.1", "0.18.1").replace('"mlp.experts.down_proj"', '"mlp.experts.gate_up_proj"'))
    if gated:
        with pytest.raises(sonicmoe_go.ArgumentError, match="must be 0.19.1 or later"):
            sonicmoe_go.load_adapter(model(), tmp_path)
    else:
        read = model()
        assert sonicmoe_go.load_adapter(read, tmp_path) == []
        assert torch.equal(read.mlp.factors()["lora_b1"], want["lora_b1"])


def test_wrong_files(device, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    of = torch.nn.Module()
    of.mlp = sonicmoe_go.SonicMoE(128, 64, 4, 2, device=device, lora_rank=4, lora_alpha=4)
    sonicmoe_go.save_adapter(of, tmp_path)
    of.mlp = sonicmoe_go.SonicMoE(128, 64, 4, 2, device=device)
    right, text = safetensors.load_file(tmp_path / "adapter_model.safetensors"), (tmp_path / "adapter_config.json").read_text()
    at = "base_model.model.mlp.experts."
    for change, said in (
        ({at + "lora_A.weight": torch.zeros(16, 32)}, r"are \[16, 32\] and \[128, 16\], must be"),
        ({at + "lora_A.weight": None}, "is alone, must have .*lora_A.weight with it"),
        ({at + "4.up_proj.lora_A.weight": torch.zeros(4, 128)}, "is of no layer or no expert of the model"),
        ({"base_model.model.other.experts.lora_A.weight": torch.zeros(4, 128)}, "is of no layer or no expert of the model"),
        (dict.fromkeys(right) | {"q.weight": torch.zeros(1)}, "has no factors of mlp.experts, must have some of each layer"),
        ('{"peft_type": "IA3"}', "peft_type is 'IA3', must be 'LORA'"),
        (text.replace('"use_dora": false', '"use_dora": true'), "use_dora is True, must be empty, None or False"),
        (text.replace('"use_dora": false', '"use_qalora": true'), "use_qalora is True, must be empty, None or False"),
        (text.replace('"use_dora": false', '"rank_pattern": {"q": 8}'), "rank_pattern is {'q': 8}, must be empty"),
        (text.replace('"bias": "none"', '"bias": "all"'), "bias is 'all', must be 'none'"),
        (text.replace('"use_dora": false', '"init_lora_weights": "pissa_niter_16"'), "init_lora_weights is 'pissa_niter_16', must be True"),
    ):
        (tmp_path / "adapter_config.json").write_text(change if isinstance(change, str) else text)
        tensors = right if isinstance(change, str) else {n: t for n, t in (right | change).items() if t is not None}
        safetensors.save_file(tensors, tmp_path / "adapter_model.safetensors")
        with pytest.raises(sonicmoe_go.ArgumentError, match=said):
            sonicmoe_go.load_adapter(of, tmp_path)
    (tmp_path / "adapter_config.json").write_text(text.replace('"use_dora": false', '"use_other": true'))
    safetensors.save_file(right, tmp_path / "adapter_model.safetensors")
    with pytest.warns(UserWarning, match="use_other is True in adapter_config.json: load_adapter does not know the field"):
        assert sonicmoe_go.load_adapter(of, tmp_path) == []
    of.mlp = sonicmoe_go.SonicMoE(128, 64, 4, 2, device=device)
    with pytest.raises(sonicmoe_go.ArgumentError, match="has no SonicMoE with an adapter, must have one at least: call add_lora"):
        sonicmoe_go.save_adapter(of, tmp_path)
    two = torch.nn.ModuleList(sonicmoe_go.SonicMoE(128, 64, 4, 2, lora_rank=4, lora_alpha=alpha, device=device) for alpha in (8.0, 16.0))
    with pytest.raises(sonicmoe_go.ArgumentError, match="adapters of 2 kinds .*, must have one kind"):
        sonicmoe_go.save_adapter(two, tmp_path)
    with pytest.raises(sonicmoe_go.ArgumentError, match="layout is 'vllm', must be one of peft, per-expert, stacked"):
        sonicmoe_go.save_adapter(of, tmp_path, "vllm")


@pytest.mark.parametrize("order", ["out-in", "in-out"])
def test_a_table_of_adapters(device, order):
    """Each token must have the output of its own adapter, and a token without one the bits of the
    layer without the table."""
    alone = dataclasses.replace(CONFIG, weight_order=order)
    c = dataclasses.replace(alone, lora_adapters=3, lora_alpha=0.0)
    base = dataclasses.replace(c, lora_rank=0, lora_adapters=0)
    ts = {name: t.detach() for name, t in given(device, alone).items()}
    every = [ts, {name: torch.randn_like(t) / 8 if name in NAMES else t for name, t in ts.items()}]
    swapped = [{n: t.transpose(1, 2).contiguous() if order == "in-out" else t for n, t in of.items() if n in NAMES} for of in every]
    table = {n: torch.cat((swapped[0][n], torch.zeros_like(swapped[0][n]), swapped[1][n])) for n in NAMES}
    plain = {n: t for n, t in ts.items() if n not in NAMES}
    ids = torch.tensor([0, -1, 2] * 8, dtype=torch.int32, device=device)
    scales = torch.tensor([1.5, 0.0, 1.5], device=device)
    with torch.no_grad():
        got, _ = sonicmoe_go.moe(**plain, **table, config=c, adapter_ids=ids, lora_scales=scales)
        assert torch.equal(got[1::3], sonicmoe_go.moe(**plain, config=base)[0][1::3])
        for first, of in ((0, every[0]), (2, every[1])):
            want = sonicmoe_go.moe(**of, config=alone)[0][first::3]
            assert distance(got[first::3], want.double().cpu()) < 0.01
            assert distance(got[first::3], got[1::3].double().cpu()) > 0.1
        scores, chosen = torch.rand(24, 2, device=device), torch.rand(24, 4, device=device).argsort(-1)[:, :2].int().contiguous()
        del plain["router"], every[1]["router"]
        routed = {"scores": scores, "expert_ids": chosen}
        got = sonicmoe_go.moe_experts(**plain, **table, **routed, config=c, adapter_ids=ids, lora_scales=scales)
        assert distance(got[2::3], sonicmoe_go.moe_experts(**every[1], **routed, config=alone)[2::3].double().cpu()) < 0.01
        given_all = {**plain, **table, **routed, "config": c, "adapter_ids": ids, "lora_scales": scales}
        for change, said in (
            ({"adapter_ids": None}, r"adapter_ids is None, must be \[24\] with lora_adapters 3"),
            ({"adapter_ids": ids.long()}, "adapter_ids is torch.int64, must be torch.int32"),
            ({"lora_scales": scales[:2].clone()}, r"lora_scales is \[2\], must be \[3\]"),
            ({"lora_a1": table["lora_a1"][:4].clone()}, r"lora_a1 is \[4, 16, 128\], must be \[12, 16, 128\]"),
            ({**dict.fromkeys(NAMES), "config": base}, r"adapter_ids is \[24\], must be None with lora_adapters 0"),
        ):
            with pytest.raises(sonicmoe_go.ArgumentError, match=said):
                sonicmoe_go.moe_experts(**given_all | change)
    with pytest.raises(sonicmoe_go.ArgumentError, match="must run without gradients"):
        sonicmoe_go.moe_experts(**given_all | {"x": plain["x"].clone().requires_grad_()})


@pytest.mark.skipif("torch.cuda.is_available()")
@pytest.mark.parametrize("shared", [0, 2])
@pytest.mark.parametrize("routed", [False, True])
def test_training_keeps_the_first_product(monkeypatch, routed, shared):
    """A training pass that the library reads from tensors must keep lora_u, and have the gradients of
    the operators, which keep it too."""
    import standin

    config, how, ts = dataclasses.replace(CONFIG, shared_experts=shared), {}, given("cpu")
    for name, dtype, shape in _weights.shapes(config):
        if dtype and name.startswith("shared"):
            ts[name] = (torch.randn(shape) * 0.1).to(dtype).requires_grad_()
    if routed:
        del ts["router"]
        ids = torch.rand(24, 4).argsort(-1)[:, :2].int().contiguous()
        how = {"scores": torch.rand(24, 2), "expert_ids": ids}
    trained = {name: t for name, t in ts.items() if t.requires_grad}
    d_o = torch.randn(24, 128, dtype=torch.bfloat16)

    def gradients():
        o = sonicmoe_go.moe_experts(**ts, **how, config=config) if routed else sonicmoe_go.moe(**ts, config=config)[0]
        return dict(zip(trained, torch.autograd.grad((o * d_o).sum(), list(trained.values())), strict=True))

    want = gradients()
    passes = standin.use(monkeypatch)
    got = gradients()
    assert all(torch.equal(g, want[name]) for name, g in got.items())
    assert len(passes) == 2 and passes[0][1]["lora_u"] == passes[1][1]["lora_u"] != 0
