"""A device under the validation layer; any message fails the test that caused it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from poot_core import DeviceError, Settings
from poot_vulkan_device import VulkanDevice, open_device


@pytest.fixture(scope="session")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VulkanDevice]:
    cache = Path(tmp_path_factory.mktemp("kernels"))
    try:
        device = open_device(Settings(check=True, kernel_cache_dir=cache))
    except DeviceError:  # without the layer, where it is not installed
        device = open_device(Settings(kernel_cache_dir=cache))
    with device:
        yield device


@pytest.fixture
def device(opened: VulkanDevice) -> Iterator[VulkanDevice]:
    before = len(opened.validation_messages)
    yield opened
    assert opened.validation_messages[before:] == ()
