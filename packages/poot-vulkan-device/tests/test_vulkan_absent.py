"""What is said where Vulkan or a fitting device is absent; no device is needed."""

import importlib

import pytest

from poot_core import DeviceError, Settings
from poot_vulkan_device import _api, open_device
from poot_vulkan_device._adapters import Adapter, choose_adapter
from poot_vulkan_device._clock import AwakeCard


def adapter(number: int, name: str, kind: str, *lacks: str) -> Adapter:
    return Adapter(
        number=number, handle=None, name=name, driver="test", uuid=bytes(16), kind=kind, lacks=lacks,
        features=frozenset(), queue_family=0, subgroup_size=32, shared_bytes=1 << 15,
        max_workgroup=256, max_grid=(1, 1, 1), push_bytes=128, timestamp_ns=1.0, memory=(),
        has_budget=False,
    )  # fmt: skip


ADAPTERS = [
    adapter(0, "llvmpipe", "software"),
    adapter(1, "Old Card", "discrete", "shaderInt64"),
    adapter(2, "Chip Graphics", "integrated"),
    adapter(3, "Big Card", "discrete"),
]


def test_the_best_usable_device_is_taken():
    assert choose_adapter(ADAPTERS, None).number == 3
    assert choose_adapter(ADAPTERS[:3], None).number == 2
    assert choose_adapter(ADAPTERS[:2], None).number == 0


def test_devices_are_named_by_number_or_part_of_name():
    assert choose_adapter(ADAPTERS, "0").number == 0
    assert choose_adapter(ADAPTERS, "chip").number == 2
    with pytest.raises(DeviceError, match="no Vulkan device 'radeon'; there are 0: llvmpipe"):
        choose_adapter(ADAPTERS, "radeon")
    with pytest.raises(DeviceError, match=r"1: Old Card .discrete. lacks shaderInt64"):
        choose_adapter(ADAPTERS, "1")


def test_no_device_and_none_that_fits():
    with pytest.raises(DeviceError, match="lists no device"):
        choose_adapter([], None)
    with pytest.raises(DeviceError, match="no Vulkan device can run poot's kernels: 1: Old Card"):
        choose_adapter(ADAPTERS[1:2], None)


def test_an_absent_loader_is_one_typed_error(monkeypatch):
    def absent(name: str):
        raise OSError("libvulkan.so.1: cannot open shared object file")

    monkeypatch.setattr(_api, "import_module", absent)
    with pytest.raises(DeviceError, match=r"no Vulkan loader can be opened .*libvulkan1"):
        open_device(Settings())


def test_hidden_devices_do_not_open():
    with pytest.raises(DeviceError, match="hides"):
        open_device(Settings(hide_devices=True))


def test_importing_the_package_opens_no_library():
    assert importlib.import_module("poot_vulkan_device").open_device is open_device


def test_no_card_is_kept_awake_where_cuda_does_not_know_it():
    card = AwakeCard(b"no card has this")
    assert not card.is_held
    card.close()
