"""The tests run on the emulated device, or with SONICMOE_DEVICE=cuda on a GPU."""

import os

import pytest
import torch

import sonicmoe_go

DEVICE = "cuda" if os.environ.get("SONICMOE_DEVICE") == "cuda" else "cpu"

if DEVICE == "cpu":
    sonicmoe_go.emulate()
    torch.set_num_threads(1)


@pytest.fixture
def device():
    return DEVICE


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(1)
