"""Tile kernels on the host give the interpreter's bits, at 512, 256 and 128 bits of vectors."""

from __future__ import annotations

import ctypes
import struct

import numpy as np
import pytest

from poot_core import Settings, Target, UnsupportedError, bf16, f16, f32, i8, i32, i64, u8, u16
from poot_kernel import (
    IRBuilder,
    KernelFunction,
    Layout,
    compile_kernels,
    interleaved,
    lower_host,
    scratch_size,
)
from poot_kernel.compile import CompileService, host_arch, host_target, load_objects
from poot_kernel.interpreter import interpret

NATIVE = host_target(Settings())
AVX2 = Target(
    NATIVE.api, NATIVE.arch,
    frozenset(f for f in NATIVE.features if not f.startswith("avx512") and f != "avxvnni"),
)  # fmt: skip
NEON = Target("cpu", "aarch64", frozenset({"dotprod"}))
TARGETS = {"native": NATIVE, "avx2": AVX2}


@pytest.fixture(scope="module")
def service():
    with CompileService(Settings(), num_workers=1) as opened:
        yield opened


def run(kernel: KernelFunction, target: Target, service, arguments: list, num_tiles: int) -> None:
    (compiled,) = compile_kernels([kernel], target, service)
    code = load_objects([compiled.data], host_arch())
    slots = bytearray()
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            slots += struct.pack("<q", argument.ctypes.data)
        elif isinstance(argument, float):
            slots += struct.pack("<fi", argument, 0)
        else:
            slots += struct.pack("<q", argument)
    table = np.frombuffer(bytes(slots), np.uint8).copy()
    scratch = np.full(scratch_size(kernel).evaluate({}) + 128, 0xA5, np.uint8)
    base = scratch.ctypes.data
    base += -base % 64
    prototype = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
    )
    function = prototype(code.symbols[0][kernel.name])
    for tile in range(num_tiles):
        function(table.ctypes.data, tile, tile + 1, base)
    code.close()


def agree(kernel: KernelFunction, target: Target, service, arguments: list, num_tiles: int) -> None:
    """Run both and compare every array's bytes."""
    expected = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    interpret(kernel, expected)
    run(kernel, target, service, arguments, num_tiles)
    for mine, theirs in zip(arguments, expected, strict=True):
        if isinstance(mine, np.ndarray):
            assert mine.tobytes() == theirs.tobytes()


def views() -> tuple[KernelFunction, list, int]:
    """Masked copies and stores, broadcasting maps, views, reductions."""
    b = IRBuilder("views", level="tile", grid=["ceildiv(N, 16)"])
    x = b.array("x", f32, ["M", "N"])
    scale = b.array("scale", f32, ["N"])
    y = b.array("y", f32, ["M", "N"], access="w")
    z = b.array("z", f32, ["N"], access="w")
    b.scalar("M")
    b.scalar("N")
    n0 = b.mul(b.workgroup_id(), 16)
    tile = b.copy(x, [0, n0], (4, 16), bounds="masked")
    row = b.reshape(b.copy(scale, n0, (16,), bounds="masked"), (1, 16))
    scaled = b.map(lambda v, s: b.fma(v, s, b.constant(0.5)), tile, row)
    turned = b.transpose(b.transpose(scaled))
    halves = [b.slice(turned, (2 * i, 0), (2, 16)) for i in range(2)]
    dealt = b.interleave(*halves, axis=0, block=1)
    column = b.tile_convert(b.tile_iota((4, 1), 0, i32), f32)
    b.store_tile(y, b.map(b.add, dealt, column), [0, n0], bounds="masked")
    total = b.reduce(dealt, 0, "add", order="tree")
    largest = b.reduce(dealt, 0, "max")
    both = b.map(b.sub, total, largest)
    b.store_tile(z, b.reshape(both, (16,)), n0, bounds="masked")
    rng = np.random.default_rng(0)
    m, n = 3, 21
    arguments = [
        rng.standard_normal((m, n)).astype(np.float32), rng.standard_normal(n).astype(np.float32),
        np.zeros((m, n), np.float32), np.zeros(n, np.float32), m, n,
    ]  # fmt: skip
    return b.finish(), arguments, 2


def products(a_dtype, b_dtype, signature: str, layout: Layout):
    def build() -> tuple[KernelFunction, list, int]:
        b = IRBuilder("products", level="tile", grid=["N // 16"])
        x = b.array("x", a_dtype, ["M", "K"])
        w = b.raw("w")
        rows = b.array("rows", i32, [3])
        acc_dtype = i32 if signature == "exact" else f32
        y = b.array("y", acc_dtype, ["M", "N"], access="rw")
        b.scalar("M")
        n, k = b.scalar("N"), b.scalar("K")
        n0 = b.mul(b.workgroup_id(), 16)
        base = b.mul(n0, b.mul(k, b_dtype.itemsize))
        numbers = b.copy(rows, 0, (3,))
        with b.pipeline(0, k, 32, [b.tile_zeros((3, 16), acc_dtype)]) as pipe:
            with pipe.load() as start:
                at = b.add(base, b.mul(start, 16 * b_dtype.itemsize))
                pipe.yield_(
                    b.copy(w, at, layout=layout, dtype=b_dtype),
                    b.copy_rows(x, numbers, start, (32,)),
                )
            with pipe.compute() as (right, left):
                pipe.yield_(b.mma(left, right, pipe.carried[0], signature=signature))
        b.store_rows(y, pipe.result, b.copy(rows, 0, (3,)), n0)
        assert n is not None
        rng = np.random.default_rng(1)
        m, n_value, k_value = 4, 32, 64

        def make(dtype, shape):
            if dtype.is_integer:
                info = np.iinfo(dtype.numpy)
                return rng.integers(info.min, info.max + 1, shape, dtype=dtype.numpy)
            return rng.standard_normal(shape).astype(dtype.numpy)

        weights = make(b_dtype, (n_value * k_value,)).view(np.uint8)
        arguments = [
            make(a_dtype, (m, k_value)), weights, np.array([2, 0, 3], np.int32),
            np.zeros((m, n_value), acc_dtype.numpy), m, n_value, k_value,
        ]  # fmt: skip
        return b.finish(), arguments, 2

    return build


def control() -> tuple[KernelFunction, list, int]:
    """Loops, branches and scratch memory around tiles; a tile read before its memory changes."""
    b = IRBuilder("control", level="tile", grid=["N"])
    x = b.array("x", f32, ["N", 16], access="rw")
    n = b.scalar("N")
    g = b.workgroup_id()
    scratch = b.shared_alloc(f32, [4, 16])
    old = b.copy(x, [g, 0], (1, 16))
    with b.for_(0, 4) as loop:
        factor = b.convert(b.add(loop.index, 1), f32)
        b.store_tile(scratch, b.map(lambda v: b.mul(v, factor), old), [loop.index, 0])
    b.store_tile(x, b.tile_zeros((1, 16), f32), [g, 0])
    with b.if_(b.compare("lt", g, b.sub(n, 1))) as branch:
        with branch.then():
            branch.yield_(b.reduce(b.copy(scratch, [0, 0], (4, 16)), 0, "add"))
        with branch.otherwise():
            branch.yield_(old)
    with b.while_([branch.result, b.constant(0, i64)]) as loop:
        with loop.condition() as (tile, count):
            loop.test(b.compare("lt", count, g))
        with loop.body() as (tile, count):
            loop.yield_(b.map(lambda v: b.add(v, 1.0), tile), b.add(count, 1))
    result = b.map(b.add, loop.results[0], old)
    b.store_tile(x, result, [g, 0])
    data = np.random.default_rng(2).standard_normal((3, 16)).astype(np.float32)
    return b.finish(), [data, 3], 3


def tables() -> tuple[KernelFunction, list, int]:
    """Codes through a 16-entry table and through constant memory; conversions."""
    b = IRBuilder("tables", level="tile", grid=[1])
    codes = b.array("codes", u8, [4, 16])
    y = b.array("y", f32, [4, 16], access="w")
    h = b.array("h", f16, [4, 16], access="w")
    q = b.array("q", bf16, [4, 16], access="w")
    looked = b.constant_table([n * n for n in range(16)], u16, (16, 1))
    tile = b.copy(codes, [0, 0], (4, 16))
    small = b.map(lambda v: b.lut16(v, tuple(range(-8, 8)), i8), tile)
    rows = b.tile_convert(b.reshape(b.map(lambda v: b.and_(v, 15), tile), (64,)), i32)
    squares = b.reshape(b.copy_rows(looked, rows, 0, (1,)), (4, 16))
    value = b.map(
        lambda s, w: b.mul(b.convert(s, f32), b.fma(b.convert(w, f32), 0.1, 0.3)), small, squares
    )
    b.store_tile(y, value, [0, 0])
    b.store_tile(h, b.tile_convert(value, f16), [0, 0])
    b.store_tile(q, b.tile_convert(value, bf16), [0, 0])
    rng = np.random.default_rng(3)
    arguments = [
        rng.integers(0, 256, (4, 16), dtype=np.uint8), np.zeros((4, 16), np.float32),
        np.zeros((4, 16), np.float16), np.zeros((4, 16), bf16.numpy),
    ]  # fmt: skip
    return b.finish(), arguments, 1


BYTES = interleaved("kn", "k4n16", (32, 16))
PAIRS = Layout.parse("kn: k2@2 n16@4 k16@64")
CASES = {
    "views": views,
    "control": control,
    "tables": tables,
    "u8 weights": products(i8, u8, "exact", BYTES),
    "i8 weights": products(i8, i8, "exact", BYTES),
    "u8 activations": products(u8, i8, "exact", BYTES),
    "f32": products(f32, f32, "fma_chain", Layout.parse("kn: n16@4 k32@64")),
    "f16 weights": products(f32, f16, "fma_chain", Layout.parse("kn: n16@2 k32@32")),
    "bf16 pairs": products(bf16, bf16, "pair_chain", PAIRS),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES)
def test_bits_are_the_interpreters(case: str, target: str, service) -> None:
    kernel, arguments, num_tiles = CASES[case]()
    agree(kernel, TARGETS[target], service, arguments, num_tiles)


@pytest.mark.parametrize("case", CASES)
def test_neon_is_generated(case: str, service) -> None:
    kernel, _arguments, _num_tiles = CASES[case]()
    (compiled,) = compile_kernels([kernel], NEON, service)
    assert compiled.data[:4] == b"\x7fELF"


def test_an_old_processor_is_refused() -> None:
    kernel, _arguments, _num_tiles = views()
    with pytest.raises(UnsupportedError, match="AVX2, FMA and F16C"):
        lower_host(kernel, Target("cpu", "x86-64", frozenset({"sse4.2"})))


@pytest.mark.parametrize("target", TARGETS)
def test_the_stack_is_aligned_to_a_vector(target: str) -> None:
    """Spilled vectors would straddle cache lines otherwise, in some processes and not in others."""
    kernel, _arguments, _num_tiles = views()
    text = lower_host(kernel, TARGETS[target])
    entry = next(
        line for line in text.splitlines() if line.startswith(f"define void @{kernel.name}(")
    )
    assert "alignstack(64)" in entry
    assert '!{i32 1, !"override-stack-alignment", i32 64}' in text


def test_other_processors_take_no_stack_alignment() -> None:
    kernel, _arguments, _num_tiles = views()
    assert "override-stack-alignment" not in lower_host(kernel, NEON)
