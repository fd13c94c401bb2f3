"""Where a run took place: machine, software and commit; no paths, names of users or hosts."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["commit", "describe", "hardware_slug"]

VERSIONS = ("poot-core", "poot-llm", "poot-serve", "numpy", "llvmlite")


def output_of(*command: str) -> str:
    """Return what a command prints, or nothing if there is no such command or it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def commit() -> str:
    """Return the short commit, with ``-dirty`` if tracked files of packages differ from it."""
    short = output_of("git", "rev-parse", "--short", "HEAD") or "unknown"
    dirty = output_of("git", "status", "--porcelain", "--untracked-files=no", "--", "packages")
    return f"{short}-dirty" if dirty else short


def processor() -> tuple[str, str]:
    """Return the processor's model name, and those of its features that decide kernels."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^flags\s*:\s*(.+)$", text, re.MULTILINE)
    wanted = (
        "avx2",
        "fma",
        "f16c",
        "avx512f",
        "avx512_vnni",
        "avx512_bf16",
        "amx_int8",
        "avx_vnni",
    )
    have = [flag for flag in wanted if flags and flag in flags[1].split()]
    return name[1].strip() if name else platform.processor() or platform.machine(), " ".join(have)


def memory_gib() -> float | None:
    """Return the machine's memory in GiB."""
    info = Path("/proc/meminfo")
    found = re.search(r"MemTotal:\s+(\d+) kB", info.read_text()) if info.exists() else None
    return round(int(found[1]) / 2**20, 1) if found else None


def describe(engines: dict[str, str]) -> dict[str, Any]:
    """Return the environment of a run.

    Args:
        engines: Version of each engine as it says itself.
    """
    name, features = processor()
    versions: dict[str, str] = {}
    for package in VERSIONS:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "commit": commit(),
        "processor": name,
        "features": features,
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory_gib": memory_gib(),
        "gpus": output_of("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"),
        "system": f"{platform.system()} {platform.release()}",
        "libc": " ".join(platform.libc_ver()).strip(),
        "python": platform.python_version(),
        "versions": versions,
        "engines": engines,
        "load_average": [round(value, 2) for value in os.getloadavg()],
        "variables": {k: v for k, v in sorted(os.environ.items()) if _is_told(k)},
    }


def _is_told(name: str) -> bool:
    """Return whether a variable changes figures and holds no path."""
    return name.startswith(("POOT_", "OMP_", "OPENBLAS_", "MKL_")) and not name.endswith(
        ("_DIR", "_BENCH", "_SERVER")
    )


def hardware_slug(environment: dict[str, Any]) -> str:
    """Return a short name of the hardware, as a folder's name holds it.

    >>> hardware_slug({"processor": "AMD EPYC 9B14", "cores": 2, "gpus": ""})
    'amd-epyc-9b14-2c'
    """
    gpus = str(environment.get("gpus") or "").splitlines()
    name = gpus[0].partition(",")[0] if gpus else environment["processor"]
    words = re.sub(r"\((r|tm)\)|cpu|processor|@.*", " ", str(name).lower())
    slug = "-".join(re.findall(r"[a-z0-9]+", words))
    return f"{slug}-{len(gpus)}g" if gpus else f"{slug}-{environment['cores']}c"
