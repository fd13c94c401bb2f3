"""How much memory is free: of the host, within the limit of the container."""

from __future__ import annotations

from pathlib import Path

__all__ = ["free_memory_bytes"]

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


def free_memory_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """Return the bytes that may be used without pushing anything out, or 0 where nobody says.

    Args:
        meminfo: Of the host (proc(5)).
        cgroup: Directory of the control group (cgroup v2), whose limit may be tighter.
    """
    free = 0
    try:
        for line in meminfo.read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                free = int(value.split()[0]) << 10
        limit = (cgroup / "memory.max").read_text().strip()
        if limit != "max":
            used = int((cgroup / "memory.current").read_text())
            # Pages of files in the cache count as used and are given up when need be.
            for line in (cgroup / "memory.stat").read_text().splitlines():
                if line.startswith("inactive_file "):
                    used -= int(line.split()[1])
            free = min(free, max(0, int(limit) - used))
    except (OSError, ValueError, IndexError):
        return free
    return free
