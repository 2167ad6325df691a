"""Counts of experts."""

from __future__ import annotations

import torch
from torch import Tensor


def count_cumsum(x: Tensor, E: int, do_cumsum: bool = True) -> Tensor | tuple[Tensor, Tensor]:
    """Counts how often each of the values 0 to E - 1 occurs in x, and ignores other values. The
    host does not wait. With do_cumsum it returns the counts and their cumulative sums. Both are
    i32."""
    ids = x.flatten().long()
    ids = torch.where((ids >= 0) & (ids < E), ids, E)
    count = torch.zeros(E + 1, dtype=torch.int32, device=ids.device).scatter_add_(0, ids, torch.ones_like(ids, dtype=torch.int32))[:E]
    return (count, count.cumsum(0, dtype=torch.int32)) if do_cumsum else count
