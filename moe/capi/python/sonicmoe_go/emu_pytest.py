"""Fixtures for pytest. Load them with `pytest -p sonicmoe_go.emu_pytest`, or in conftest.py with

    pytest_plugins = ["sonicmoe_go.emu_pytest"]

A test that asks for emulated_triton runs Triton kernels on the emulator, with CPU tensors. A test
that asks for check_ptx gets emu.check. Both fail if a kernel has a mistake.
"""

import functools

import pytest


def pytest_addoption(parser):
    group = parser.getgroup("emulator")
    group.addoption("--emu-orders", type=int, default=4, metavar="N", help="random orders of each kernel on the emulator, besides the earliest and the latest")
    group.addoption("--emu-explore", type=int, default=0, metavar="N", help="instead, systematic orders of each kernel")
    group.addoption("--emu-seed", type=int, default=0, metavar="N", help="seed of the first random order")
    group.addoption("--emu-fail", default="strict", choices=("error", "strict", "note"), help="least severity of a finding that fails a test")


@pytest.fixture
def emu_options(request):
    """The options of emu.check. A test module may override the fixture."""
    get = request.config.getoption
    return {"orders": get("--emu-orders"), "explore": get("--emu-explore"), "seed": get("--emu-seed"), "fail": get("--emu-fail")}


@pytest.fixture
def check_ptx(emu_options):
    """emu.check with the options of the command line."""
    from sonicmoe_go import emu

    return functools.partial(emu.check, **emu_options)


@pytest.fixture
def emulated_triton(emu_options):
    """Makes Triton run kernels on the emulator during the test."""
    from sonicmoe_go import emu

    with emu.triton(**emu_options) as driver:
        yield driver
