"""The README's example runs and prints what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.device


def test_the_example_prints_its_comment(device) -> None:
    assert device.caps.name
    text = (Path(__file__).parents[1] / "README.md").read_text()
    (example,) = re.findall(r"```python no-run\n(.*?)```", text, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, check=False
    )
    assert done.stdout == "3100.0\n", done.stderr
