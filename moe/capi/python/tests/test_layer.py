"""Compares outputs and gradients with float64, for every way to call a layer."""

import dataclasses

import pytest
import torch
from reference import CONFIG, distance, experts, layer, tensors, topk, wide

import sonicmoe_go
from sonicmoe_go import _ops, _weights


def gradients(loss, *of):
    return torch.autograd.grad(loss, of)


def near(got, want, bound=6e-3):
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        assert distance(g, w) < bound, f"{i}: {distance(g, w)}"


def truth(ts, d_o, d_logits=None, config=CONFIG):
    """Computes output and gradients in float64."""
    ws = wide(*ts)
    ids = topk(ts[0].cpu(), ts[1].cpu(), config.top_k)
    o, logits = layer(*ws, ids)
    loss = (o * d_o.double().cpu()).sum()
    if d_logits is not None:
        loss = loss + (logits * d_logits.double().cpu()).sum()
    return o, gradients(loss, *ws)


# Some of these widths end inside tiles of 64.
@pytest.mark.parametrize(("hidden", "intermediate"), [(128, 64), (144, 80)])
def test_forward_and_gradients(device, hidden, intermediate):
    config = dataclasses.replace(CONFIG, hidden=hidden, intermediate=intermediate)
    ts = tensors(device, config)
    d_o = torch.randn_like(ts[0])
    o, none = sonicmoe_go.moe(*ts, config)
    assert none is None
    want, grads = truth(ts, d_o, config=config)
    near([o], [want])
    near(gradients((o * d_o).sum(), *ts), grads, 1e-2)


def test_weights_on_another_device_are_refused(device):
    x, *given = tensors(device)
    of, rest = _weights.shapes(CONFIG), iter(given)
    weights = [None if dtype is None else next(rest) for _, dtype, _ in of]
    _weights.check(CONFIG, x, of, weights)
    for i, (name, dtype, _) in enumerate(of):
        if dtype is not None:
            with pytest.raises(sonicmoe_go.ArgumentError, match=f"{name} is on meta, must be on"):
                _weights.check(CONFIG, x, of, [*weights[:i], weights[i].to("meta"), *weights[i + 1 :]])


def test_logits_are_differentiable(device):
    ts = tensors(device)
    d_o, d_l = torch.randn_like(ts[0]), torch.randn(24, 4, device=device)
    o, logits = sonicmoe_go.moe(*ts, CONFIG, logits=True)
    near([logits], [wide(ts[0])[0] @ wide(ts[1])[0].T])
    _, grads = truth(ts, d_o, d_l)
    near(gradients((o * d_o).sum() + (logits * d_l).sum(), *ts), grads, 1e-2)


def test_logits_alone(device):
    ts = tensors(device)
    _, logits = sonicmoe_go.moe(*ts, CONFIG, logits=True)
    got = gradients(logits.float().square().sum(), *ts)
    x, router = wide(*ts[:2])
    near(got[:2], gradients((x @ router.T).square().sum(), x, router), 1e-2)
    assert all(not g.any() for g in got[2:])


def test_losses_on_the_router(device):
    ts = tensors(device)
    d_o = torch.randn_like(ts[0])
    o, _ = sonicmoe_go.moe(*ts, CONFIG, balance=0.7, z_loss=0.3)
    got = gradients((o * d_o).sum(), *ts)
    ws = wide(*ts)
    ids = topk(ts[0].cpu(), ts[1].cpu(), 2)
    want, logits = layer(*ws, ids)
    count = torch.bincount(ids.flatten(), minlength=4).double()
    balance = 4 / (2 * 24) * (count * logits.softmax(-1).mean(0)).sum()
    z_loss = logits.logsumexp(-1).square().mean()
    near(got, gradients((want * d_o.double().cpu()).sum() + 0.7 * balance + 0.3 * z_loss, *ws), 1e-2)


def routing(device, tokens=24):
    """Returns scores whose sum need not be 1, and ids of which some are invalid or repeated."""
    scores = torch.randn(tokens, 2, device=device, requires_grad=True)
    ids = torch.randint(-1, 5, (tokens, 2), dtype=torch.int32)
    ids[0] = 3
    return scores, ids.to(device)


def test_experts_with_given_routing(device):
    x, _, w1, w2 = tensors(device)
    scores, ids = routing(device)
    d_o = torch.randn_like(x)
    o = sonicmoe_go.moe_experts(x, scores, ids, w1, w2, CONFIG)
    ws = wide(x, scores, w1, w2)
    want = experts(ws[0], ws[1], ids.cpu(), *ws[2:])
    near([o], [want])
    near(gradients((o * d_o).sum(), x, scores, w1, w2), gradients((want * d_o.double().cpu()).sum(), *ws), 1e-2)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("order", ["out-in", "in-out"])
@pytest.mark.parametrize("gate_up", ["concatenated", "apart"])
def test_biases_and_orders(device, gate_up, order, given):
    """Tests layers with biases, with gate and up in two tensors, and with the other order of
    weights. The router or the caller routes."""
    c = dataclasses.replace(CONFIG, bias=True, gate_up=gate_up, weight_order=order)
    x, router, w1, w2 = tensors(device)
    b1, b2 = (torch.randn(4, n, device=device, dtype=torch.bfloat16, requires_grad=True) for n in (128, 128))
    scores, ids = routing(device)
    d_o = torch.randn_like(x)

    def stored(w):
        return w.mT.contiguous() if order == "in-out" and w.dim() == 3 else w.contiguous()

    up = [[stored(part) for part in w.chunk(2, dim=1)] if gate_up == "apart" else [stored(w), None] for w in (w1, b1)]
    (u, w3), (bu, b3) = up
    weights = {"w1": u, "w2": stored(w2), "w3": w3, "b1": bu, "b3": b3, "b2": b2}
    ws = wide(x, scores if given else router, w1, w2, b1, b2)
    if given:
        o = sonicmoe_go.moe_experts(x, scores, ids, config=c, **weights)
        want = experts(ws[0], ws[1], ids.cpu(), *ws[2:])
    else:
        o = sonicmoe_go.moe(x, router, config=c, **weights)[0]
        want = layer(*ws[:4], topk(x.cpu(), router.cpu(), 2), b1=ws[4], b2=ws[5])[0]
    near([o], [want])
    of = (x, scores if given else router, w1, w2, b1, b2)
    near(gradients((o * d_o).sum(), *of), gradients((want * d_o.double().cpu()).sum(), *ws), 1e-2)


def test_biases_into_main_grad(device):
    c = dataclasses.replace(CONFIG, bias=True)
    x, router, w1, w2 = tensors(device)
    b1, b2 = (torch.randn(4, 128, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    want = gradients(sonicmoe_go.moe(x, router, w1, w2, c, b1=b1, b2=b2)[0].sum(), b1, b2)
    for b in (b1, b2):
        b.main_grad = torch.ones(b.shape, device=device)
    sonicmoe_go.moe(x, router, w1, w2, c, b1=b1, b2=b2)[0].sum().backward()
    assert b1.grad is None and b2.grad is None
    near([b.main_grad for b in (b1, b2)], [1 + g.double().cpu() for g in want], 5e-3)


def test_only_wanted_gradients(device):
    x, router, w1, w2 = tensors(device)
    for t in (x, router, w1):
        t.requires_grad_(False)
    d_o = torch.randn_like(x)
    o, _ = sonicmoe_go.moe(x, router, w1, w2, CONFIG)
    (o * d_o).sum().backward()
    assert x.grad is None and router.grad is None and w1.grad is None
    x.requires_grad_()
    ws = wide(x, router, w1, w2)
    near([w2.grad], gradients((layer(*ws, topk(x.cpu(), router.cpu(), 2))[0] * d_o.double().cpu()).sum(), ws[3]), 1e-2)


def test_training_and_inference_give_the_same_bits(device):
    ts = tensors(device)
    with torch.no_grad():
        inferred, _ = sonicmoe_go.moe(*ts, CONFIG)
    trained, _ = sonicmoe_go.moe(*ts, CONFIG)
    assert torch.equal(inferred, trained) and not inferred.requires_grad and trained.requires_grad


def test_accumulation_into_grad_and_main_grad(device):
    ts = tensors(device)
    d_o = torch.randn_like(ts[0])
    want = truth(ts, d_o)[1]
    for _ in range(2):
        (sonicmoe_go.moe(*ts, CONFIG)[0] * d_o).sum().backward()
    near([t.grad for t in ts], [2 * w for w in want], 1e-2)

    for t in ts:
        t.grad = None
    for w in ts[1:]:
        w.main_grad = torch.ones(w.shape, device=device)
    for _ in range(2):
        (sonicmoe_go.moe(*ts, CONFIG)[0] * d_o).sum().backward()
    assert all(w.grad is None and w.grad_added_to_main_grad for w in ts[1:])
    near([w.main_grad for w in ts[1:]], [1 + 2 * g for g in want[1:]], 5e-3)

    x, _, w1, w2 = ts
    scores, ids = routing(device)
    before = w2.main_grad.clone()
    (sonicmoe_go.moe_experts(x, scores, ids, w1, w2, CONFIG) * d_o).sum().backward()
    assert w2.grad is None and not torch.equal(before, w2.main_grad)


class Foreign:
    """An array of another library. It has only the methods of DLPack."""

    def __init__(self, t):
        self.t = t.detach()

    def __dlpack__(self, **how):
        return self.t.__dlpack__(**how)

    def __dlpack_device__(self):
        return self.t.__dlpack_device__()


def test_arrays_of_others(device):
    ts = tensors(device)
    with torch.no_grad():
        want, _ = sonicmoe_go.moe(*ts, CONFIG)
        scores, ids = routing(device)
        want_experts = sonicmoe_go.moe_experts(ts[0], scores, ids, *ts[2:], CONFIG)
    assert torch.equal(sonicmoe_go.moe(*map(Foreign, ts), CONFIG)[0], want)
    x, s, i, w1, w2 = map(Foreign, (ts[0], scores, ids, *ts[2:]))
    assert torch.equal(sonicmoe_go.moe_experts(x, s, i, w1, w2, CONFIG), want_experts)


@pytest.mark.parametrize("tokens", [0, 1, 129])
def test_token_counts(device, tokens):
    ts = tensors(device, tokens=tokens)
    o, _ = sonicmoe_go.moe(*ts, CONFIG)
    got = gradients((o * 1.0).sum(), *ts)
    assert o.shape == ts[0].shape
    if tokens == 0:
        assert all(not g.any() for g in got)
        return
    want, grads = truth(ts, torch.ones_like(ts[0]))
    near([o], [want])
    near(got, grads, 1e-2)


def of_experts(w1, w2):
    """Returns the experts' weights in the operators' order, for a config without biases."""
    return w1, None, w2, *[None] * (len(_weights.EXPERTS) - 3)


def operands(x, router, w1, w2):
    """Returns the operators' tensors, for a config without biases."""
    return x, router, None, None, None, *of_experts(w1, w2)


def test_opcheck(device):
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    op = torch.ops.sonicmoe_go

    def check(which, *args):
        torch.library.opcheck(which.default, args, test_utils=checks)

    ts = tensors(device)
    args = *operands(*ts), CONFIG.key, True, True, 0.0, 0.0, 0, False, None
    check(op.forward, *args)
    x, _, w1, w2 = ts
    scores, ids = routing(device)
    check(op.experts, x, scores, ids, None, *of_experts(w1, w2), CONFIG.key, True)
    with torch.no_grad():
        _, h, _, s, i, l, *_ = _ops.forward(*args)
        d_o, d_l = torch.randn_like(x), torch.randn(l.shape, device=device)
        into = torch.zeros_like(w1, dtype=torch.float32)
        x, router, w1, w2 = (t.detach() for t in ts)
        check(
            op.backward, d_o, d_l, *operands(x, router, w1, w2), h, None, s, i, l, None, None, None,
            CONFIG.key, 0b10000011, 0.1, 0.1, 12, 1 << 4, [into],
        )  # fmt: skip
        check(
            op.experts_backward, d_o, x, s, i, None, *of_experts(w1, w2), h, None, CONFIG.key, 0b10011, 1, [into],
        )  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_fullgraph(device, dynamic):
    ts = tensors(device)

    def step(x, router, w1, w2):
        o, logits = sonicmoe_go.moe(x * 1.0, router, w1, w2, CONFIG, logits=True)
        return o.float().sum() + logits.float().square().mean()

    # aot_eager traces forward and backward like inductor, and needs no C++ compiler.
    compiled = torch.compile(step, fullgraph=True, dynamic=dynamic, backend="inductor" if device == "cuda" else "aot_eager")
    near(gradients(compiled(*ts), *ts), [g.double().cpu() for g in gradients(step(*ts), *ts)], 1e-2)
    if dynamic:
        more = tensors(device, tokens=33)
        near([compiled(*more)], [step(*more).double().cpu()])


def test_checkpointing(device):
    ts = tensors(device)
    d_o = torch.randn_like(ts[0])

    def run(*ts):
        return sonicmoe_go.moe(*ts, CONFIG)[0]

    plain = gradients((run(*ts) * d_o).sum(), *ts)
    again = gradients((torch.utils.checkpoint.checkpoint(run, *ts, use_reentrant=False) * d_o).sum(), *ts)
    assert all(torch.equal(a, b) for a, b in zip(plain, again))


def test_passes_that_repeat(device):
    """A GPU's pass that repeats with the same addresses becomes a graph, which must read the values
    of each call. Results must have the bits of the first passes."""
    ts = tensors(device)
    values = [torch.randn_like(ts[0]) for _ in range(2)]
    want = {}
    for i in range(12):
        with torch.no_grad():
            ts[0].copy_(values[i % 2])
        o, _ = sonicmoe_go.moe(*ts, CONFIG)
        with torch.no_grad():
            inferred, _ = sonicmoe_go.moe(*ts, CONFIG)
        got = [t.cpu() for t in (o, inferred, *gradients(o.float().square().sum(), *ts))]  # the next pass gets the same memory
        del o, inferred
        assert all(torch.equal(a, b) for a, b in zip(got, want.setdefault(i % 2, got))), i
    assert not torch.equal(want[0][0], want[1][0])


@pytest.mark.skipif("not torch.cuda.is_available()")
def test_cuda_graph(device):
    if device != "cuda":
        pytest.skip("captures are of a GPU's streams")
    ts = tensors(device)
    d_o = torch.randn_like(ts[0])

    def step():
        o, _ = sonicmoe_go.moe(*ts, CONFIG)
        return o, *gradients((o * d_o).sum(), *ts)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    with torch.no_grad():
        ts[0].copy_(torch.randn_like(ts[0]))
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(out, step()))


@pytest.mark.skipif("not torch.cuda.is_available()")
def test_cuda_graph_of_inference(device):
    """A captured pass must have a workspace of its own, which passes on another stream do not
    overwrite."""
    if device != "cuda":
        pytest.skip("captures are of a GPU's streams")
    block = sonicmoe_go.SonicMoE(128, 64, 4, 2, device=device)
    x, others = (torch.randn(3, 33, 128, device=device, dtype=torch.bfloat16) for _ in range(2))
    with torch.no_grad():
        want, of_others = block(x), block(others)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = block(x)
        side = torch.cuda.Stream()
        for _ in range(20):
            got.zero_()
            side.wait_stream(torch.cuda.current_stream())
            graph.replay()
            with torch.cuda.stream(side):
                again = block(others)
            torch.cuda.synchronize()
            assert torch.equal(got, want) and torch.equal(again, of_others)
