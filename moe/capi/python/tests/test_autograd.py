"""Tests ways to differentiate or record a pass other than backward. Each must see the pass or raise
an error. None may treat the output as a constant."""

import copy

import pytest
import standin
import torch
from reference import CONFIG
from torch.autograd import forward_ad

import sonicmoe_go
from sonicmoe_go import _plans, sonicmoe


@pytest.fixture(params=["operators", "plans"])
def block(request, device, monkeypatch):
    """Returns a layer whose passes use plans if they can."""
    if request.param == "plans" and device == "cpu":
        if not _plans._exchange():
            pytest.skip("this torch has no DLPack functions for C")
        standin.use(monkeypatch)
    return sonicmoe_go.SonicMoE(128, 64, 4, 2, device=device)


def tokens(device, **how):
    return torch.randn(12, 128, device=device, dtype=torch.bfloat16, **how)


def given(x, block):
    """Runs a pass with a routing that the caller gives."""
    ids = torch.arange(24, dtype=torch.int32, device=x.device).view(12, 2) % 4
    return sonicmoe_go.moe_experts(x, torch.ones(12, 2, device=x.device), ids, block.experts.gate_up_proj, block.experts.down_proj, CONFIG)


def routed(x, block):
    return block(x)


@pytest.mark.parametrize("run", [routed, given])
@pytest.mark.parametrize("loss", [lambda y: y.float().sum(), lambda y: y.float().square().sum()], ids=["linear", "square"])
def test_gradients_of_gradients_are_an_error(device, block, run, loss):
    """A loss on gradients must not be ignored without an error."""
    x = tokens(device, requires_grad=True)
    of = (x, block.experts.gate_up_proj)
    want = torch.autograd.grad(loss(run(x, block)), of)
    y = run(x, block)
    got = torch.autograd.grad(loss(y), of, create_graph=True)
    assert all(torch.equal(a, b) and a.requires_grad for a, b in zip(got, want))
    for g in got:
        with pytest.raises(RuntimeError, match="sonicmoe_go has no gradients of gradients"):
            (g.float().square().sum() + y.float().sum()).backward(retain_graph=True)


@pytest.mark.parametrize("run", [routed, given])
@pytest.mark.parametrize("grad", [False, True])
def test_forward_mode_is_an_error(device, block, run, grad):
    """A tangent of forward mode must not be lost, even if no gradients are wanted."""
    x, frozen = tokens(device), copy.deepcopy(block).requires_grad_(False)
    for of in (block, frozen) if grad else (block,):
        with torch.set_grad_enabled(grad):
            want = run(x, of)  # the pass after this one has a plan
            with forward_ad.dual_level():
                assert torch.equal(run(x, of), want)
                with pytest.raises(NotImplementedError, match="forward mode AD"):
                    run(forward_ad.make_dual(x, x), of)


def test_transforms_are_errors(device, block):
    """Tensors of torch.func have no memory that a pass could read."""
    x, frozen = tokens(device), copy.deepcopy(block).requires_grad_(False)
    frozen(x)
    for of in (block, frozen):
        for call in (torch.func.vmap(of), torch.func.grad(lambda x: of(x).sum()), lambda x: torch.func.jvp(of, (x,), (x,))):
            with pytest.raises(RuntimeError):
                call(x[None])


@pytest.mark.filterwarnings("ignore")
@torch.no_grad()
def test_torch_jit_records_the_pass(device, block):
    """The recorded graph must contain the pass, not only its uninitialised output."""
    first, second = tokens(device), tokens(device)
    block(first)
    recorded = torch.jit.trace(block, first, check_trace=False)
    assert torch.equal(recorded(second), block(second))


def test_x_of_another_width(device, block):
    """An x of the wrong width must be refused, even if its number of elements is a whole number of
    tokens."""
    other = sonicmoe.MoE(4, 2, 128, 64, sonicmoe.ActivationType.SWIGLU, False, 0.1).to(device, torch.bfloat16)
    for shape in ((2, 6, 64), (4, 64, 2), (256,), ()):
        x = torch.zeros(shape, device=device, dtype=torch.bfloat16)
        for of in (block, other):
            for grad in (False, True):
                with torch.set_grad_enabled(grad), pytest.raises(sonicmoe_go.ArgumentError, match="must be \\[..., 128\\]"):
                    of(x)
    assert block(torch.zeros(128, device=device, dtype=torch.bfloat16)).shape == (128,)
