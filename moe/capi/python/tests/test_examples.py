"""Runs the examples that need no published model."""

import copy
import importlib
import os
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


def test_qlora(device, tmp_path):
    pytest.importorskip("transformers", minversion="5")
    pytest.importorskip("safetensors")
    where, steps = (["--device", "emulated", "--sequences", "2"], "2") if device == "cpu" else (["--device", device], "40")
    found = os.environ | {"PYTHONPATH": str(Path(sonicmoe_go.__file__).parents[1])}  # the program writes to its folder
    run = subprocess.run([sys.executable, example_of("qlora.py"), "--steps", steps, *where], capture_output=True, text=True, timeout=300, cwd=tmp_path, env=found)
    assert run.returncode == 0, run.stderr
    losses = [float(line.split()[-1]) for line in run.stdout.splitlines()]
    assert losses[-1] < losses[0] and (tmp_path / "adapter" / "adapter_model.safetensors").exists()


def test_lora(device):
    """Losses and adapters must agree with those of PEFT."""
    pytest.importorskip("transformers", minversion="5")
    pytest.importorskip("peft")
    small = ["--device", "emulated", "--steps", "2", "--rate", "0.01", "--sequences", "2", "--length", "16", "--width", "128", "--n", "64", "--layers", "1"]
    run = subprocess.run([sys.executable, example_of("lora.py"), *(small if device == "cpu" else ["--steps", "20"])], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    lines = [line.split() for line in run.stdout.splitlines()]
    ways = {line[0]: line for line in lines if line[0] in ("sonicmoe_go", "from_hf", "own")}
    assert len(ways) == 3 and all(abs(float(line[2])) < 0.5 for line in ways.values()), run.stdout
    moved = [float(line[-1]) for line in lines[-3:]]
    assert moved[0] < moved[2] / 4 and moved[1] < moved[2] / 4, run.stdout


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
