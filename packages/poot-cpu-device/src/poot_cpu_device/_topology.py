"""What the operating system lets this process use: cores, quota, caches, memory."""

from __future__ import annotations

import os
import platform
from pathlib import Path

__all__ = ["available_memory_bytes", "cache_bytes", "processor_name", "team_size"]

_CPUS = Path("/sys/devices/system/cpu")
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_DEFAULT_L2_BYTES = 1 << 20
_UNLIMITED = 1 << 60  # cgroup v1 writes a page-rounded 2^63 for "no limit"


def team_size() -> int:
    """Return the number of physical cores in the affinity mask, at most the cgroup's quota."""
    cores = _physical_cores()
    quota = _cgroup_cpus()
    return max(1, cores if quota is None else min(cores, int(quota)))


def _physical_cores() -> int:
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cores: set[str] = set()
    for cpu in os.sched_getaffinity(0):
        topology = _CPUS / f"cpu{cpu}" / "topology"
        cores.add(
            _read(topology / "core_cpus_list")
            or _read(topology / "thread_siblings_list")
            or str(cpu)
        )
    return len(cores)


def _cgroup_cpus(root: Path = _CGROUP_ROOT, membership: str | None = None) -> float | None:
    """Return the CPUs that the tightest quota from this process's cgroup upwards allows."""
    quotas: list[float] = []
    for version, folder in _cgroup_folders("cpu", root, membership):
        if version == 2:
            parts = _read(folder / "cpu.max").split()
            quota, period = (parts[0], parts[1]) if len(parts) == 2 else ("max", "0")
        else:
            quota = _read(folder / "cpu.cfs_quota_us")
            period = _read(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _cgroup_folders(controller: str, root: Path, membership: str | None) -> list[tuple[int, Path]]:
    """Return (cgroup version, folder) from this process's cgroup up to the root."""
    folders: list[tuple[int, Path]] = []
    text = _read(Path("/proc/self/cgroup")) if membership is None else membership
    for line in text.splitlines():
        hierarchy, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if hierarchy == "0" and not names:
            version, base = 2, root
        elif controller in names.split(","):
            version = 1
            base = next((d for d in (root / names, root / controller) if d.is_dir()), root)
        else:
            continue
        folder = base / path.lstrip("/")
        while True:
            folders.append((version, folder))
            if folder == base or base not in folder.parents:
                break
            folder = folder.parent
    return folders


def cache_bytes(level: int) -> int | None:
    """Return the size of the first processor's data or unified cache of a level."""
    for index in sorted((_CPUS / "cpu0" / "cache").glob("index*")):
        if _read(index / "level") == str(level) and _read(index / "type") != "Instruction":
            return _size(_read(index / "size"))
    return _DEFAULT_L2_BYTES if level == 2 else None


def _size(text: str) -> int | None:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number, unit = (text[:-1], text[-1]) if text and text[-1] in units else (text, "")
    return int(number) * units.get(unit, 1) if number.isdigit() else None


def processor_name() -> str:
    """Return what the processor calls itself."""
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def available_memory_bytes() -> int | None:
    """Return what can be allocated without swapping, within the cgroup's limit; None if unknown."""
    found: list[int] = []
    for line in _read(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) * 1024)
    for version, folder in _cgroup_folders("memory", _CGROUP_ROOT, None):
        names = (
            ("memory.max", "memory.current")
            if version == 2
            else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        )
        limit, used = (_read(folder / name) for name in names)
        if limit.isdigit() and used.isdigit() and int(limit) < _UNLIMITED:
            found.append(max(0, int(limit) - int(used)))
    return min(found, default=None)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
