"""What an installation takes on the disk: wheels of every package, and the libraries they declare."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from benchmarks.server.results import conditions

__all__ = ["measure_install"]

REFUSED = ("torch", "transformers", "tensorflow", "jax", "triton")


def measure_install() -> dict[str, Any]:
    """Return the bytes of a fresh environment with poot-serve in it, by distribution.

    Raises:
        ValueError: If it holds a framework that poot does without.
    """
    before = conditions()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        wheels, venv = place / "wheels", place / "venv"
        build = [
            "uv",
            "build",
            "-q",
            "--all-packages",
            "--wheel",
            "--no-sources",
            "--out-dir",
            str(wheels),
        ]
        subprocess.run(build, check=True, stdout=sys.stderr)
        subprocess.run(["uv", "venv", "-q", "--python", sys.executable, str(venv)], check=True)
        install = ["uv", "pip", "install", "-q", "--link-mode", "copy", "--no-compile-bytecode"]
        install += ["--python", str(venv), "--find-links", str(wheels), "poot-serve"]
        subprocess.run(install, check=True)
        [site] = venv.glob("lib/python*/site-packages")
        sizes = Counter[str]()
        for each in distributions(path=[str(site)]):
            # Scripts and data lie beside the packages; they count too.
            sizes[each.name] = sum(
                found.stat().st_size
                for file in each.files or ()
                if (found := Path(str(each.locate_file(file)))).is_file()
            )
        used = subprocess.run(["du", "-sk", str(site)], capture_output=True, text=True, check=True)
        bad = sorted(set(REFUSED) & set(sizes))
        if bad:
            raise ValueError(f"the environment holds {bad}")
        backends = sorted(name for name in sizes if name.endswith("-device"))
    return {
        **before,
        "site_packages_bytes_on_disk": int(used.stdout.split()[0]) * 1024,
        "distributions": len(sizes),
        "backends": backends,
        "largest_bytes": dict(sizes.most_common(12)),
    }
