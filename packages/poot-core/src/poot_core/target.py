"""What code is generated for: a target names an instruction set, capabilities one device."""

from __future__ import annotations

from dataclasses import dataclass, field

from poot_core.errors import SettingsError

__all__ = ["APIS", "DeviceCaps", "Target"]

APIS = ("cpu", "vulkan", "wgpu", "ptx", "rocm", "oracle")


@dataclass(frozen=True, slots=True)
class Target:
    """An instruction set; part of every kernel-cache key.

    Attributes:
        api: One of ``APIS``.
        arch: Processor or virtual architecture, such as ``x86-64``, ``sm_90a`` or ``gfx1100``.
        features: Instruction-set extensions that generated code may use.

    >>> Target.parse("cpu:x86-64:avx2+fma") == Target("cpu", "x86-64", frozenset({"fma", "avx2"}))
    True
    """

    api: str
    arch: str
    features: frozenset[str] = field(default_factory=lambda: frozenset[str]())

    @classmethod
    def parse(cls, text: str) -> Target:
        """Return the target that ``str`` printed.

        Raises:
            SettingsError: If the text is not ``api:arch[:feature+feature]`` of a known api.
        """
        parts = text.split(":")
        if len(parts) not in {2, 3} or parts[0] not in APIS or not parts[1]:
            raise SettingsError(
                f"{text!r} is no target: write api:arch or api:arch:feature+feature "
                f"with api one of {', '.join(APIS)}"
            )
        features = (
            frozenset(f for f in parts[2].split("+") if f) if len(parts) == 3 else frozenset[str]()
        )
        return cls(parts[0], parts[1], features)

    def __str__(self) -> str:
        tail = ":" + "+".join(sorted(self.features)) if self.features else ""
        return f"{self.api}:{self.arch}{tail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCaps:
    """Measured facts of one device; they choose schedules, never reduction order.

    Attributes:
        name: What the driver or the operating system calls the device.
        vector_bytes: Width of a SIMD register (host) or of the widest load of one invocation.
        subgroup_size: Invocations that run in lockstep; on the host, f32 lanes of a SIMD register.
        num_workers: Threads (host) or multiprocessors that run workgroups at once.
        shared_bytes: Workgroup memory; on the host, the L2 cache of one core.
        memory_bytes: Memory that the device can allocate in all.
        max_workgroup: Most invocations of one workgroup; 1 on the host. Above 1 kernels take GPU
            schedules.
        max_binding_bytes: Most bytes that a kernel can address through one argument, or None.
        is_software: Whether the host's processor plays the device (lavapipe, WARP); ``auto`` never
            takes one.
        may_contract: Whether the driver may turn a product and a sum into a fused multiply-add
            although it was not asked to.
    """

    name: str
    vector_bytes: int
    subgroup_size: int
    num_workers: int
    shared_bytes: int
    memory_bytes: int
    max_workgroup: int = 1
    max_binding_bytes: int | None = None
    is_software: bool = False
    may_contract: bool = False
