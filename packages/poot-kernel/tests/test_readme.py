"""The README's opcode table and example are those of the code."""

import re
from pathlib import Path

from poot_kernel import OPCODES

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_opcode_table_is_complete():
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|.*\| (.*) \|$", README, re.MULTILINE)
    expected = [(s.name, s.level, s.doc.replace("|", "/")) for s in OPCODES.values()]
    assert rows == expected


def test_example_runs():
    example = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    exec(example[1], {})
