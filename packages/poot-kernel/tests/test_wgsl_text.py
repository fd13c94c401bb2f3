"""Generated WGSL: what must stand in it, and what is refused; no adapter needed."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from poot_core import (
    CompileError,
    DeviceCaps,
    Settings,
    Target,
    UnsupportedError,
    bf16,
    f32,
    i32,
    i64,
)
from poot_kernel import IRBuilder
from poot_kernel.compile import CompileService
from poot_kernel.targets.wgsl import (
    Binding,
    array_accesses,
    bind_arrays,
    compile,
    compile_wgsl,
    package_kernels,
)

CAPS = DeviceCaps(
    name="test", vector_bytes=16, subgroup_size=32, num_workers=1, shared_bytes=16384,
    memory_bytes=0, max_workgroup=256,
)  # fmt: skip


def scaled(dtype=f32, fastmath=(), count=1, alignment=0):
    """Return a kernel y = 2 * x + x over n elements."""
    b = IRBuilder("scaled", level="lane", grid=["ceildiv(n, 64)"], workgroup_size=64,
                  fastmath=fastmath)  # fmt: skip
    n = b.scalar("n")
    x, y = b.array("x", dtype, ["n"]), b.array("y", dtype, ["n"], access="w")
    start = b.mul(b.workgroup_id(), 64 * count)
    index = b.add(start, b.mul(b.convert(b.query("local_id"), i64), count))
    a = b.convert(b.load(x, index, count=count, alignment=alignment), f32)
    double = b.mul(a, b.splat(b.constant(2.0), count) if count > 1 else 2.0)
    b.store(y, index, b.convert(b.add(double, a), dtype), alignment=alignment)
    assert n.name == "n"
    return b.finish()


def text(kernel, **changes):
    return compile_wgsl(kernel, caps=replace(CAPS, **changes)).code.decode()


def views(code):
    """Return element type and whether it is written of each array."""
    found = array_accesses(code)
    return {n: (access.element, access.is_written) for n, access in found.items()}


def test_arguments_are_one_uniform_record():
    package = compile_wgsl(scaled(), caps=CAPS)
    code = package.code.decode()
    assert package.parameters == (("n", "i64"), ("x", "pointer"), ("y", "pointer"))
    assert package.grid == ("ceildiv(n, 64)",)
    assert package.threads == 64
    assert "@workgroup_size(64)" in code
    assert "a0: u32,\n  a1: u32,\n  a2: u32,\n  zero: u32," in code
    assert "enable" not in code
    assert views(code) == {1: ("u32", False), 2: ("u32", True)}


def test_wide_accesses_make_vectors_and_narrow_stores_make_atomics():
    wide = text(scaled(count=4, alignment=16))
    assert views(wide) == {1: ("vec4<u32>", False), 2: ("vec4<u32>", True)}
    narrow = text(scaled(bf16))
    assert views(narrow) == {1: ("u32", False), 2: ("atomic<u32>", True)}
    assert narrow.count("atomicXor") == 1
    assert narrow.count("= xor2(") == 1
    pairs = text(scaled(bf16, count=2, alignment=4))
    assert views(pairs) == {1: ("u32", False), 2: ("u32", True)}


def test_products_are_hidden_from_sums_only_where_the_adapter_joins_them():
    assert "p.zero" not in text(scaled())
    hidden = text(scaled(), may_contract=True)
    assert len(re.findall(r"bitcast<u32>\(v\d+\) \| p\.zero", hidden)) == 1
    assert "p.zero" not in text(scaled(fastmath=["contract"]), may_contract=True)


def test_lanes_exchange_through_workgroup_memory_where_subgroups_vary():
    b = IRBuilder("sums", level="lane", grid=[1], workgroup_size=64)
    x, y = b.array("x", f32, [64]), b.array("y", f32, [64], access="w")
    lane = b.convert(b.query("local_id"), i64)
    b.store(y, lane, b.subgroup_reduce(b.load(x, lane), "add"))
    kernel = b.finish()
    assert "subgroupShuffleXor" in compile_wgsl(kernel, caps=CAPS).code.decode()
    code = compile_wgsl(kernel, caps=CAPS, features=frozenset()).code.decode()
    assert "subgroup" not in code
    assert "var<workgroup> exchange: array<u32, 64>;" in code


def test_what_needs_64_bits_is_refused():
    b = IRBuilder("far", level="lane", grid=[1], workgroup_size=32)
    y = b.array("y", i32, [None], access="w")
    b.store(y, b.add(b.convert(b.query("local_id"), i64), 1 << 33), b.constant(1, i32))
    with pytest.raises(UnsupportedError, match="the constant 8589934592 of i32 does not fit"):
        text(b.finish())
    b = IRBuilder("long", level="lane", grid=[1], workgroup_size=32)
    y = b.array("y", i64, [32], access="w")
    b.store(y, b.convert(b.query("local_id"), i64), b.constant(1, i64))
    with pytest.raises(UnsupportedError, match="no 64-bit elements"):
        text(b.finish())


def test_workgroup_memory_has_a_limit():
    b = IRBuilder("much", level="lane", grid=[1], workgroup_size=32)
    y = b.array("y", f32, [32], access="w")
    memory = b.shared_alloc(f32, [5000])
    lane = b.convert(b.query("local_id"), i64)
    b.store(memory, lane, b.constant(1.0))
    b.store(y, lane, b.load(memory, lane))
    with pytest.raises(UnsupportedError, match="bytes of shared memory, the target has 16384"):
        text(b.finish())


def test_arrays_share_bindings_and_take_several():
    code = text(scaled())
    assert "var<storage, read> b1: array<u32>;" in code
    assert "var<storage, read_write> b2: array<u32>;" in code
    shared = Binding((1,), True)
    moved = bind_arrays(code, [(1, shared), (2, shared)])
    assert moved.count("var<storage") == 1
    assert "fn load1(i: u32) -> u32 {\n  return b1[i];\n}" in moved
    assert "fn store2(i: u32, x: u32) {\n  b1[i] = x;\n}" in moved
    assert bind_arrays(moved, [(1, Binding((1,), False)), (2, Binding((2,), True))]) == code
    parts = bind_arrays(
        code, [(1, Binding((1, 2, 3), False, 1024)), (2, Binding((4, 5), True, 1024))]
    )
    assert parts.count("var<storage, read> ") == 3
    assert "if (i < 512u) { return b2[i - 256u]; }\n  return b3[i - 512u];" in parts
    assert "if (i < 256u) { b4[i] = x; return; }\n  b5[i - 256u] = x;" in parts


def test_bindings_that_do_not_fit_are_refused():
    with pytest.raises(CompileError, match=r"arrays \[2\] have no binding"):
        bind_arrays(text(scaled()), [(1, Binding((1,), False))])
    shared = Binding((1,), True)
    with pytest.raises(CompileError, match="share binding 1"):
        bind_arrays(text(scaled(bf16)), [(1, shared), (2, shared)])


def test_a_failure_of_the_generator_keeps_the_kernel(monkeypatch, tmp_path):
    def fails(*_args, **_kwargs):
        raise KeyError("v7")

    monkeypatch.setattr(compile, "compile_wgsl", fails)
    failure = pytest.raises(CompileError, match="generating WGSL for 'scaled' failed")
    with CompileService(Settings(kernel_cache_dir=tmp_path)) as service, failure as caught:
        package_kernels([scaled()], Target("wgpu", "wgsl"), CAPS, service)
    with open(caught.value.path) as file:
        assert "scaled" in file.read()
