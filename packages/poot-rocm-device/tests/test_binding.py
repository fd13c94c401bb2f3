"""The real binding takes every call that the device makes, as far as a machine without HIP shows it."""

import importlib

import numpy as np
import pytest

from poot_core import Settings
from poot_kernel import compile_kernels
from poot_rocm_device import Driver, Linker, open_device

pytestmark = pytest.mark.sim


def converted(argument):
    """Return an argument as it is for the real binding: handles of the stand-in become none."""
    return None if hasattr(argument, "kind") else argument


def test_the_binding_takes_these_arguments(hip, service, kernel_list):
    real = importlib.import_module("hip").hip
    try:
        real.hipInit(0)
    except RuntimeError as error:
        assert "libamdhip64" in str(error)  # noqa: PT017 -- without it nothing below does any harm
    else:
        pytest.skip("here is a HIP runtime: these calls would be made")
    linker = Linker(lambda data, arch: data)
    with open_device(Settings(), driver=Driver(hip), linker=linker, service=service) as device:
        objects = compile_kernels(kernel_list, device.target, service, device.caps)
        device.load(objects)
        device.read_bandwidth_gb_s(1 << 16, repeat=1)
        buffer = device.allocate(64, "x")
        device.upload(buffer, np.ones(16, np.float32))
        device.download(buffer)
        sequence = device.prepare([])
        device.capture(sequence, {})
        device.run(sequence, {})
    made = {}
    for name, arguments in hip.calls:
        made.setdefault(name, arguments)
    assert len(made) >= 25
    for name, arguments in made.items():
        # Arguments are converted before the library is looked for; a wrong one is a TypeError.
        with pytest.raises(RuntimeError, match="libamdhip64"):
            getattr(real, name)(*map(converted, arguments))
    with pytest.raises(TypeError):
        real.hipMalloc("many")
