"""Uses a layer in JAX, forward and with gradients, by pure_callback on the emulated device.

    python jax_layer.py

A callback passes arrays by DLPack, without a copy. On a GPU, JAX itself copies the arrays to the
host and back around each callback. PyTorch's modules do not have this cost.
"""

import jax
import jax.numpy as jnp
import torch

import sonicmoe_go

CONFIG = sonicmoe_go.Config(hidden=128, intermediate=64, num_experts=4, top_k=2)


def jax_of(t: torch.Tensor) -> jax.Array:
    return jnp.from_dlpack(t.detach().contiguous())


def forward(*arrays):
    return jax_of(sonicmoe_go.moe(*arrays, CONFIG)[0])


def backward(d_o, *arrays):
    tensors = [torch.from_dlpack(a).requires_grad_() for a in arrays]
    o, _ = sonicmoe_go.moe(*tensors, CONFIG)
    return tuple(map(jax_of, torch.autograd.grad(o, tensors, torch.from_dlpack(d_o))))


def shape_of(a) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(a.shape, a.dtype)


@jax.custom_vjp
def moe(x, router, w1, w2):
    """The layer of the package sonicmoe_go as a function of JAX. It is differentiable and works in
    jit."""
    return jax.pure_callback(forward, shape_of(x), x, router, w1, w2)


moe.defvjp(
    lambda *arrays: (moe(*arrays), arrays),
    lambda arrays, d_o: jax.pure_callback(backward, tuple(map(shape_of, arrays)), d_o, *arrays),
)


@jax.jit
def step(weights, x, target):
    def loss(weights):
        return jnp.mean((moe(x, *weights) - target).astype(jnp.float32) ** 2)

    value, gradients = jax.value_and_grad(loss)(weights)
    return value, [w - (0.5 * g).astype(w.dtype) for w, g in zip(weights, gradients)]


def main() -> None:
    sonicmoe_go.emulate()
    c, keys = CONFIG, jax.random.split(jax.random.key(0), 8)
    shapes = (c.num_experts, c.hidden), (c.num_experts, 2 * c.intermediate, c.hidden), (c.num_experts, c.hidden, c.intermediate)

    def weights(keys):
        return [(jax.random.normal(k, s) * s[-1] ** -0.5).astype(jnp.bfloat16) for k, s in zip(keys, shapes)]

    x = jax.random.normal(keys[0], (256, c.hidden)).astype(jnp.bfloat16)
    target, learned = moe(x, *weights(keys[1:4])), weights(keys[4:7])
    for i in range(2):
        value, learned = step(learned, x, target)
        print(f"step {i}  loss {value:.5f}")


if __name__ == "__main__":
    main()
