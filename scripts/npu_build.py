"""Lower the pointwise kernels for an AMD AI Engine core (aie2) to LLVM IR, and verify it. Experimental.

What this shows: the row kernels need no intrinsic of another processor, and their IR is valid for the
core's triple and data layout. What it does not: nothing here runs on an NPU, and poot has no NPU device.

The lowering and its verification always happen. Then Peano (AMD's LLVM for the AI Engine) compiles the
IR to an object: it is found through PEANO_INSTALL_DIR, as the `.#npu` shell sets it, and without it the
program fails, unless POOT_ALLOW_NO_NPU_SHELL=1 says that this machine has none.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import llvmlite.binding as llvm

from poot_core import DeviceCaps, Target
from poot_kernel import lower_host
from poot_kernelgen import RowInput, RowNode, RowOutput, RowProgram, generate

ROOT = Path(__file__).resolve().parent.parent
TRIPLE = "aie2-none-unknown-elf"
# Of Peano's aie2 target: pointers are 20 bits wide in slots of 32, i64 is aligned to 32.
DATA_LAYOUT = "e-m:e-p:20:32-i1:8:32-i8:8:32-i16:16:32-i32:32:32-f32:32:32-i64:32-f64:32-a:0:32-n32"
# The host lowering without intrinsics of a processor; 16 lanes of f32 fill one AIE vector.
GENERIC = Target.parse("cpu:aarch64")
CORE = DeviceCaps(
    name="aie2", vector_bytes=64, subgroup_size=16, num_workers=1, shared_bytes=1 << 16,
    memory_bytes=1 << 16,
)  # fmt: skip
WIDTH = 256
UNARY = ("neg", "abs", "exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh", "erf", "floor")
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum")
FOREIGN = re.compile(r"@llvm\.(x86|aarch64|nvvm|amdgcn|arm)\.[\w.]+")


def _program(num_inputs: int, *nodes: tuple[str, tuple[int, ...]], dtype: str) -> RowProgram:
    shape = (WIDTH,)
    inputs = tuple(RowInput(dtype=dtype, shape=shape) for _ in range(num_inputs))
    made = [RowNode(op=o, operands=x, shape=shape, dtype=dtype) for o, x in nodes]
    result = num_inputs + len(made) - 1
    return RowProgram(
        inputs=inputs, nodes=tuple(made), outputs=(RowOutput(value=result, dtype=dtype),)
    )


def programs() -> Iterator[tuple[str, RowProgram]]:
    """Yield the pointwise programs by name: each primitive, and chains that models have."""
    for dtype in ("f32", "bf16"):
        for op in UNARY:
            yield f"{op}_{dtype}", _program(1, (op, (0,)), dtype=dtype)
        for op in BINARY:
            yield f"{op}_{dtype}", _program(2, (op, (0, 1)), dtype=dtype)
        # silu(gate) * up = gate / (1 + exp(-gate)) * up, with the 1 as a third input.
        silu = [("neg", (0,)), ("exp", (3,)), ("add", (2, 4)), ("div", (0, 5)), ("mul", (6, 1))]
        yield f"silu_gate_{dtype}", _program(3, *silu, dtype=dtype)
        yield f"residual_{dtype}", _program(3, ("add", (0, 1)), ("add", (3, 2)), dtype=dtype)


def lower(name: str, program: RowProgram) -> str:
    """Return the LLVM IR text of a program for the core."""
    (kernel,) = generate(program, GENERIC, CORE)
    text = lower_host(kernel.function, GENERIC)
    text = re.sub(r"^target (triple|datalayout) = .*\n", "", text, flags=re.MULTILINE)
    head = f'; {name}\ntarget datalayout = "{DATA_LAYOUT}"\ntarget triple = "{TRIPLE}"\n'
    return head + text


def problems_of(name: str, text: str) -> list[str]:
    """Return why IR is not valid for the core."""
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        return [f"{name}: {error}"]
    problems = [
        f"{name}: calls {m[0]}, which is another processor's" for m in FOREIGN.finditer(text)
    ]
    if module.triple != TRIPLE:
        problems.append(f"{name}: triple {module.triple!r} instead of {TRIPLE!r}")
    undefined = [
        f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")
    ]
    return problems + [f"{name}: calls {found}, which nothing defines" for found in undefined]


def compiler() -> Path | None:
    """Return Peano's clang, or None."""
    folder = os.environ.get("PEANO_INSTALL_DIR")
    path = Path(folder) / "bin" / "clang" if folder else None
    return path if path and path.is_file() else None


def compile_all(clang: Path, sources: list[Path]) -> list[str]:
    """Compile IR files to objects beside them; return what failed."""
    problems: list[str] = []
    for source in sources:
        command = [str(clang), f"--target={TRIPLE}", "-O2", "-c", str(source)]
        command += ["-o", str(source.with_suffix(".o"))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            problems.append(f"{source.name}: {done.stderr.strip()[:2000]}")
    return problems


def self_test() -> list[str]:
    """Return which bad IR passes."""
    head = f'target triple = "{TRIPLE}"\n'
    attempts = {
        "IR that does not parse": head + "define void @f() { ret i32 }\n",
        "IR of another triple": 'target triple = "x86_64-linux"\ndefine void @f() { ret void }\n',
        "an intrinsic of another processor": head
        + "declare i32 @llvm.x86.sse42.crc32.32.8(i32, i8)\n"
        + "define i32 @f(i8 %x) {\n %r = call i32 @llvm.x86.sse42.crc32.32.8(i32 0, i8 %x)\n"
        + " ret i32 %r\n}\n",
        "a call of the C library": head
        + "declare float @expf(float)\n"
        + "define float @f(float %x) {\n %r = call float @expf(float %x)\n ret float %r\n}\n",
    }
    missed = [name for name, text in attempts.items() if not problems_of(name, text)]
    missed += problems_of("good IR", head + "define void @f() {\n ret void\n}\n")
    return missed


def build(out: Path) -> list[str]:
    """Lower, verify and compile; return what is wrong."""
    out.mkdir(parents=True, exist_ok=True)
    problems: list[str] = []
    sources: list[Path] = []
    for name, program in programs():
        text = lower(name, program)
        problems += problems_of(name, text)
        sources.append(out / f"{name}.ll")
        sources[-1].write_text(text)
    print(f"{len(sources)} kernels lowered for {TRIPLE} in {out}", file=sys.stderr)
    if problems:
        return problems
    if clang := compiler():
        return compile_all(clang, sources)
    if os.environ.get("POOT_ALLOW_NO_NPU_SHELL") == "1":
        print("not compiled: no Peano here, as POOT_ALLOW_NO_NPU_SHELL=1 says", file=sys.stderr)
        return []
    return [
        "Peano is missing: PEANO_INSTALL_DIR names no folder with bin/clang. Enter the .#npu shell, "
        "or set POOT_ALLOW_NO_NPU_SHELL=1 on a machine that has none"
    ]


def main() -> int:
    """Build, or test the verification; return 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", nargs="?", default="build", choices=["build", "self-test"])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "npu")
    arguments = parser.parse_args()
    if arguments.command == "self-test":
        problems = self_test()
        done = "the verification of NPU kernels refuses every bad module"
    else:
        problems, done = build(arguments.out), "every kernel is valid for the core"
    print("\n".join(problems) or done)
    return min(len(problems), 1)


if __name__ == "__main__":
    sys.exit(main())
