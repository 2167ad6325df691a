"""Tests the package's bundle of kernels and other caches. A layer whose kernels are stored must
compile nothing."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import sonicmoe_go
from sonicmoe_go import _library

# Models of models.json, with the arguments of their layers.
KNOWN = {
    "OLMoE-1B-7B": dict(hidden=2048, intermediate=1024, num_experts=64, top_k=8),
    "gpt-oss-20b": dict(
        hidden=2880, intermediate=2880, num_experts=32, top_k=4,
        weight_order="in-out", gate_up="interleaved", bias=True, activation="swiglu-oai", alpha=1.702, limit=7.0,
    ),
}  # fmt: skip
SMALL = dict(hidden=128, intermediate=64, num_experts=4, top_k=2)

MAKE = """
import sys
from sonicmoe_go import _library
device, config, bundles = sys.argv[1], eval(sys.argv[2]), sys.argv[3:]
for b in bundles:
    _library.check(_library.library().sm_add_bundle(b.encode()))
_library.layer(_library.Config(**config).key, device)
"""


def stored_by(tmp_path: Path, name: str, device: str, config: dict, *bundles: str, library: str = "") -> set[str]:
    """Runs a process that makes a layer, and returns the kernels that it stores in an empty
    cache."""
    cache = tmp_path / name
    device = "cuda:0" if device == "cuda" else "emulated"
    environment = os.environ | {"SONICMOE_CACHE": str(cache), "SONICMOE_GO_LIBRARY": library or _library.path()}
    subprocess.run([sys.executable, "-W", "error", "-c", MAKE, device, repr(config), *bundles], check=True, env=environment)
    return files(cache)


def files(cache: Path) -> set[str]:
    return {f.name for f in (cache / "entries").glob("*.module")}


def shipped() -> set[str]:
    """Returns the kernels of the package's bundle."""
    if not _library.bundle().exists():
        pytest.skip("the package was not built as a wheel: it has no bundle")
    with tarfile.open(_library.bundle()) as bundle:
        return {Path(name).name for name in bundle.getnames()}


def test_a_layer_takes_what_another_cache_has(device, tmp_path):
    alone = tmp_path / "libsonicmoe.so"  # a library without the package's bundle next to it
    alone.symlink_to(_library.path())
    made = stored_by(tmp_path, "first", device, SMALL, library=str(alone))
    assert made
    assert stored_by(tmp_path, "again", device, SMALL, library=str(alone)) == made
    assert not stored_by(tmp_path, "behind", device, SMALL, str(tmp_path / "first"), library=str(alone))


@pytest.mark.parametrize("model", KNOWN)
def test_the_bundle_has_the_kernels_of_a_known_model(model, tmp_path):
    have = shipped()
    sonicmoe_go.warm(sonicmoe_go.Config(**KNOWN[model]), directory=str(tmp_path))
    want = files(tmp_path)
    assert want and want <= have


@pytest.mark.parametrize("model", KNOWN)
def test_a_known_model_compiles_nothing_on_a_gpu(model, device, tmp_path):
    if device != "cuda":
        pytest.skip("the emulated device does not load ptxas's machine code")
    shipped()
    assert not stored_by(tmp_path, "own", device, KNOWN[model])


def test_a_damaged_bundle_is_a_warning(tmp_path):
    library = tmp_path / "libsonicmoe.so"
    library.symlink_to(_library.path())
    (tmp_path / "models.bundle").write_text("not one")
    ran = subprocess.run(
        [sys.executable, "-c", "from sonicmoe_go import _library; _library.device('emulated')"],
        check=True, text=True, stderr=subprocess.PIPE, env=os.environ | {"SONICMOE_GO_LIBRARY": str(library)},
    )  # fmt: skip
    assert "neither a cache directory nor a bundle" in ran.stderr


@pytest.mark.parametrize("signature", [None, "not one"])
def test_a_key_needs_a_signature(signature, tmp_path):
    library = tmp_path / "libsonicmoe.so"
    library.symlink_to(_library.path())
    (tmp_path / "models.bundle").write_text("not one")
    if signature is not None:
        (tmp_path / "models.bundle.minisig").write_text(signature)
    key = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3"
    ran = subprocess.run(
        [sys.executable, "-c", "from sonicmoe_go import _library; _library.device('emulated')"],
        check=True, text=True, stderr=subprocess.PIPE, env=os.environ | {"SONICMOE_GO_LIBRARY": str(library), "SONICMOE_CACHE_KEY": key},
    )  # fmt: skip
    assert ("not a sound bundle" in ran.stderr) == (signature is not None)


def test_the_wheel_carries_licences():
    if not _library.bundle().exists():
        pytest.skip("the package was not built as a wheel: it has no licences")
    assert "Apache License" in _library.bundle().with_name("LICENSE").read_text()
    assert "The Go Authors" in _library.bundle().with_name("NOTICE").read_text()
