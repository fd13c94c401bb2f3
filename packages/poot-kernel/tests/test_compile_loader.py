"""The object loader: relocations, refusals, memory protection."""

from __future__ import annotations

import contextlib
import ctypes
import random
import struct
from pathlib import Path

import pytest

from poot_core import CompileError, Settings, Target
from poot_kernel.compile import (
    CompileRequest,
    CompileService,
    host_arch,
    host_target,
    load_objects,
)
from poot_kernel.compile._elf import read_object
from poot_kernel.compile._relocate import apply_relocation

# Constants of several sections, an address in data, a call to another function, external linkage
# (which goes through the table of addresses), zero-initialised data.
IR = """
@table = internal constant [4 x i64] [i64 31, i64 41, i64 59, i64 26]
@shared = global i64 53
@pointer = internal constant ptr @table
@counter = internal global i64 0
@switch = internal global ptr @helper
define internal i64 @helper(i64 %x) noinline {
  %y = mul i64 %x, 3
  ret i64 %y
}
define i64 @other(i64 %x) noinline {
  %y = add i64 %x, 1000
  ret i64 %y
}
define i64 @f(i64 %i) {
  %t = load volatile ptr, ptr @pointer
  %p = getelementptr i64, ptr %t, i64 %i
  %v = load i64, ptr %p
  %s = load i64, ptr @shared
  %h = load volatile ptr, ptr @switch
  %a = call i64 %h(i64 %v)
  %b = call i64 @other(i64 %s)
  %old = load i64, ptr @counter
  %new = add i64 %old, 1
  store i64 %new, ptr @counter
  %c = add i64 %a, %b
  %d = mul i64 %new, 10000
  %e = add i64 %c, %d
  ret i64 %e
}
"""


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    targets = {"host": host_target(Settings()), "x86-64": Target("cpu", "x86-64"),
               "aarch64": Target("cpu", "aarch64")}  # fmt: skip
    with CompileService(Settings(kernel_cache_dir=tmp_path_factory.mktemp("cache"))) as service:
        compiled = service.compile(
            [
                CompileRequest(kind="llvm-host-object", ir=IR, target=target, entries=("f",))
                for target in targets.values()
            ]
        )
    return dict(zip(targets, (c.data for c in compiled), strict=True))


def function(address: int):
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)


def test_every_kind_of_reference_resolves(objects: dict[str, bytes]) -> None:
    code = load_objects([objects["host"]] * 3, host_arch())
    for symbols in code.symbols:  # each object has data of its own
        f = function(symbols["f"])
        for call, (index, value) in enumerate([(0, 31), (3, 26), (2, 59)], start=1):
            assert f(index) == 3 * value + 1053 + 10000 * call
        assert set(symbols) == {"f", "other", "shared"}


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads /proc")
def test_no_page_is_writable_and_executable(objects: dict[str, bytes]) -> None:
    code = load_objects([objects["host"]], host_arch())
    modes: dict[str, str] = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, mode = line.split()[:2]
        first, last = (int(part, 16) for part in span.split("-"))
        for name in ("f", "shared"):
            if first <= code.symbols[0][name] < last:
                modes[name] = mode
    assert modes == {"f": "r-xp", "shared": "rw-p"}


def test_both_machines_objects_are_placed(objects: dict[str, bytes]) -> None:
    for machine in ("x86-64", "aarch64"):
        file = read_object(objects[machine])
        assert file.machine == machine
        assert file.relocations
        load_objects([objects[machine]], machine)  # every relocation kind is known


def test_code_for_another_machine_is_refused(objects: dict[str, bytes]) -> None:
    other = "aarch64" if host_arch() == "x86-64" else "x86-64"
    with pytest.raises(CompileError, match=f"code is for {other}"):
        load_objects([objects[other]], host_arch())


def test_any_truncation_is_one_clean_error(objects: dict[str, bytes]) -> None:
    data = objects["host"]
    for length in range(0, len(data), 37):
        with pytest.raises(CompileError):
            load_objects([data[:length]], host_arch())


def test_random_damage_never_escapes(objects: dict[str, bytes]) -> None:
    rng = random.Random(7)
    for _ in range(300):
        data = bytearray(objects["host"])
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        with contextlib.suppress(CompileError):
            load_objects([bytes(data)], host_arch())


def test_an_unknown_relocation_is_named() -> None:
    with pytest.raises(CompileError, match="relocation type 37 of x86-64"):
        apply_relocation("x86-64", 37, memoryview(bytearray(8)), 0, 0, 0)


PLACE = 0x10_0000_0000

# (kind, instruction before, value, instruction after), encoded by hand from the Arm ARM.
AARCH64 = [
    (283, 0x94000000, PLACE + 0x1000, 0x94000400),  # bl +0x1000
    (283, 0x94000000, PLACE - 4, 0x97FFFFFF),  # bl -4
    (282, 0x14000000, PLACE + 8, 0x14000002),  # b +8
    (280, 0x54000000, PLACE + 16, 0x54000080),  # b.eq +16
    (279, 0x36000000, PLACE - 8, 0x3607FFC0),  # tbz w0, #0, -8
    (275, 0x90000000, PLACE + 0x5678, 0xB0000020),  # adrp x0, +5 pages
    (275, 0x90000001, PLACE - 0x1000, 0xF0FFFFE1),  # adrp x1, -1 page
    (277, 0x91000000, 0x12345678, 0x9119E000),  # add x0, x0, #0x678
    (278, 0x39400000, 0x1FFF, 0x397FFC00),  # ldrb w0, [x0, #0xfff]
    (285, 0xB9400000, 0x1678, 0xB9467800),  # ldr w0, [x0, #0x678]
    (286, 0xF9400000, 0x1678, 0xF9433C00),  # ldr x0, [x0, #0x678]
    (299, 0x3DC00000, 0x1670, 0x3DC19C00),  # ldr q0, [x0, #0x670]
]


@pytest.mark.parametrize(("kind", "before", "value", "after"), AARCH64)
def test_aarch64_instructions_are_patched(kind: int, before: int, value: int, after: int) -> None:
    image = bytearray(struct.pack("<I", before))
    apply_relocation("aarch64", kind, memoryview(image), 0, PLACE, value)
    assert struct.unpack("<I", image)[0] == after


@pytest.mark.parametrize(
    ("machine", "kind", "value"),
    [
        ("aarch64", 283, PLACE + (1 << 27)),  # past a branch's reach
        ("aarch64", 283, PLACE + 2),  # between instructions
        ("aarch64", 275, PLACE + (1 << 33)),
        ("aarch64", 286, 0x1004),  # not a multiple of the access
        ("x86-64", 2, PLACE + (1 << 31)),
        ("x86-64", 11, 1 << 31),
    ],
)
def test_out_of_reach_is_an_error(machine: str, kind: int, value: int) -> None:
    with pytest.raises(CompileError, match="cannot reach"):
        apply_relocation(machine, kind, memoryview(bytearray(8)), 0, PLACE, value)
