"""One NVIDIA GPU behind the device protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from poot_core import DeviceCaps, Settings, Target
from poot_executor import Launch
from poot_executor.stream_device import PreparedLaunch, StreamDevice, StreamKernel
from poot_kernel.compile import CompileService, KernelPackage
from poot_ptx_device._driver import Driver
from poot_ptx_device._launch import PtxLaunch
from poot_ptx_device._machine import MachineFacts, open_machine
from poot_ptx_device._modules import ModuleLoader
from poot_ptx_device._tensor_map import MapEncoder

__all__ = ["PtxDevice", "open_device"]


def open_device(
    settings: Settings,
    threads: int | None = None,
    *,
    index: int | None = None,
    driver: Driver | None = None,
    service: CompileService | None = None,
) -> PtxDevice:
    """Return an NVIDIA GPU as a device.

    Args:
        settings: The kernel cache, and which GPU: its number or a part of its name.
        threads: Of no use here; part of the entry point's signature.
        index: Which GPU, as the driver numbers those that it shows; by default the settings' one.
        driver: What stands in for the driver, for tests.
        service: Compile service to share; by default one of the device's own.

    Raises:
        DeviceError: If there is no binding, no driver, no such GPU, or one that is too old.
    """
    del threads
    wanted = settings.device if index is None else str(index)
    found = driver or Driver()
    facts = open_machine(found, wanted)
    owned = service if service is not None else CompileService(settings)
    return PtxDevice(found, facts, owned, owns_service=service is None)


class PtxDevice(StreamDevice):
    """An NVIDIA GPU; see ``open_device``."""

    def __init__(
        self, driver: Driver, facts: MachineFacts, service: CompileService, *, owns_service: bool
    ) -> None:
        target = Target("ptx", facts.arch, facts.features)
        caps = DeviceCaps(
            name=facts.name,
            vector_bytes=16,
            subgroup_size=32,
            num_workers=facts.num_multiprocessors,
            shared_bytes=facts.shared_bytes,
            memory_bytes=facts.memory_bytes,
            max_workgroup=facts.max_threads,
        )
        self._facts = facts
        self._encoder = MapEncoder(driver)
        self._loader = ModuleLoader(driver, service.cache, facts, target)
        super().__init__(driver, target, caps, service, owns_service=owns_service)

    def make_current(self) -> None:
        """Make the context current in this thread."""
        self.driver.call("cuCtxSetCurrent", self._facts.context)

    def load_packages(self, packages: Sequence[KernelPackage]) -> list[StreamKernel]:
        """Return kernels of PTX, linked by the driver."""
        return self._loader.load(packages)

    def prepare_launch(self, launch: Launch, number: int) -> PtxLaunch:
        """Return a launch with its configuration."""
        return PtxLaunch(
            launch, self.driver, self.stream, self._encoder, self._facts, is_first=number == 0
        )

    def submit(self, launch: PreparedLaunch) -> None:
        """Queue a launch."""
        config, kernel = cast("PtxLaunch", launch).config, launch.kernel
        self.driver.call("cuLaunchKernelEx", config, kernel.function, launch.address, 0)

    def unload(self) -> None:
        """Unload all modules."""
        self._loader.close()
