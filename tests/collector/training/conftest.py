"""PyTorch and the models that are trained with it, for those tests that need them."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="session")
def models() -> ModuleType:
    """Loaded here, as quick runs collect this file too and must not load PyTorch."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    return importlib.import_module("tests.collector.training.moe_models")


@pytest.fixture
def torch(models: ModuleType) -> Any:
    return importlib.import_module("torch")
