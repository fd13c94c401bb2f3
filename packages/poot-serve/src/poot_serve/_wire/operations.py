"""``/health`` and ``/version``."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

__all__ = ["Health", "Version"]


class Health(Struct, frozen=True, kw_only=True):
    """Whether requests are taken, and if not, what happens meanwhile."""

    status: Literal["ok", "loading", "failed", "draining"]
    detail: str | UnsetType = UNSET
    progress: float | UnsetType | None = UNSET


class Version(Struct, frozen=True, kw_only=True):
    """Versions of what runs."""

    version: str
    python: str
