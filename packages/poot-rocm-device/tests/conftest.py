"""A device over the simulated runtime."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from poot_amd_sim import SimulatedCompileService, SimulatedHip
from poot_core import Settings
from poot_kernel import compile_kernels
from poot_rocm_device import Driver, Linker, open_device


def _module(name):
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"rocm_{name}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


KERNELS = _module("kernels")


def unlinked(data, arch):
    """Stand for the linker: the simulated runtime knows objects by their bytes."""
    return data


@pytest.fixture(scope="session")
def shared_service(tmp_path_factory):
    settings = Settings(kernel_cache_dir=tmp_path_factory.mktemp("kernels"))
    with SimulatedCompileService(settings, num_workers=1) as found:
        yield found


@pytest.fixture
def service(shared_service):
    return shared_service


@pytest.fixture
def hip(service):
    return SimulatedHip(service.cache)


@pytest.fixture
def device(hip, service):
    driver, linker = Driver(hip), Linker(unlinked)
    with open_device(Settings(), driver=driver, linker=linker, service=service) as found:
        yield found
    held = {kind: count for kind, count in hip.live.items() if count and kind != "memory"}
    if not driver.lost:
        assert not held, f"left behind: {held}"


def load_all(device):
    """Return the test kernels by name."""
    objects = compile_kernels(KERNELS.ALL, device.target, device.service, device.caps)
    return {name: kernel for one in device.load(objects) for name, kernel in one.items()}


@pytest.fixture
def kernels(device):
    return load_all(device)


@pytest.fixture
def kernel_list():
    return KERNELS.ALL


@pytest.fixture
def simulated(monkeypatch, service, tmp_path_factory):
    """Make the backend ``rocm`` open a simulated GPU; call it with an architecture."""
    import poot_rocm_device

    monkeypatch.delenv("POOT_HIDE_DEVICES", raising=False)  # that is for real devices
    opened = []

    def choose(arch, order="lockstep"):
        def open_simulated(settings, threads=None):
            hip = SimulatedHip(service.cache, arch)
            hip.order = order
            opened.append(hip)
            driver, linker = Driver(hip), Linker(unlinked)
            return open_device(settings, threads, driver=driver, linker=linker, service=service)

        monkeypatch.setattr(poot_rocm_device, "open_device", open_simulated)
        return opened

    return choose
