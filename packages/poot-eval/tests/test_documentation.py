"""Every example in docstrings and in the README runs."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import poot_eval

MODULES = [m.name for m in pkgutil.walk_packages(poot_eval.__path__, "poot_eval.")]


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_readme() -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
