"""One AMD GPU behind the device protocol."""

from __future__ import annotations

from collections.abc import Sequence

from poot_core import DeviceCaps, Settings, Target
from poot_executor import Launch
from poot_executor.stream_device import PreparedLaunch, StreamDevice, StreamKernel
from poot_kernel.compile import CompileService, KernelPackage
from poot_kernel.targets.amdgcn import target_features
from poot_rocm_device._driver import Driver
from poot_rocm_device._launch import RocmLaunch
from poot_rocm_device._linker import Linker
from poot_rocm_device._machine import MachineFacts, open_machine
from poot_rocm_device._modules import ModuleLoader

__all__ = ["RocmDevice", "open_device"]


def open_device(
    settings: Settings,
    threads: int | None = None,
    *,
    driver: Driver | None = None,
    linker: Linker | None = None,
    service: CompileService | None = None,
) -> RocmDevice:
    """Return an AMD GPU as a device: the one that ``settings.device`` names, else the first.

    Args:
        settings: The kernel cache, and which GPU.
        threads: Of no use here; part of the entry point's signature.
        driver: What stands in for HIP, for tests.
        linker: What links kernels; comgr or ``ld.lld`` without.
        service: Compile service to share; by default one of the device's own.

    Raises:
        DeviceError: If there is no binding, no runtime, no such GPU, or none that is covered.
    """
    del threads
    found = driver or Driver()
    facts = open_machine(found, settings.device)
    owned = service if service is not None else CompileService(settings)
    return RocmDevice(found, facts, linker or Linker(), owned, owns_service=service is None)


class RocmDevice(StreamDevice):
    """An AMD GPU; see ``open_device``."""

    def __init__(
        self,
        driver: Driver,
        facts: MachineFacts,
        linker: Linker,
        service: CompileService,
        *,
        owns_service: bool,
    ) -> None:
        target = Target("rocm", facts.arch, target_features(facts.arch))
        caps = DeviceCaps(
            name=facts.name,
            vector_bytes=16,
            subgroup_size=facts.subgroup_size,
            num_workers=facts.num_processors,
            shared_bytes=facts.shared_bytes,
            memory_bytes=facts.memory_bytes,
            max_workgroup=facts.max_threads,
        )
        self._index = facts.index
        self._loader = ModuleLoader(driver, service.cache, linker, target)
        super().__init__(driver, target, caps, service, owns_service=owns_service)

    def make_current(self) -> None:
        """Make the GPU this thread's device."""
        self.driver.call("hipSetDevice", self._index)

    def load_packages(self, packages: Sequence[KernelPackage]) -> list[StreamKernel]:
        """Return kernels of objects, linked."""
        return self._loader.load(packages)

    def prepare_launch(self, launch: Launch, number: int) -> RocmLaunch:
        """Return a launch."""
        del number
        return RocmLaunch(launch)

    def submit(self, launch: PreparedLaunch) -> None:
        """Queue a launch."""
        package = launch.kernel.package
        self.driver.call(
            "hipModuleLaunchKernel", launch.kernel.function, *launch.grid, package.threads, 1, 1,
            package.shared_bytes, self.stream, launch.address, None,
        )  # fmt: skip

    def unload(self) -> None:
        """Unload all modules."""
        self._loader.close()
