"""Builds the shared library and the kernels of known models with Go. Makes a wheel for every Python
3 of this system."""

import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

HERE = Path(__file__).resolve().parent
LIBRARY = "libsonicmoe.so"
BUNDLE = "models.bundle"


class Build(build_py):
    """Builds the library next to the modules, and a bundle of kernels next to the library."""

    def run(self):
        super().run()
        out = Path(self.build_lib).resolve() / "sonicmoe_go" / LIBRARY
        subprocess.run(
            ["go", "build", "-buildmode=c-shared", "-trimpath", "-ldflags=-s -w", "-o", str(out), "."],
            cwd=HERE.parent, check=True, env=os.environ | {"CGO_ENABLED": "1"},
        )
        out.with_suffix(".h").unlink()
        self.bundle(out.with_name(BUNDLE))
        for notice in "LICENSE", "NOTICE":
            shutil.copy(HERE.parents[2] / notice, out.with_name(notice))

    def bundle(self, out):
        """Emits the kernels of models.json. They are machine code if NVIDIA's ptxas is installed.
        Otherwise they are PTX, which the driver compiles at the first use. The output of warmup
        says which."""
        with tempfile.TemporaryDirectory() as cache:
            subprocess.run(
                ["go", "run", "./examples/warmup", "fill", "-bar=false", "-layers", str(HERE / "models.json"), "-cache", cache, "-export", str(out)],
                cwd=HERE.parents[2], check=True,
            )  # fmt: skip


class Wheel(bdist_wheel):
    """A wheel for every Python 3. Its library needs this system's libc, or a newer one."""

    def get_tag(self):
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        library = next(Path(self.bdist_dir).rglob(LIBRARY), None) if self.bdist_dir else None
        if library and platform.startswith("linux_"):
            needs = max(int(n) for n in re.findall(rb"GLIBC_2\.(\d+)", library.read_bytes()))
            platform = platform.replace("linux", f"manylinux_2_{max(needs, 17)}")
        return "py3", "none", platform


class Native(Distribution):
    """A distribution that contains machine code."""

    def has_ext_modules(self):
        return True


setup(cmdclass={"build_py": Build, "bdist_wheel": Wheel}, distclass=Native)
