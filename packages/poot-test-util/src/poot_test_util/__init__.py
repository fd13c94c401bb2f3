"""Shared gates of poot's own tests and of the programs that run them; never published."""

from poot_test_util._cases import Row, read_cases
from poot_test_util._devices import device_parameters, require_device, why_absent
from poot_test_util._lanes import DEVICES, Lane, Lanes, TestCase, find_root, load_lanes
from poot_test_util._models import MODELS, packaged_model, require_model

__all__ = [
    "DEVICES",
    "MODELS",
    "Lane",
    "Lanes",
    "Row",
    "TestCase",
    "device_parameters",
    "find_root",
    "load_lanes",
    "packaged_model",
    "read_cases",
    "require_device",
    "require_model",
    "why_absent",
]
