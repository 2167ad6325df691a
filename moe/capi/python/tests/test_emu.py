"""Tests emu: kernels of any PTX text and of Triton on the emulator, and the fixtures for pytest."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

from sonicmoe_go import ArgumentError, emu

# scale writes factor * x to y, for the first n numbers. With BARRIER, thread i takes the number of
# thread i ^ 32 of its CTA.
SCALE = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry scale(.param .u64 x, .param .u64 y, .param .f32 factor, .param .u32 n)
{
	.shared .align 4 .b8 words[256];
	.reg .pred %p<1>;
	.reg .b32 %r<8>;
	.reg .f32 %f<4>;
	.reg .b64 %d<4>;
	mov.u32 %r0, %tid.x;
	mov.u32 %r1, %ctaid.x;
	mad.lo.u32 %r2, %r1, 64, %r0;
	shl.b32 %r3, %r0, 2;
	mov.u32 %r4, words;
	add.u32 %r5, %r4, %r3;
	ld.param.u64 %d0, [x];
	ld.param.u64 %d1, [y];
	mad.wide.u32 %d0, %r2, 4, %d0;
	mad.wide.u32 %d1, %r2, 4, %d1;
	st.shared.u32 [%r5], 0;
	bar.sync 0;
	ld.global.f32 %f0, [%d0];
	st.shared.f32 [%r5], %f0;
	BARRIER
	xor.b32 %r3, %r3, 128;
	add.u32 %r5, %r4, %r3;
	ld.shared.f32 %f1, [%r5];
	ld.param.f32 %f2, [factor];
	mul.f32 %f1, %f1, %f2;
	ld.param.u32 %r6, [n];
	setp.ge.u32 %p0, %r2, %r6;
	@%p0 bra end;
	st.global.f32 [%d1], %f1;
end:
	ret;
}
"""
GOOD, RACE = SCALE.replace("BARRIER", "bar.sync 0;"), SCALE.replace("BARRIER", "")


def swapped(x, factor):
    return np.float32(factor) * x.reshape(-1, 2, 32)[:, ::-1].reshape(-1)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_check_writes_arrays(kind):
    x = np.arange(128, dtype=np.float32)
    y = np.full(128, -1, dtype=np.float32)
    args = (x, y) if kind == "numpy" else (torch.from_numpy(x), torch.from_numpy(y))
    assert emu.check(GOOD, (2,), (64,), [*args, 0.5, 100]) == []
    want = swapped(x, 0.5)
    want[100:] = -1
    np.testing.assert_array_equal(y, want)
    assert emu.check(GOOD.encode(), 2, 64, [x, y, np.float32(2), np.uint32(128)], kernel="scale", orders=0) == []
    np.testing.assert_array_equal(y, swapped(x, 2))
    emu.check(GOOD, 2, 64, [x, y, 2.0, 128], explore=3)


def test_check_finds_races():
    x, y = np.ones(64, dtype=np.float32), np.zeros(64, dtype=np.float32)
    with pytest.raises(emu.Mistake, match="race: ") as caught:
        emu.check(RACE, 1, 64, [x, y, 1.0, 64])
    found = caught.value.findings
    assert {f.rule for f in found} == {"race"} and found[0].kernel == "scale" and found[0].runs >= 1
    assert emu.check(RACE, 1, 64, [x, y, 1.0, 64], orders=0) == []
    assert emu.check(RACE, 1, 64, [x, y, 1.0, 64], known=[f"{f.line} {f.rule}" for f in found]) == []
    with pytest.raises(emu.Mistake, match="out of bounds: .* run past the end|bytes past the end"):
        emu.check(GOOD, 2, 64, [x, y, 1.0, 128])


def test_tensor_map():
    ptx = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry box(.param .align 64 .b8 map[128], .param .u64 out)
{
	.shared .align 128 .b8 tile[128];
	.shared .align 8 .b64 full;
	.reg .pred %p<2>;
	.reg .b32 %r<8>;
	.reg .b64 %d<4>;
	mov.u32 %r0, %tid.x;
	mov.u32 %r1, full;
	mov.u32 %r2, tile;
	setp.ne.u32 %p0, %r0, 0;
	@%p0 bra wait;
	mbarrier.init.shared::cta.b64 [%r1], 1;
	fence.mbarrier_init.release.cluster;
	mov.b64 %d0, map;
	cvta.param.u64 %d0, %d0;
	mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 128;
	mov.u32 %r3, 4;
	mov.u32 %r4, 8;
	cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r2], [%d0, {%r3, %r4}], [%r1];
wait:
	bar.sync 0;
again:
	mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;
	@!%p1 bra again;
	shl.b32 %r5, %r0, 2;
	add.u32 %r5, %r5, %r2;
	ld.shared.u32 %r6, [%r5];
	ld.param.u64 %d1, [out];
	mad.wide.u32 %d1, %r0, 4, %d1;
	st.global.u32 [%d1], %r6;
	ret;
}
"""
    x, out = np.arange(16 * 20, dtype=np.int32).reshape(20, 16), np.zeros((8, 4), dtype=np.int32)
    assert emu.check(ptx, 1, 32, [emu.TensorMap(x, box=(8, 4)), out]) == []
    np.testing.assert_array_equal(out, x[8:16, 4:8])
    with pytest.raises(ArgumentError, match="as many extents as dimensions"):
        emu.check(ptx, 1, 32, [emu.TensorMap(x, box=(8,)), out])


@pytest.mark.parametrize(
    "args, options, match",
    [
        (lambda x: [x, x, 1.0], {}, "3, the kernel takes 4"),
        (lambda x: [x, x, 1.0, 1 << 32], {}, "does not fit"),
        (lambda x: [x, x, "two", 4], {}, "must be an array, a number"),
        (lambda x: [x[::2], x, 1.0, 4], {}, "not contiguous"),
        (lambda x: [x[:9], x[8:], 1.0, 4], {}, "overlap"),
        (lambda x: [x, x[:0], 1.0, 4], {}, "no elements"),
        (lambda x: [x, x, 1.0, 4], {"kernel": "other"}, 'the PTX has .*"scale"'),
        (lambda x: [x, x, 1.0, 4], {"fail": "never"}, "must be one of error"),
        (lambda x: [x, x, 1.0, 4], {"orders": -1}, "check or explore"),
    ],
)
def test_wrong_arguments(args, options, match):
    with pytest.raises(ArgumentError, match=match):
        emu.check(GOOD, 1, 64, args(np.zeros(64, dtype=np.float32)), **options)
    with pytest.raises(ArgumentError, match="ptx"):
        emu.check("nonsense", 1, 1)


TRITON = """
import pytest
import torch
import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + at, mask=at < n)
    tl.store(out + at, a + tl.load(y + at, mask=at < n), mask=at < n)


@triton.jit
def matmul(a, b, out, N: tl.constexpr):
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    tl.store(out + i * N + j, tl.dot(tl.load(a + i * N + j), tl.load(b + i * N + j)))


@triton.jit
def clash(out):
    tl.store(out + tl.arange(0, 64), tl.program_id(0))


@triton.autotune([triton.Config({}, num_warps=4), triton.Config({}, num_warps=8)], key=["n"])
@triton.jit
def total(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out, tl.sum(tl.load(x + i, mask=i < n, other=0.0)))


def test_total(emulated_triton):
    x, out = torch.rand(700), torch.zeros(1)
    total[(1,)](x, out, 700, BLOCK=1024)
    torch.testing.assert_close(out[0], x.sum())


def test_add(emulated_triton):
    x, y = torch.randn(1000), torch.randn(1000)
    out = torch.full((1000,), float("nan"))
    add[(triton.cdiv(1000, 256),)](x, y, out, 1000, BLOCK=256)
    assert torch.equal(out, x + y)


def test_matmul(emulated_triton):
    a, b = torch.randn(64, 64).bfloat16(), torch.randn(64, 64).bfloat16()
    out = torch.zeros(64, 64)
    matmul[(1,)](a, b, out, N=64)
    torch.testing.assert_close(out, a.float() @ b.float(), rtol=1e-3, atol=1e-3)


def test_clash(emulated_triton):
    clash[(2,)](torch.zeros(64, dtype=torch.int32))
"""


def test_triton_by_pytest(tmp_path):
    """Runs Triton kernels with the fixture: three are right, and two CTAs of the third write the same
    words. One of the right ones is autotuned and adds over warps."""
    pytest.importorskip("triton")
    (tmp_path / "test_kernels.py").write_text(textwrap.dedent(TRITON))
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "sonicmoe_go.emu_pytest", "--emu-orders", "1", "test_kernels.py"],
        cwd=tmp_path, env=os.environ | {"TRITON_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert "1 failed, 3 passed" in ran.stdout, ran.stdout + ran.stderr
    assert "Mistake: error: kernel clash" in ran.stdout and "race: " in ran.stdout, ran.stdout
