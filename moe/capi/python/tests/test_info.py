"""Versions and paths of an installation."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import sonicmoe_go
from sonicmoe_go import _library


def test_version():
    project = Path(__file__).parents[1] / "pyproject.toml"
    want = re.search(r'^version = "(.*)"', project.read_text(), re.M)[1] if project.exists() else importlib.metadata.version("sonicmoe-go")
    assert sonicmoe_go.__version__ == want


BOTH = ("libsonicmoe.so", "models.bundle")


@pytest.mark.parametrize(
    "files, data, kernels, words",
    [
        (BOTH, b"ptx\x7fELF", "machine code", None), (BOTH, b"ptx", "PTX", "the wheel has no machine code"),
        (BOTH[:1], b"", None, "models.bundle is missing"), ((), b"", None, "libsonicmoe.so is missing"),
    ],
)  # fmt: skip
def test_what_is_missing(monkeypatch, tmp_path, files, data, kernels, words):
    for file in files:
        (tmp_path / file).write_bytes(data)
    monkeypatch.delenv("SONICMOE_GO_LIBRARY", raising=False)
    monkeypatch.setattr(_library, "path", lambda: str(tmp_path / "libsonicmoe.so"))
    said = sonicmoe_go.info()
    assert said["kernels"] == kernels and [words in s for s in said["lacks"]] == ([] if words is None else [True])
    with warnings.catch_warnings(record=True) as warned:
        sonicmoe_go._warn_of_lacks()
    assert [str(w.message) for w in warned] == [f"sonicmoe_go: {s}" for s in said["lacks"]]


def test_the_import_says_what_is_missing(tmp_path):
    shutil.copytree(Path(sonicmoe_go.__file__).parent, tmp_path / "sonicmoe_go", ignore=shutil.ignore_patterns("*.so", "*.bundle", "__pycache__"))
    env = {n: v for n, v in os.environ.items() if n != "SONICMOE_GO_LIBRARY"} | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", "import sonicmoe_go"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "RuntimeWarning: sonicmoe_go: " in done.stderr and "install the wheel" in done.stderr


def test_info(device, monkeypatch, tmp_path):
    monkeypatch.setenv("SONICMOE_CACHE", "/some/where")
    said = sonicmoe_go.info()
    assert said["sonicmoe_go"] == sonicmoe_go.__version__ and said["torch"] == torch.__version__ and said["cache"] == "/some/where"
    assert Path(said["library"]).samefile(_library.path())
    assert (said["driver"] is not None) == torch.cuda.is_available() == bool(said["gpus"])
    monkeypatch.delenv("SONICMOE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("SONICMOE_GO_LIBRARY", str(tmp_path / "none.so"))
    said = sonicmoe_go.info()
    assert (said["cache"], said["library"], said["bundle"]) == (str(tmp_path / "sonicmoe"), None, None)
    assert said["kernels"] is None and "none.so is missing, and nothing runs without it: set SONICMOE_GO_LIBRARY" in said["lacks"][0]


def test_info_does_not_load_the_library():
    code = "import sonicmoe_go; sonicmoe_go.info(); print(sonicmoe_go._library.current.library)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300).stdout == "None\n"
