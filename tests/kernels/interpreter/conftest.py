"""Collected only where Triton interprets: ``tests/kernels/test_interpreter.py`` starts that."""

import os

import pytest
import torch
from hypothesis import settings

if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob = ["*"]

settings.register_profile("kernels", deadline=None, derandomize=True)
settings.load_profile("kernels")


@pytest.fixture(autouse=True)
def inference() -> object:
    torch.manual_seed(0)
    with torch.no_grad():
        yield
