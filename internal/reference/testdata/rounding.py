"""Writes rounding.json: which tokens experts take, and with what scores, by the formulae of
SonicMoE's script of token rounding (for its ways nr, up, down and top_k), at the sizes of that
script.

    pip install torch
    python3 internal/reference/testdata/rounding.py

The file does not contain the logits. This script and the Go test compute them by the same formula,
with values that float32 holds exactly. Everything is float64. The script does not say which of two
equal values comes first when it sorts; here it is the one with the lower index.
"""

import json
import os
import zlib

import torch

TILE = 128
SIZES = [(2048, 64, 8), (16384, 256, 8), (16384, 512, 4)]  # T, E, K


def logits(tokens, experts):
    """Returns logits for an almost even routing, as in SonicMoE's script: a hash of each index, in
    [-2, 2)."""
    mask = 0xFFFFFFFF
    h = torch.arange(tokens * experts, dtype=torch.int64)
    h = (h * 2654435761 + 12345) & mask
    h = h ^ (h >> 15)
    h = (h * 2246822519) & mask
    h = h ^ (h >> 13)
    h = (h * 3266489917) & mask
    h = h ^ (h >> 16)
    values = ((h >> 8).double() / 2**24 - 0.5) * 4
    return values.reshape(tokens, experts)


def rounded(way, f):
    if way == "nr":
        return torch.round(f / TILE) * TILE  # ties to even
    if way == "up":
        return torch.ceil(f / TILE) * TILE
    if way == "down":
        return torch.floor(f / TILE) * TILE
    return f  # top_k


def golden(tokens, experts, k):
    raw = torch.softmax(logits(tokens, experts), dim=-1)
    order = torch.sort(logits(tokens, experts), dim=-1, descending=True, stable=True).indices[:, :k]
    scores = torch.gather(raw, 1, order)
    scores = scores / scores.sum(-1, keepdim=True)
    merged = raw.scatter(1, order, scores)                # the weight of the expert's output for a token
    preferred = (raw - 1).scatter(1, order, scores)       # the values by which experts choose tokens
    by_expert = torch.sort(preferred, dim=0, descending=True, stable=True).indices
    f = torch.zeros(experts, dtype=torch.float64)
    f.scatter_add_(0, order.flatten(), torch.ones(tokens * k, dtype=torch.float64))
    ways = {}
    for way in ["nr", "up", "down", "top_k"]:
        counts = rounded(way, f).long().clamp(max=tokens)
        crcs, sums = [], []
        for e in range(experts):
            taken = by_expert[: counts[e], e].sort().values
            crcs.append(zlib.crc32(taken.int().numpy().tobytes()))
            sums.append(round(merged[taken, e].sum().item(), 9))
        ways[way] = {"counts": counts.tolist(), "tokens": crcs, "scores": sums}
    return {"tokens": tokens, "experts": experts, "k": k, "ways": ways}


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "rounding.json"), "w") as f:
        f.write(json.dumps([golden(*s) for s in SIZES], separators=(",", ":")).replace('"ways"', '\n"ways"').replace('"counts"', '\n"counts"') + "\n")
