"""Check flake.nix without a network: parse it, and evaluate its outputs over a stub of nixpkgs.

    python scripts/check_flake.py [--require]
    python scripts/check_flake.py self-test

Needs ``nix-instantiate`` (Debian: ``nix-bin``). Without it the check says that it was skipped and
ends well, or fails with ``--require``. It proves that the flake evaluates, that both shells exist for
each system, that they hold the promised tools by their nixpkgs names, and that nothing but nixpkgs is
an input. It does not build anything.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SYSTEMS = ("x86_64-linux", "aarch64-linux")
SHELLS = ("default", "npu")
# What each shell must hold, as nixpkgs calls it.
TOOLS = (
    "python311",
    "uv",
    "just",
    "llvmPackages.llvm",
    "lld",
    "vulkan-loader",
    "vulkan-tools",
    "spirv-tools",
    "resvg",
)
# Attributes of nixpkgs that the flake may use; any other name ends the evaluation.
PACKAGES = (*TOOLS, "git", "nixfmt-rfc-style", "vulkan-validation-layers", "zlib")
STUB = """
flakePath:
let
  package = name: { inherit name; outPath = "/stub/" + name; };
  lib = {
    genAttrs = names: make:
      builtins.listToAttrs (map (name: { inherit name; value = make name; }) names);
    makeLibraryPath = found: builtins.concatStringsSep ":" (map (p: "${p}/lib") found);
  };
  pkgs = {
    inherit lib;
    mkShell = shell: shell;
    stdenv.cc.cc.lib = package "gcc-lib";
    %(packages)s
  };
  nixpkgs = { inherit lib; legacyPackages = lib.genAttrs %(systems)s (system: pkgs); };
  flake = import flakePath;
  outputs = flake.outputs { self = outputs; inherit nixpkgs; };
  shown = shell: { packages = map (p: p.name) shell.packages; hook = shell.shellHook; };
in {
  inputs = builtins.attrNames flake.inputs;
  shells = builtins.mapAttrs (system: builtins.mapAttrs (name: shown)) outputs.devShells;
}
"""


def stub() -> str:
    """Return the expression that evaluates a flake over the stub of nixpkgs."""
    lines = [f'{name} = package "{name}";' for name in PACKAGES]
    systems = "[ " + " ".join(f'"{system}"' for system in SYSTEMS) + " ]"
    return STUB % {"packages": "\n    ".join(lines), "systems": systems}


def nix(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run nix-instantiate without a store."""
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "NIX_REMOTE": "dummy://", "HOME": home, "NIX_STATE_DIR": home}
        return subprocess.run(
            ["nix-instantiate", *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )


def check(flake: Path) -> list[str]:
    """Return what is wrong with a flake."""
    parsed = nix("--parse", str(flake))
    if parsed.returncode:
        return [f"it does not parse: {parsed.stderr.strip()}"]
    expression = f"({stub()}) {flake.resolve()}"
    done = nix("--eval", "--strict", "--json", "-E", expression)
    if done.returncode:
        return [f"it does not evaluate: {done.stderr.strip()}"]
    return judge(json.loads(done.stdout))


def judge(found: dict[str, Any]) -> list[str]:
    """Return what is wrong with a flake's inputs and shells."""
    problems: list[str] = []
    if found["inputs"] != ["nixpkgs"]:
        problems.append(f"its inputs are {found['inputs']}, not nixpkgs alone")
    for system in SYSTEMS:
        for name in SHELLS:
            shell = found["shells"].get(system, {}).get(name)
            if shell is None:
                problems.append(f"there is no shell {name!r} for {system}")
                continue
            problems += [
                f"the shell {name!r} for {system} lacks {tool}"
                for tool in TOOLS
                if tool not in shell["packages"]
            ]
            if "/stub/vulkan-loader/lib" not in shell["hook"]:
                problems.append(f"the shell {name!r} hides the Vulkan loader from wheels")
            if ("PEANO_INSTALL_DIR" in shell["hook"]) != (name == "npu"):
                problems.append(f"the shell {name!r}: only 'npu' asks for Peano")
    return problems


def self_test() -> None:
    """Show that the flake passes and that each known-bad one fails."""
    good = (ROOT / "flake.nix").read_text()
    bad = {
        "does not parse": good.replace("in\n", "on\n", 1),
        "does not evaluate": good.replace("pkgs.resvg", "pkgs.resvgg"),
        "lacks resvg": good.replace("        pkgs.resvg\n", ""),
        "lacks llvmPackages.llvm": good.replace("        pkgs.llvmPackages.llvm\n", ""),
        "no shell 'npu'": good.replace("npu = pkgs.mkShell", "cpu = pkgs.mkShell"),
        "only 'npu' asks for Peano": good.replace("hook pkgs + npuHook", "hook pkgs"),
        "not nixpkgs alone": good.replace(
            "inputs.nixpkgs", 'inputs.other.url = "x";\n  inputs.nixpkgs'
        ),
        "hides the Vulkan loader": good.replace("(wheelLibraries pkgs)", "[ ]"),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "flake.nix"
        path.write_text(good)
        if problems := check(path):
            raise AssertionError(f"the flake itself fails: {problems}")
        for message, text in bad.items():
            if text == good:
                raise AssertionError(f"the known-bad input for {message!r} is the flake itself")
            path.write_text(text)
            problems = check(path)
            if not any(message in problem for problem in problems):
                raise AssertionError(f"expected {message!r}, got {problems}")
    print("check_flake: self-test passed")


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mode", nargs="?", choices=("check", "self-test"), default="check")
    parser.add_argument("--require", action="store_true", help="fail if nix is not installed")
    arguments = parser.parse_args()
    if shutil.which("nix-instantiate") is None:
        print(
            "flake: NOT CHECKED, nix-instantiate is not installed (Debian: nix-bin)",
            file=sys.stderr,
        )
        sys.exit(1 if arguments.require else 0)
    if arguments.mode == "self-test":
        self_test()
        return
    if problems := check(ROOT / "flake.nix"):
        sys.exit("\n".join(f"flake.nix: {problem}" for problem in problems))
    print("the flake parses, and its shells evaluate over a stub of nixpkgs")


if __name__ == "__main__":
    main()
