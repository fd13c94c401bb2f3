"""A device over the driver that stands in, and one over a real GPU."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from poot_core import DeviceError, Settings
from poot_kernel import compile_kernels
from poot_ptx_device import Driver, PtxDevice, open_device


def _module(name):
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"ptx_{name}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


KERNELS = _module("kernels")
FAKE = _module("fake_cuda")


@pytest.fixture(scope="session")
def own_kernels():
    """The module of small kernels."""
    return KERNELS


@pytest.fixture
def settings(tmp_path):
    return Settings(kernel_cache_dir=tmp_path)


@pytest.fixture
def fake():
    return FAKE.FakeCuda(KERNELS.ALL)


@pytest.fixture
def device(fake, settings):
    with open_device(settings, driver=Driver(fake)) as found:
        yield found


def load_all(device: PtxDevice):
    """Return the test kernels by name."""
    objects = compile_kernels(KERNELS.ALL, device.target, device.service, device.caps)
    return {name: kernel for one in device.load(objects) for name, kernel in one.items()}


@pytest.fixture
def kernels(device):
    return load_all(device)


@pytest.fixture(scope="session")
def gpu(tmp_path_factory):
    """A real GPU; the test is skipped without one."""
    try:
        found = open_device(Settings(kernel_cache_dir=tmp_path_factory.mktemp("cache")))
    except DeviceError as error:
        if Settings.from_environment().require_devices:
            raise
        pytest.skip(error.message)
    with found:
        yield found
