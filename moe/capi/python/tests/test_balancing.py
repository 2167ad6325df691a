"""Load balancing: the loss of each sequence, the experts' loads, and steps of the selection bias."""

import dataclasses

import pytest
import torch
from reference import CONFIG, distance, layer, tensors, topk, wide
from test_modules import block_of

import sonicmoe_go
from sonicmoe_go import _plans

BIASED = dataclasses.replace(CONFIG, score="sigmoid", selection_bias=True, renormalize="sum")


def sequence_loss(logits, ids, length):
    """Returns the mean of the balance losses of the sequences."""
    losses = []
    for l, i in zip(logits.split(length), ids.split(length)):
        count = torch.bincount(i.flatten(), minlength=4).double()
        losses.append(4 / (2 * length) * (count * l.softmax(-1).mean(0)).sum())
    return torch.stack(losses).mean()


@pytest.mark.parametrize("length", [4, 8])
def test_loss_of_sequences(device, length):
    ts = tensors(device)
    d_o = torch.randn_like(ts[0])
    o, _ = sonicmoe_go.moe(*ts, CONFIG, balance=400.0, sequence=length)
    ws = wide(*ts)
    ids = topk(ts[0].cpu(), ts[1].cpu(), 2)
    want, logits = layer(*ws, ids)
    given = (want * d_o.double().cpu()).sum()
    right = torch.autograd.grad(given + 400 * sequence_loss(logits, ids, length), ws[:2], retain_graph=True)
    whole = torch.autograd.grad(given + 400 * sequence_loss(logits, ids, 24), ws[:2])
    got = torch.autograd.grad((o * d_o).sum(), ts[:2])
    for g, r, w in zip(got, right, whole):
        assert distance(g, r) < 1e-2 < 5e-2 < distance(g, w)


@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_layer_of_sequences(device, how):
    """Sequences are the second last dimension of x. The function moe must give the same
    gradients."""
    block = sonicmoe_go.SonicMoE(128, 64, 4, 2, device=device, balance=40.0, balance_by="sequence")
    x = torch.randn(3, 8, 128, device=device, dtype=torch.bfloat16, requires_grad=True)
    w = block.gate.weight, block.experts.gate_up_proj, block.experts.down_proj
    torch._dynamo.reset()
    run = block if how == "eager" else torch.compile(block, fullgraph=True, dynamic=True, backend="aot_eager")
    got = torch.autograd.grad(run(x).float().sum(), (x, *w))
    o, _ = sonicmoe_go.moe(x.view(24, 128), *w, block.config, balance=40.0, sequence=8)
    assert all(map(torch.equal, got, torch.autograd.grad(o.float().sum(), (x, *w))))


def counts(ids):
    return torch.bincount(ids.flatten(), minlength=4).tolist()


@pytest.mark.parametrize("grad", [False, True])
def test_loads_of_micro_batches(device, grad):
    """Each pass adds to the loads, with gradients and without. A pass that rounds counts the choice
    of the router."""
    ts = [t.detach().requires_grad_(grad) for t in tensors(device)]
    loads = torch.full((4,), 5, dtype=torch.int32, device=device)
    want, _ = sonicmoe_go.moe(*ts, CONFIG)
    for part in (slice(10), slice(10, 24)):
        o, _ = sonicmoe_go.moe(ts[0][part], *ts[1:], CONFIG, loads=loads)
        assert torch.equal(o, want[part])
    ids = topk(ts[0].cpu(), ts[1].cpu(), 2)
    assert loads.tolist() == [5 + n for n in counts(ids)]
    rounds = dataclasses.replace(CONFIG, rounding_rule="up", rounding_tile=8)
    sonicmoe_go.moe(*ts, rounds, rounds=True, loads=loads)
    assert loads.tolist() == [5 + 2 * n for n in counts(ids)]


def skewed(device, **config):
    """Returns a layer whose router prefers the first experts."""
    block = sonicmoe_go.SonicMoE(128, 64, 4, 2, device=device, router_bias=True, **dict(score="sigmoid", selection_bias=True, renormalize="sum") | config)
    with torch.no_grad():
        block.gate.bias.copy_(torch.tensor([1.5, 1.0, -0.5, -1.0]))
    return block


def test_steps_of_an_optimiser_balance(device):
    """The hook makes the loads of a skewed router even, and changes nothing but the biases."""
    block = skewed(device)
    model = torch.nn.Sequential(block)
    optimizer = torch.optim.SGD(block.parameters(), lr=0)
    handle = sonicmoe_go.balance_selection(model, optimizer, rate=0.03)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    x = torch.randn(2, 30, 128, device=device, dtype=torch.bfloat16)
    worst = []
    for step in range(20):
        for part in x:  # micro-batches
            model(part).float().sum().backward()
        loads = block.loads.clone()
        worst.append(loads.max().item())
        bias = block.gate.e_score_correction_bias.clone()
        optimizer.step()
        assert torch.equal(block.gate.e_score_correction_bias, bias + 0.03 * (30 - loads).sign())
        assert loads.sum() == 120 and not block.loads.any()
    assert worst[0] > 50 and worst[-1] < 36, worst
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items() if "correction" not in n)
    assert model.state_dict().keys() == before.keys()
    with torch.no_grad():
        model(x)
    model.eval()(x)
    assert not block.loads.any()
    handle.remove()
    bias = block.gate.e_score_correction_bias.clone()
    model.train()(x)
    optimizer.step()
    assert torch.equal(block.gate.e_score_correction_bias, bias) and block.loads.sum() == 120


def test_repeated_and_compiled_passes(device):
    block = skewed(device)
    block.count_loads()
    x = torch.randn(12, 128, device=device, dtype=torch.bfloat16, requires_grad=True)
    want = block(x)
    loads = block.loads.clone()
    torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False).sum().backward()
    assert any(torch.equal(block.loads, times * loads) for times in (2, 3))
    block.loads.zero_()
    torch._dynamo.reset()
    assert torch.equal(torch.compile(block, fullgraph=True, backend="aot_eager")(x), want)
    assert torch.equal(block.loads, loads)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(loads, bias):
        sonicmoe_go.update_selection_bias(loads, bias, BIASED, 0.5)
        return bias * 1

    assert step(loads.clone(), torch.zeros(4, device=device)).tolist() == (0.5 * (6 - loads).sign()).tolist()


@pytest.mark.parametrize("family", ["deepseek_v3", "ernie4_5_moe"])
def test_blocks_of_transformers_balance(device, family):
    """The step changes the selection bias of the block itself."""
    block = block_of(family, device)
    ours = sonicmoe_go.SonicMoE.from_hf(block).train()
    (bias,) = (t for n, t in (*block.named_buffers(), *block.named_parameters()) if "correction" in n)
    optimizer = torch.optim.SGD([p for p in ours.parameters() if p.requires_grad], lr=0)
    sonicmoe_go.balance_selection(ours, optimizer, rate=0.5)
    if bias.dtype is not torch.float32:
        with pytest.raises(sonicmoe_go.ArgumentError, match="the selection bias is torch.bfloat16, must be torch.float32"):
            optimizer.step()
        bias.data = bias.data.float()
    before = bias.clone()
    ours(torch.randn(24, 128, device=device, dtype=torch.bfloat16)).sum().backward()
    loads = ours.loads.clone()
    optimizer.step()
    assert loads.sum() == 48 and torch.equal(bias.view(-1), before.view(-1) + 0.5 * (12 - loads).sign())


def test_wrong_balancing(device):
    x, router, w1, w2 = tensors(device)
    with pytest.raises(sonicmoe_go.ArgumentError, match="sequence is 7, must be 0, or a divisor of the 24 tokens"):
        sonicmoe_go.moe(x, router, w1, w2, CONFIG, balance=1.0, sequence=7)
    with pytest.raises(sonicmoe_go.ArgumentError, match="loads is \\[3\\], must be \\[4\\]"):
        sonicmoe_go.moe(x, router, w1, w2, CONFIG, loads=torch.zeros(3, dtype=torch.int32, device=device))
    with pytest.raises(sonicmoe_go.ArgumentError, match="loads is torch.int64, must be torch.int32"):
        sonicmoe_go.moe(x, router, w1, w2, CONFIG, loads=torch.zeros(4, dtype=torch.int64, device=device))
    loads, bias = torch.zeros(4, dtype=torch.int32, device=device), torch.zeros(4, device=device)
    with pytest.raises(sonicmoe_go.ArgumentError, match="rate is NaN, must be a finite step"):
        sonicmoe_go.update_selection_bias(loads, bias, BIASED, float("nan"))
    with pytest.raises(sonicmoe_go.ArgumentError, match="Config.selection_bias is false"):
        sonicmoe_go.update_selection_bias(loads, bias, CONFIG)
    with pytest.raises(sonicmoe_go.ArgumentError, match="balance_by is 'token', must be 'batch' or 'sequence'"):
        sonicmoe_go.SonicMoE(128, 64, 4, 2, balance_by="token")
    plain = sonicmoe_go.SonicMoE(128, 64, 4, 2, device=device)
    with pytest.raises(sonicmoe_go.ArgumentError, match="no SonicMoE with a selection bias"):
        sonicmoe_go.balance_selection(plain, torch.optim.SGD(plain.parameters()))
    with pytest.raises(sonicmoe_go.ArgumentError, match="the layer has no selection bias"):
        plain.update_selection_bias()
    with pytest.raises(sonicmoe_go.ArgumentError, match="must do so after count_loads"):
        skewed(device).update_selection_bias()


def _rank(rank, file, device):
    sonicmoe_go.emulate()
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    block = sonicmoe_go.SonicMoE(128, 64, 4, 2, score="sigmoid", selection_bias=True, device=device)
    optimizer = torch.optim.SGD(block.parameters(), lr=0)
    sonicmoe_go.balance_selection(block, optimizer, rate=0.5)
    block.loads.copy_(torch.tensor([[9, 0, 1, 2], [0, 9, 1, 6]][rank]))
    optimizer.step()
    assert block.gate.e_score_correction_bias.tolist() == [-0.5, -0.5, 0.5, -0.5], block.gate.e_score_correction_bias
    torch.distributed.destroy_process_group()


def test_ranks_sum_their_loads(tmp_path, device):
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("this torch has no gloo")
    torch.multiprocessing.spawn(_rank, (tmp_path / "ranks", device), nprocs=2)


@pytest.mark.skipif("not torch.cuda.is_available()")
def test_a_graph_captures_balancing(device):
    """A graph captures a step of two micro-batches, including their losses of sequences and the
    step of the bias."""
    if device != "cuda":
        pytest.skip("captures are of a GPU's streams")
    block = skewed(device, balance=0.1, balance_by="sequence")
    again = skewed(device, balance=0.1, balance_by="sequence")
    again.load_state_dict(block.state_dict())
    x = torch.randn(2, 3, 10, 128, device=device, dtype=torch.bfloat16)
    assert _plans._exchange()

    def step(block):
        grads = [torch.autograd.grad(block(part).float().sum(), block.experts.down_proj)[0] for part in x]
        block.update_selection_bias(0.03)
        return grads

    for b in (block, again):
        b.count_loads()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step(block)
    torch.cuda.synchronize()
    block.load_state_dict(again.state_dict())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = step(block)
    for _ in range(12):
        graph.replay()
        want = step(again)
        torch.cuda.synchronize()
        assert all(map(torch.equal, got, want))
        assert torch.equal(block.gate.e_score_correction_bias, again.gate.e_score_correction_bias)
    assert block.gate.e_score_correction_bias.abs().max() > 0.2
