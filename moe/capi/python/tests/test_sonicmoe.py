"""Tests the package under the name of SonicMoE's package, and arguments that its versions added."""

import contextlib
import os
import subprocess
import sys

import pytest
import torch
from reference import distance, experts, wide

import sonicmoe_go
from sonicmoe_go import sonicmoe

# A program for SonicMoE. It imports names in the same way as SonicMoE's own tests and examples.
PROGRAM = """
import sys, torch
import sonicmoe_go
if {emulated}: sonicmoe_go.emulate()
assert sonicmoe_go.install_as_sonicmoe() and sonicmoe_go.install_as_sonicmoe()
from sonicmoe import MoE, KernelBackendMoE, count_cumsum, enable_quack_gemm, moe_TC_softmax_topk_layer, moe_general_routing_inputs
from sonicmoe.count_cumsum import count_cumsum as same
from sonicmoe.enums import LIBRARY_NAME, TENSORMAP, ActivationType, is_glu
from sonicmoe.functional import moe_TC_softmax_topk_layer
from sonicmoe.moe import Experts
from sonicmoe.utils import ceil_divide, get_next_power_of_2
import sonicmoe, sonicmoe.enums, sonicmoe.functional, sonicmoe.utils
assert same is count_cumsum is sonicmoe.count_cumsum and sonicmoe.enums.ActivationType is ActivationType
assert is_glu(ActivationType.GEGLU) and not is_glu(ActivationType.GELU) and sonicmoe.__version__.startswith("0.1.")
torch.manual_seed(1)
with torch.device({device!r}):
    moe = MoE(num_experts=4, num_experts_per_tok=2, hidden_size=128, intermediate_size=64,
              activation_function=ActivationType.SWIGLU, add_bias=False, std=0.1).to(dtype=torch.bfloat16)
    x = torch.randn(24, 128, dtype=torch.bfloat16, requires_grad=True)
with enable_quack_gemm(False):
    y, aux = moe(x, kernel_backend_moe=KernelBackendMoE.sonicmoe)
y.sum().backward()
want, same = moe(x, kernel_backend_moe=KernelBackendMoE.torch)
assert x.grad.any() and ((y - want).float().norm() / want.float().norm()) < 0.2 and moe.stream_id == 0
print("ran")
"""


def test_programs_for_sonicmoe(device):
    program = PROGRAM.format(emulated=device == "cpu", device=device)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout == "ran\n", done.stderr


def test_an_installed_sonicmoe_stays(tmp_path):
    """A folder without a package must not count as SonicMoE's package."""
    code = "import sonicmoe_go; print(sonicmoe_go.install_as_sonicmoe()); import sonicmoe; print(sonicmoe.__name__)"
    for name, want in (("none", "True\nsonicmoe_go.sonicmoe\n"), ("__init__.py", "False\nsonicmoe\n")):
        (tmp_path / "sonicmoe").mkdir(exist_ok=True)
        (tmp_path / "sonicmoe" / name).write_text("")
        path = os.pathsep.join([str(tmp_path), *sys.path])
        done = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=300)
        assert done.stdout == want, done.stderr


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", list(sonicmoe.ActivationType), ids=lambda k: k.value)
def test_the_torch_backend(device, kind, bias):
    """The two backends must give the same outputs, gradients and loss, except for tokens with equal
    logits."""
    compare_backends(device, kind, bias, torch.bfloat16)


def test_the_torch_backend_in_f16(device):
    """The logits must be rounded to the type of the weights."""
    assert compare_backends(device, sonicmoe.ActivationType.SWIGLU, True, torch.float16) is torch.float16


def compare_backends(device, kind, bias, dtype):
    """Compares the two backends and returns the type of the logits."""
    block = sonicmoe.MoE(5, 3, 128, 64, kind, bias, 0.09).to(device, dtype)
    with torch.no_grad():
        block.router.weight.normal_(std=0.3)
        for b in [block.c_fc.bias, block.c_proj.bias] if bias else []:
            b.normal_()
    x = torch.randn(2, 20, 128, device=device, dtype=dtype, requires_grad=True)
    d_o = torch.randn_like(x)
    passes = []
    for backend in sonicmoe.KernelBackendMoE.sonicmoe, sonicmoe.KernelBackendMoE.torch:
        o, aux = block(x, backend)
        passes.append([o, *torch.autograd.grad((o * d_o).sum(), (x, block.c_fc.weight, block.c_proj.weight))])
        passes[-1].append(aux[None])
    for got, want in zip(*passes):
        rows = ((got - want).double().norm(dim=-1) / want.double().norm(dim=-1).clamp(min=1e-9)).flatten()
        assert rows.median() < 1.5e-2, rows.median()
    assert not block.eval()(x, sonicmoe.KernelBackendMoE.torch)[0].requires_grad
    weights = block.c_fc.weight.permute(1, 2, 0), block.c_fc.bias, block.c_proj.weight.permute(1, 2, 0), block.c_proj.bias
    return sonicmoe.moe_TC_softmax_topk_layer(x.flatten(0, 1), block.router.weight, *weights, 3, 0, kind, True)[1].dtype


@pytest.mark.parametrize("concat", [False, True])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("over_topk", [False, True])
def test_scores_and_layouts(device, over_topk, norm, concat):
    """Compares the arguments of version 0.1.2 with float64, including gradients."""
    w1, w2 = torch.randn(4, 128, 128) * 0.09, torch.randn(4, 128, 64) * 0.12
    of = [t.bfloat16().to(device).requires_grad_() for t in (torch.randn(24, 128), torch.randn(4, 128) * 0.09, w1, w2)]
    o, logits, frequency = sonicmoe.moe_TC_softmax_topk_layer(
        of[0], of[1], of[2].permute(1, 2, 0), None, of[3].permute(1, 2, 0), None, 2, 0,
        is_softmax_over_topk=over_topk, norm_topk_probs=norm, concat_layout=concat,
    )  # fmt: skip
    ws = wide(*of)
    ids = torch.sort(logits.detach().cpu().float(), dim=-1, descending=True, stable=True).indices[:, :2]
    want_logits = ws[0] @ ws[1].T
    chosen = (want_logits if over_topk else want_logits.softmax(-1)).gather(1, ids)
    scores = chosen.softmax(-1) if over_topk else chosen / chosen.sum(-1, keepdim=True) if norm else chosen
    want = experts(ws[0], scores, ids, *ws[2:], interleaved=not concat)
    assert distance(o, want) < 6e-3 and distance(logits, want_logits) < 6e-3
    assert frequency.tolist() == torch.bincount(ids.flatten(), minlength=4).tolist()
    d_o = torch.randn_like(o)
    got = torch.autograd.grad((o * d_o).sum(), of)
    for g, w in zip(got, torch.autograd.grad((want * d_o.double().cpu()).sum(), ws)):
        assert distance(g, w) < 1e-2
    i = torch.arange(24, dtype=torch.int32, device=device)
    ones = torch.ones(24, device=device)
    o, frequency = sonicmoe.moe_general_routing_inputs(
        of[0], ones, i, i % 4, of[2].permute(1, 2, 0), None, of[3].permute(1, 2, 0), None, 4, 0, "swiglu", concat_layout=concat
    )
    assert distance(o, experts(ws[0], ones[:, None].double().cpu(), i[:, None].cpu() % 4, *ws[2:], interleaved=not concat)) < 6e-3
    assert frequency.tolist() == [6] * 4


@contextlib.contextmanager
def f32_autocast(device):
    """Sets torch.autocast to FP32, which torch does not allow for CPU tensors."""
    before = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, torch.float32)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, before[0])
        torch.set_autocast_dtype(device, before[1])
        torch.clear_autocast_cache()


@pytest.mark.parametrize("compiled", [False, True])
def test_autocast_to_f32(device, compiled):
    """The router's logits must then be FP32, and decide where bf16 logits are equal. SonicMoE's own
    test calls the layer in the same way."""
    block = sonicmoe.MoE(4, 2, 128, 64, "swiglu", False, 0.1).to(device, torch.bfloat16)
    with torch.no_grad():
        block.router.weight[1:] = block.router.weight[0]
        block.router.weight[1:, 0] *= torch.tensor([1.01, 1.02, 1.03], device=device).bfloat16()
    x = torch.randn(24, 128, device=device, dtype=torch.bfloat16)
    torch._dynamo.reset()
    run = torch.compile(block, fullgraph=True, backend="aot_eager") if compiled else block
    with f32_autocast(device):
        (got, aux), (want, want_aux) = run(x), block(x, sonicmoe.KernelBackendMoE.torch)
    assert distance(got, want.double().cpu()) < 1e-2 and distance(aux, want_aux.double().cpu()) < 1e-5
    assert distance(got, block(x)[0].double().cpu()) > 0.1


def test_counts_of_ties(device):
    """The counts must follow the kernels' choice among equal logits: the lower expert."""
    block = sonicmoe.MoE(4, 2, 128, 64, "swiglu", False, 0.1).to(device, torch.bfloat16)
    x = torch.zeros(24, 128, device=device, dtype=torch.bfloat16)
    for inference in (False, True):
        *_, frequency = sonicmoe.moe_TC_softmax_topk_layer(
            x, block.router.weight, block.c_fc.weight.permute(1, 2, 0), None, block.c_proj.weight.permute(1, 2, 0), None, 2, 0, "swiglu", inference
        )
        assert frequency.tolist() == [24, 24, 0, 0]


def test_count_cumsum(device):
    x = torch.randint(0, 9, (500,), device=device)
    count, total = torch.compile(sonicmoe.count_cumsum, fullgraph=True, backend="aot_eager")(x, E=9)
    assert count.tolist() == torch.bincount(x, minlength=9).tolist() and total.tolist() == count.cumsum(0).tolist()
    assert torch.equal(sonicmoe.count_cumsum(x.int(), 9, do_cumsum=False), count) and count.dtype == total.dtype == torch.int32


def test_utils():
    from sonicmoe_go.sonicmoe import utils

    assert [utils.ceil_divide(n, 4) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert [utils.get_next_power_of_2(n) for n in (1, 2, 3, 64, 65)] == [1, 2, 4, 64, 128]
    assert utils.get_powers_of_2(4, 32) == [4, 8, 16, 32] and utils.check_power_of_2(1) and not utils.check_power_of_2(0)
    assert utils.divide_if_divisible(12, 4) == 3
    x = torch.zeros(3, 2).T
    assert utils.ensure_contiguous(lambda a, b: a.is_contiguous() and b["c"].is_contiguous())(x, b={"c": x})
    for wrong in (lambda: utils.divide_if_divisible(12, 5), lambda: utils.get_powers_of_2(3, 8)):
        with pytest.raises(sonicmoe_go.ArgumentError, match="must be a"):
            wrong()
