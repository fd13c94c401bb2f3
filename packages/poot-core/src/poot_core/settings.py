"""The one place that reads POOT_ environment variables; a bad value raises."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from poot_core.errors import SettingsError

__all__ = ["Settings"]

_KNOWN = {
    "POOT_BACKEND": "device to open when none is named: auto, cpu, vulkan, wgpu, ptx, rocm, oracle",
    "POOT_CHECK": "1 checks every access of a kernel and every stage of a compilation",
    "POOT_CPU_FEATURES": "mask of host features, such as avx2 (never more than the host has)",
    "POOT_DEVICE": "which of a backend's devices to open: its number or a part of its name",
    "POOT_HIDE_DEVICES": "1 makes every device but the host CPU absent (test lanes)",
    "POOT_KERNEL_CACHE": "0, off or false keeps compiled kernels in a per-process directory",
    "POOT_KERNEL_CACHE_DIR": "directory of the kernel cache",
    "POOT_MODELS_DIR": "directory that holds the checkpoints of the tests",
    "POOT_REQUIRE_DEVICES": "1 makes an absent device fail a test instead of skipping it",
    "POOT_REQUIRE_MODELS": "1 makes a missing checkpoint fail a test instead of skipping it",
    "POOT_THREADS": "threads of the host CPU team",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the environment asked for.

    Attributes:
        backend: Device to open when the caller names none.
        check: Whether verifiers and bounds checks run.
        cpu_features: Names of the host features to keep, or None for all that the host has.
        device: Which of a backend's devices to open: its number or a part of its name; None for the
            best.
        hide_devices: Whether every device but the host CPU is to look absent.
        kernel_cache_dir: Root of the on-disk kernel cache, or None for a per-process directory.
        models_dir: Where tests find checkpoints.
        require_devices: Whether an absent device is a failure of the test that needs it.
        require_models: Whether a missing checkpoint is a failure.
        threads: Team size, or None to derive it from affinity and quota.
    """

    backend: str = "auto"
    check: bool = False
    cpu_features: frozenset[str] | None = None
    device: str | None = None
    hide_devices: bool = False
    kernel_cache_dir: Path | None = None
    models_dir: Path | None = None
    require_devices: bool = False
    require_models: bool = False
    threads: int | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Return the settings that the environment (by default ``os.environ``) asks for.

        Raises:
            SettingsError: If a POOT_ variable is unknown or holds a bad value.
        """
        env = os.environ if environment is None else environment
        for name in env:
            if (
                name.startswith("POOT_")
                and name not in _KNOWN
                and not name.startswith("POOT_ACCEPT")
            ):
                _refuse_unknown(name)
        features = env.get("POOT_CPU_FEATURES")
        models = env.get("POOT_MODELS_DIR")
        return cls(
            backend=env.get("POOT_BACKEND") or "auto",
            check=_flag(env, "POOT_CHECK", default=False),
            cpu_features=frozenset(features.replace("+", ",").split(",")) if features else None,
            device=env.get("POOT_DEVICE") or None,
            hide_devices=_flag(env, "POOT_HIDE_DEVICES", default=False),
            kernel_cache_dir=_cache_dir(env),
            models_dir=Path(models).expanduser() if models else None,
            require_devices=_flag(env, "POOT_REQUIRE_DEVICES", default=False),
            require_models=_flag(env, "POOT_REQUIRE_MODELS", default=False),
            threads=_positive(env, "POOT_THREADS"),
        )


def _refuse_unknown(name: str) -> None:
    # A program of the workspace's own (benchmarks, acceptance) may keep further variables.
    if name in {"POOT_ALLOW_NO_NPU_SHELL", "POOT_LLAMA_BENCH", "POOT_LLAMA_SERVER"}:
        return
    known = ", ".join(sorted(_KNOWN))
    raise SettingsError(f"{name} is no variable of poot; known are {known}", name=name)


def _flag(env: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = env.get(name, "").strip().lower()
    if not text:
        return default
    if text in {"1", "on", "true", "yes"}:
        return True
    if text in {"0", "off", "false", "no"}:
        return False
    raise SettingsError(f"{name}={text!r} is neither on nor off; write 1 or 0", name=name)


def _positive(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise SettingsError(f"{name}={text!r} is no positive integer", name=name)
    return int(text)


def _cache_dir(env: Mapping[str, str]) -> Path | None:
    if not _flag(env, "POOT_KERNEL_CACHE", default=True):
        return None
    if explicit := env.get("POOT_KERNEL_CACHE_DIR"):
        return Path(explicit).expanduser()
    if xdg := env.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "poot" / "kernels"
    return Path(env.get("HOME") or "~").expanduser() / ".cache" / "poot" / "kernels"
