"""Lets programs import this package by the name of SonicMoE's own package."""

from __future__ import annotations

import importlib
import importlib.util
import sys

_MODULES = ("count_cumsum", "enums", "functional", "moe", "utils")


def install_as_sonicmoe() -> bool:
    """Makes `import sonicmoe` give sonicmoe_go.sonicmoe, so that programs for SonicMoE run
    unchanged:

        sonicmoe_go.install_as_sonicmoe()
        from sonicmoe import MoE

    Call it before the first import of sonicmoe. If SonicMoE's own package is installed, it is not
    replaced, and the result is False.
    """
    ours = importlib.import_module(".sonicmoe", __package__)
    there = sys.modules.get("sonicmoe")
    if there is None:
        there = importlib.util.find_spec("sonicmoe")
        if there is not None and there.origin is None:  # a folder of that name that is no package
            there = None
    if there not in (None, ours):
        return False
    for name in _MODULES:
        sys.modules["sonicmoe." + name] = importlib.import_module(f".sonicmoe.{name}", __package__)
    sys.modules["sonicmoe"] = ours
    return True
