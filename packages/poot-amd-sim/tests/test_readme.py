"""The README's example runs and prints what it says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.sim


def test_the_example_prints_its_comment():
    text = (Path(__file__).parents[1] / "README.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, check=False
    )
    assert done.stdout == "[0. 2. 4. 6.]\n", done.stderr
