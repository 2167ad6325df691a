"""Versions and paths of an installation."""

import re
import subprocess
import sys
from pathlib import Path

import torch

import sonicmoe_go
from sonicmoe_go import _library


def test_version():
    project = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert sonicmoe_go.__version__ == re.search(r'^version = "(.*)"', project, re.M)[1]


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


def test_info_does_not_load_the_library():
    code = "import sonicmoe_go; sonicmoe_go.info(); print(sonicmoe_go._library.current.library)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300).stdout == "None\n"
