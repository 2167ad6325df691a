"""Runs the examples that need no published model."""

import copy
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import sonicmoe_go


def example_of(name):
    """Returns the path of an example, if the package is in its repository."""
    found = [p for above in Path(__file__).parents if (p := above / "examples" / "python" / name).exists()]
    if not found:
        pytest.skip("the examples are not beside the package")
    return found[0]


def test_train(device):
    example = example_of("train.py")
    run = subprocess.run([sys.executable, example, "--device", "emulated" if device == "cpu" else device, "--steps", "2"], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    first, last = (float(line.split()[-1]) for line in run.stdout.splitlines())
    assert last < first


def test_jax(device):
    if device == "cuda":
        pytest.skip("the example runs on the emulated device, so that it asks nothing of JAX's GPU plugin")
    pytest.importorskip("jax")
    run = subprocess.run([sys.executable, example_of("jax_layer.py")], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    first, last = (float(line.split()[-1]) for line in run.stdout.splitlines())
    assert last < first


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "olmoe", "glm4_moe", "gpt_oss"])
def test_models_learn_as_eager_does(device, family, monkeypatch):
    """After 100 steps from the same weights, the loss over the last tenth of the steps must be
    within 0.5 % of eager's. Greedy text must then agree, except for tokens whose logits are almost
    equal in eager, too."""
    if device != "cuda":
        pytest.skip("hundreds of passes of a model are for a GPU")
    pytest.importorskip("transformers", minversion="5")
    monkeypatch.syspath_prepend(example_of("hf.py").parent)
    hf = importlib.import_module("hf")
    model, losses = hf.model_of(family, device), {}
    for name in ("eager", ours := sonicmoe_go.register_with_transformers()):
        learned = copy.deepcopy(model)
        learned.set_experts_implementation(name)
        losses[name] = sum(hf.train(learned, 100, 0.03, device)[-10:])
    assert abs(losses[ours] / losses["eager"] - 1) < 5e-3, losses
    same, of, margin = hf.greedy(learned, ours, device)
    assert same == of or margin < 0.1, (same, of, margin)
