"""Tests layers whose experts are spread over processes. With SONICMOE_LONG=1 a rank is killed fifty
times."""

import multiprocessing
import os
import random
import time
from pathlib import Path

import pytest
import ranks as of
import torch

import sonicmoe_go


@pytest.fixture(autouse=True)
def emulated(device):
    if device != "cpu" or not torch.distributed.is_gloo_available():
        pytest.skip("the processes use gloo and the emulated device")


def started(body: str, ranks: int, folder: Path) -> list:
    """Starts processes that run a function of ranks.py. They are forks of a process that has
    imported torch and has not used the library."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ranks"])
    processes = [context.Process(target=of.main, args=(body, i, ranks, str(folder))) for i in range(ranks)]
    for p in processes:
        p.start()
    return processes


def run(body: str, ranks: int, folder: Path) -> list:
    """Returns the results of processes that run a function of ranks.py."""
    (folder / "store").unlink(missing_ok=True)
    for i, p in enumerate(started(body, ranks, folder)):
        p.join(300)
        assert p.exitcode == 0, errors(ranks, folder)
    return [torch.load(folder / f"result{i}", weights_only=False) for i in range(ranks)]


def errors(ranks: int, folder: Path) -> list[str]:
    found = [folder / f"error{i}" for i in range(ranks)]
    return [f.read_text() if f.exists() else "" for f in found]


def same(got: list[dict], want: dict) -> None:
    """Checks that the ranks together have the bits of one process."""
    for name, one in want.items():
        parts = [g[name] for g in got]
        if name.startswith("experts.") or name in ("o", "x"):
            parts = [torch.cat(parts)]
        for part in parts:
            assert torch.equal(part, one), name


def test_bits_of_one_process(tmp_path):
    """With three ranks the numbers of experts differ, and one rank has no tokens."""
    same(run("train", 3, tmp_path), of.step(of.whole(bias=True, router_bias=True, expert_scale=True), *of.inputs(0, 0)))


def test_partial_sums(tmp_path):
    """Only the output and the gradient of x have other bits, and are close."""
    got, want = run("sums", 3, tmp_path), of.step(of.whole(), *of.inputs(0, 0))
    for name in ("o", "x"):
        one, sums = want.pop(name).float(), torch.cat([g[name] for g in got]).float()
        assert 0 < (sums - one).norm() < one.norm() / 128, name
    same(got, want)


def test_checkpoint_of_four_on_two(tmp_path):
    """A layer that was saved on four ranks trains on two ranks as on one process."""
    saved, loaded = run("save", 4, tmp_path), run("load", 2, tmp_path)
    layer, (x, d_o) = of.whole(), of.inputs(0, 0)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, foreach=False)
    (layer(x) + 1).backward(d_o)
    optimizer.step()
    want = of.after(layer, x, d_o)
    same(saved, want)
    same(loaded, want)


@pytest.mark.parametrize("by", ["fsdp", "ddp"])
def test_data_parallel(tmp_path, by):
    """A model that FSDP or DDP has around the layer has the gradients of one process."""
    got, want = run(by, 2, tmp_path), of.step(of.Between(of.whole()), *of.inputs(0, 0))
    for name, one in want.items():
        parts = [g[name].float() for g in got]
        if "experts" in name or name in ("o", "x"):
            parts = [torch.cat(parts)]
        for part in parts:  # FSDP and DDP round a gradient of each rank before the sum
            assert (part - one.float()).norm() < one.float().norm() / 64, name


def test_ranks_of_other_seeds(tmp_path):
    """All ranks get the router and the shared experts of rank 0."""
    a, b = run("unseeded", 2, tmp_path)
    assert not torch.equal(a["first"], b["first"]) and not torch.equal(a["experts"], b["experts"])
    assert len(a["shared"]) == 10
    for name, t in a["shared"].items():
        # The bias of the new layer was set after the layer was made.
        assert torch.equal(t, b["shared"][name]) == (name != "gate.e_score_correction_bias0"), name


def test_clipped_gradients(tmp_path):
    """Clipped gradients equal the gradients that one process clips, and all ranks scale by one factor."""
    found = run("clip", 2, tmp_path)
    for name in ("fsdp", "mesh", "group"):
        one = of.Between(of.whole()) if name == "fsdp" else of.whole()
        of.step(one, *of.inputs(0, 0))
        norm = torch.stack([p.grad.float().norm() for p in one.parameters()]).norm()
        assert norm > 20
        for n, p in one.named_parameters():
            parts, want = [f[name][1][n] for f in found], p.grad.float() * (2.0 / norm)
            for part in [torch.cat(parts)] if "experts" in n else parts:
                assert (part.float() - want).norm() < want.norm() / 64, (name, n)
        for f in found:
            assert abs(f[name][0] - norm) < norm / 256, name
        assert torch.equal(found[0][name][0], found[1][name][0]), name
    for f in found:  # two ranks have 1 and 2, so each element is 3
        assert f["partial"][0] == 6 and torch.allclose(f["partial"][1], torch.full((4,), 0.5, dtype=torch.float64))
    small = of.whole()
    of.step(small, *of.inputs(0, 0))
    before = small.gate.weight.grad.clone()
    assert sonicmoe_go.clip_grad_norm_(small, 1e9) < 1e9 and torch.equal(small.gate.weight.grad, before)


def test_wrapped_experts(tmp_path):
    """A forward pass raises an error if DDP or FSDP holds the experts, because their values are then wrong."""
    for found in run("wrapped", 2, tmp_path):
        assert len(found) == 12
        for name, error in found.items():
            if name.startswith("right"):
                assert error == "", name
            elif name == "fsdp":
                assert error.startswith("FSDP holds experts.gate_up_proj ") and "ignored_params=" in error, name
            else:
                assert error.startswith("DistributedDataParallel holds experts.gate_up_proj ") and "shard_experts" in error, name


def test_new_layers(tmp_path):
    """Initial experts differ, and the random numbers after them are the same on all ranks."""
    a, b = run("fresh", 2, tmp_path)
    assert torch.cat([a["w1"], b["w1"]]).flatten(1).unique(dim=0).shape[0] == of.SIZES["num_experts"]
    assert torch.equal(a["loads"], b["loads"]) and torch.equal(a["next"], b["next"])
    assert a["loads"].sum() == sum(of.TOKENS) * of.SIZES["top_k"]
    assert max(a["logits"], b["logits"]) < 0.1


@pytest.mark.parametrize("turn", range(50 if os.environ.get("SONICMOE_LONG") else 1))
def test_a_rank_is_killed(tmp_path, turn):
    """The other ranks end with an error that names it."""
    ranks, chance = 3, random.Random(turn)
    processes, victim = started("endless", ranks, tmp_path), turn % ranks
    while not all((tmp_path / f"ready{i}").exists() for i in range(ranks)):
        assert all(p.is_alive() for p in processes), errors(ranks, tmp_path)
        time.sleep(0.01)
    time.sleep(chance.random() / 2)
    processes[victim].kill()
    began = time.monotonic()
    for p in processes:
        p.join(of.DEADLINE + 10)
    assert time.monotonic() - began < of.DEADLINE
    for i, text in enumerate(errors(ranks, tmp_path)):
        assert (f"rank {i} of {ranks}: " in text and f"rank {victim} is gone" in text) == (i != victim), text


def test_deadline(tmp_path):
    processes = started("asleep", 2, tmp_path)
    for p in processes:
        p.join(60)
        assert p.exitcode == 1
    assert "rank 0 of 2: counts: context deadline exceeded" in errors(2, tmp_path)[0]


def test_wrong_groups():
    for group, said in ((None, "no SonicMoE"), ("all", "group is 'all', must be a process group")):
        with pytest.raises(sonicmoe_go.ArgumentError, match=said):
            sonicmoe_go.shard_experts(of.whole() if group else torch.nn.Linear(1, 1), group, max_tokens=8)


def test_shared_experts_and_losses(tmp_path):
    same(run("shared", 3, tmp_path), of.step(of.whole(**of.LOSSES), *of.inputs(0, 0)))


def test_balance_of_sequences(tmp_path):
    same(run("sequences", 2, tmp_path), of.step(of.whole(balance=0.1, balance_by="sequence"), *of.in_sequences()))


def test_adapter_of_packed_experts(tmp_path):
    want = of.step(of.adapted(), *of.inputs(0, 0))
    assert sum("lora" in name for name in want) == 4 and all(want[n].any() for n in want if "lora" in n)
    same(run("adapter", 2, tmp_path), want)
