"""Compiles the Triton kernels below to PTX, beside this file as triton_*.ptx.

It needs no GPU: pip install triton==3.9.0, then "python3 kernels.py". The PTX
stands in the repository, so that the tests need neither.
"""

import os

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HERE = os.path.dirname(os.path.abspath(__file__))


@triton.jit
def add(out, a, b, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    m = i < n
    tl.store(out + i, tl.load(a + i, mask=m) + tl.load(b + i, mask=m), mask=m)


@triton.jit
def softmax(out, a, n, B: tl.constexpr):
    r = tl.program_id(0)
    i = tl.arange(0, B)
    m = i < n
    x = tl.load(a + r * n + i, mask=m, other=-float("inf"))
    e = tl.exp(x - tl.max(x, 0))
    tl.store(out + r * n + i, e / tl.sum(e, 0), mask=m)


@triton.jit
def layernorm(out, a, n, B: tl.constexpr):
    r = tl.program_id(0)
    i = tl.arange(0, B)
    m = i < n
    x = tl.load(a + r * n + i, mask=m, other=0.0)
    mean = tl.sum(x, 0) / n
    d = tl.where(m, x - mean, 0.0)
    v = tl.sum(d * d, 0) / n
    tl.store(out + r * n + i, d / tl.sqrt(v + 1e-5), mask=m)


@triton.jit
def scan(out, a, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, tl.cumsum(tl.load(a + i), 0))


@triton.jit
def count(out, a, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    m = i < n
    tl.atomic_add(out + (tl.load(a + i, mask=m) & 31), 1, mask=m)


@triton.jit
def scale(out, a, f, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    m = i < n
    tl.store(out + i, (tl.load(a + i, mask=m).to(tl.float32) * f).to(tl.bfloat16), mask=m)


@triton.jit
def matmul(c, a, b, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rm[:, None] * K + (k + rk)[None, :])
        y = tl.load(b + (k + rk)[:, None] * N + rn[None, :])
        acc = tl.dot(x, y, acc)
    tl.store(c + rm[:, None] * N + rn[None, :], acc.to(tl.float16))


def compile(name, fn, signature, **constants):
    signature = dict(signature, **{c: "constexpr" for c in constants})
    kernel = triton.compile(ASTSource(fn=fn, signature=signature, constexprs=constants), target=GPUTarget("cuda", 90, 32))
    with open(os.path.join(HERE, "triton_" + name + ".ptx"), "w") as out:
        out.write(kernel.asm["ptx"].replace(HERE, ".").replace(os.path.dirname(triton.__file__), "triton"))


def main():
    f32, f16, i32 = "*fp32", "*fp16", "i32"
    compile("add", add, {"out": f32, "a": f32, "b": f32, "n": i32}, B=256)
    compile("softmax", softmax, {"out": f32, "a": f32, "n": i32}, B=256)
    compile("layernorm", layernorm, {"out": f32, "a": f32, "n": i32}, B=256)
    compile("scan", scan, {"out": "*i32", "a": "*i32"}, B=256)
    compile("count", count, {"out": "*i32", "a": "*i32", "n": i32}, B=256)
    compile("scale", scale, {"out": "*bf16", "a": "*bf16", "f": "fp32", "n": i32}, B=512)
    sizes = {"M": i32, "N": i32, "K": i32}
    compile("matmul", matmul, {"c": f16, "a": f16, "b": f16, **sizes}, BM=64, BN=64, BK=32)
    compile("matmul16", matmul, {"c": f16, "a": f16, "b": f16, **sizes}, BM=16, BN=16, BK=16)


main()
