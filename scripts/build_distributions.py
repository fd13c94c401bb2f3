"""Build the wheel and the source distribution of every published package into dist/."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from distributions import ROOT, build, read_distributions


def main() -> None:
    """Build, leave out what is for development only, and list the order of installation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        build(Path(temporary), sdists=True)
        for one in read_distributions().values():
            if one.is_published:
                for file in sorted(Path(temporary).glob(f"{one.module}-*")):
                    shutil.copy2(file, out)
                    print(out / file.name)


if __name__ == "__main__":
    main()
