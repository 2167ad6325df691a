"""The examples run that need no model of others."""

import subprocess
import sys
from pathlib import Path

import pytest


def example_of(name):
    """An example's file, where the package is in its repository."""
    found = [p for above in Path(__file__).parents if (p := above / "examples" / "python" / name).exists()]
    if not found:
        pytest.skip("the examples are not beside the package")
    return found[0]


def test_train(device):
    example = example_of("train.py")
    run = subprocess.run([sys.executable, example, "--device", device, "--steps", "2"], capture_output=True, text=True, timeout=300)
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
