"""What cached results depend on besides their request: installed versions and sources."""

from __future__ import annotations

import hashlib
import os
from importlib.util import find_spec
from pathlib import Path

__all__ = ["installed_versions", "site_directory", "source_fingerprint"]


def site_directory(package: str) -> Path | None:
    """Return the directory that holds an importable package, without importing it."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))).parent


def installed_versions(*distributions: str) -> tuple[str, ...]:
    """Return the versions of installed distributions, ``none`` for an absent one.

    Looks beside llvmlite first: importing ``importlib.metadata`` costs a warm start 10 ms.
    """
    site = site_directory("llvmlite")
    names = os.listdir(site) if site is not None else []
    return tuple(_version(distribution, names) for distribution in distributions)


def _version(distribution: str, site_names: list[str]) -> str:
    prefix, suffix = distribution.replace("-", "_") + "-", ".dist-info"
    for name in site_names:
        if name.startswith(prefix) and name.endswith(suffix):
            return name.removeprefix(prefix).removesuffix(suffix)
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return "none"


def source_fingerprint(*packages: str) -> str:
    """Return a digest of the names, sizes and modification times of packages' Python files.

    For keys of what those packages compute: an edited source then misses the cache.

    Raises:
        ModuleNotFoundError: If a package cannot be found.
    """
    digest = hashlib.sha256()
    for package in packages:
        site = site_directory(package)
        if site is None:
            raise ModuleNotFoundError(f"no package {package!r}")
        for folder, folders, files in os.walk(site / package):
            folders.sort()
            for name in sorted(files):
                if name.endswith(".py"):
                    facts = os.stat(os.path.join(folder, name))
                    relative = os.path.relpath(os.path.join(folder, name), site)
                    digest.update(f"{relative}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()
