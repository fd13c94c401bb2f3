"""Run every gate against inputs that it must refuse."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent
# The linter, the formatter and the type checker are gates of others; they test themselves.
GATES = (
    "check_layers.py",
    "check_dead_code.py",
    "check_dependencies.py",
    "check_versions.py",
    "model_free_inventory.py",
    "check_lane_coverage.py",
    "check-required-cases.py",
    "check_documentation.py",
    "check_files.py",
    "check_examples.py",
    "check_wheels.py",
    "check_standalone.py",
    "lane.py",
    "npu_build.py",
    "render_diagrams.py",
    "check_flake.py",
)


def main() -> int:
    """Run each gate's self-test; return the number that failed."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    failed = [
        name
        for name in GATES
        if subprocess.run([sys.executable, SCRIPTS / name, "self-test"], check=False).returncode
    ]
    print(f"self-tests that failed: {', '.join(failed)}" if failed else "every gate refuses")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
