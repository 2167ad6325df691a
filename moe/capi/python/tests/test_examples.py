"""The example that needs nothing but torch runs."""

import subprocess
import sys
from pathlib import Path

import pytest


def test_train(device):
    example = Path(__file__).parents[4] / "examples" / "python" / "train.py"
    if not example.exists():
        pytest.skip("the examples are not beside the package")
    run = subprocess.run([sys.executable, example, "--device", device, "--steps", "2"], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    first, last = (float(line.split()[-1]) for line in run.stdout.splitlines())
    assert last < first
