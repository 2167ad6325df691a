"""Small helper functions of SonicMoE's package. The functions for CuTe are left out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map

from .._library import ArgumentError


def make_contiguous(x: Any) -> Any:
    """Returns a contiguous tensor, or x itself if x is not a tensor."""
    return x.contiguous() if isinstance(x, Tensor) else x


def ensure_contiguous(func: Callable) -> Callable:
    """Returns a function that makes its tensor arguments contiguous and then calls func."""

    @functools.wraps(func)
    def called(*args, **kwargs):
        args, kwargs = tree_map(make_contiguous, (args, kwargs))
        return func(*args, **kwargs)

    return called


def ceil_divide(x: int, y: int) -> int:
    """Returns x / y, rounded up."""
    return -(-x // y)


def divide_if_divisible(dividend: int, divisor: int, msg: str = "") -> int:
    """Returns the quotient of two integers. If there is a remainder, it raises an error."""
    if dividend % divisor:
        raise ArgumentError(msg or f"dividend is {dividend}, must be a multiple of {divisor}")
    return dividend // divisor


def check_power_of_2(n: int) -> bool:
    """Whether n is a power of two."""
    return n > 0 and n.bit_count() == 1


def get_next_power_of_2(x: int) -> int:
    """Returns the smallest power of two that is not below x."""
    return 1 << max(x - 1, 0).bit_length()


def get_powers_of_2(start: int, end: int) -> list[int]:
    """Returns the powers of two from start to end. Both must be powers of two."""
    for name, n in (("start", start), ("end", end)):
        if not check_power_of_2(n):
            raise ArgumentError(f"{name} is {n}, must be a power of 2")
    return [1 << i for i in range(start.bit_length() - 1, end.bit_length())]
