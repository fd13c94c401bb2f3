"""Under the Vulkan validation layer any message fails the test that caused it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest


def validation_log() -> Path | None:
    """Return where the lane lets the layer log, if it does; see scripts/lane.py."""
    folder = os.environ.get("VK_LAYER_SETTINGS_PATH")
    if folder is None:
        return None
    settings = (Path(folder) / "vk_layer_settings.txt").read_text()
    found = re.search(r"^khronos_validation\.log_filename = (.*)$", settings, re.MULTILINE)
    return None if found is None else Path(found[1])


@pytest.fixture(autouse=True)
def no_validation_message() -> Iterator[None]:
    log = validation_log()

    def text() -> str:
        return log.read_text(errors="replace") if log is not None and log.is_file() else ""

    before = len(text())
    yield
    said = text()[before:]
    assert not said, f"the validation layer says: {said[:2000]}"
