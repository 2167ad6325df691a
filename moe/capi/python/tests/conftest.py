"""The tests run on the emulated device, or with SONICMOE_GO_TEST_DEVICE=cuda on a GPU."""

import os

import pytest
import torch

import sonicmoe_go

DEVICE = os.environ.get("SONICMOE_GO_TEST_DEVICE", "cpu")

if DEVICE == "cpu":
    sonicmoe_go.emulate()
    torch.set_num_threads(1)


@pytest.fixture
def device():
    return DEVICE


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(1)
