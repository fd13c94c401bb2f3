"""Generated PTX: the schedules for few rows, for dealt loops, and what each architecture may use."""

import importlib.util
import re
from pathlib import Path

import pytest

from poot_core import DeviceCaps, Target, f32, i32, u32
from poot_kernel import IRBuilder
from poot_kernel.compile import KernelPackage
from poot_kernel.targets.nvptx import assemble_ptx, compile_ptx, find_ptxas, package_kernels


def _kernels():
    path = Path(__file__).with_name("gpu_kernels.py")
    spec = importlib.util.spec_from_file_location("gpu_kernels", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


KERNELS = _kernels()
CAPS = DeviceCaps(
    name="gpu", vector_bytes=16, subgroup_size=32, num_workers=132, shared_bytes=232448,
    memory_bytes=1 << 37, max_workgroup=1024,
)  # fmt: skip
KNOWN = {"K": 64, "a": 16, "b": 16, "c": 16}


def skinny(signature="k16_chunk1024"):
    return KERNELS.product.specialise(TM=8, TN=16, TK=64, STAGES=6, SIGNATURE=signature)


def test_few_rows_are_multiplied_by_warps_on_their_own():
    built = compile_ptx(skinny(), multiples=KNOWN)
    assert built.split.chunks == "ceildiv(K, 1024)"
    assert built.threads == 32 * built.split.max_subgroups
    assert built.split.partial_bytes == 4 * 8 * 16
    # One barrier of the workgroup, before chunks are added; the ring needs none.
    assert built.code.count("bar.sync") == 1
    assert built.code.count("bar.warp.sync") >= 1
    # A step of 64 k is four instructions; weights are the side of 16 rows.
    assert built.code.count("mma.sync.aligned.m16n8k16") == 4
    assert "WARP_REGION" not in built.code
    # Weights are asked for before what earlier kernels wrote is waited for, rows of x after.
    before = built.code[: built.code.index("griddepcontrol.wait")]
    assert before.count("cp.async.cg.shared.global") == 5 * 4
    assert "griddepcontrol.wait" not in compile_ptx(skinny(), arch="sm_80", multiples=KNOWN).code


def test_chunks_of_few_tiles_are_shared_by_two_workgroups():
    def tile(signature):
        kernel = KERNELS.product.specialise(TM=64, TN=64, TK=64, STAGES=6, SIGNATURE=signature)
        return compile_ptx(kernel, multiples=KNOWN)

    shared, alone = tile("k16_chunk1024"), tile("k16")
    assert (shared.cluster, alone.cluster) == (2, 1)
    assert ".reqnctapercluster 2, 1, 1" in shared.code
    # The first hands its sums over once, 16 bytes at a time, and the second waits for them.
    assert shared.code.count("st.shared::cluster.v4") == 64 * 64 // 128 // 4
    assert shared.code.count("mbarrier.arrive.release.cluster") == 1
    assert shared.code.count("mbarrier.try_wait.parity.acquire.cluster") == 1
    assert "cluster" not in alone.code.replace("shared::cluster.global", "").replace(
        "mbarrier_init.release.cluster", ""
    ).replace("%cluster_ctarank", "")
    if find_ptxas() is not None:
        assert assemble_ptx(shared.code, arch="sm_90a").spill_bytes == 0


def test_a_single_chain_is_one_chunk():
    built = compile_ptx(skinny("k16"), multiples=KNOWN)
    assert built.split.chunks == f"ceildiv(K, {1 << 30})"


@pytest.mark.parametrize(
    ("chunks", "region", "limit", "launched"),
    [
        (14, 27000, 232448, (7, 7 * 27000 + 14 * 512)),
        (2, 27000, 232448, (2, 2 * 27000 + 2 * 512)),
        (14, 60000, 232448, (3, 3 * 60000 + 14 * 512)),
        (0, 27000, 232448, (1, 27000)),
        (5, 27000, 101376, (3, 3 * 27000 + 5 * 512)),
    ],
)
def test_subgroups_share_chunks_evenly(chunks, region, limit, launched):
    split = compile_ptx(skinny(), multiples=KNOWN).split
    assert split.launch(chunks, region, limit) == launched


def test_large_products_add_chunks_apart():
    kernel = KERNELS.product.specialise(TM=128, TN=64, TK=64, STAGES=4, SIGNATURE="k16_chunk1024")
    built = compile_ptx(kernel, multiples=KNOWN)
    assert built.is_persistent
    # Three narrow tiles by one instruction, or two: in pairs of workgroups, and alone. Sums of chunks
    # have registers of their own.
    assert built.code.count("wgmma.mma_async.sync.aligned.m64n192k16") == 4
    assert built.code.count("wgmma.mma_async.sync.aligned.m64n128k16") == 2 * 4
    assert built.code.count("add.rn.f32") == 96 + 2 * 64
    # A pair's workgroups load halves of the weights for both: 3 or 2 loads of 32 rows, 4 alone.
    assert built.cluster == 2
    assert built.tensor_maps[1].box == (32, 64)
    assert built.code.count("multicast::cluster") == 3 + 2
    assert built.code.count("cp.async.bulk.tensor.2d") == 3 + (3 + 2 + 4)
    plain = compile_ptx(
        KERNELS.product.specialise(TM=128, TN=64, TK=64, STAGES=4, SIGNATURE="k16"), multiples=KNOWN
    )
    assert plain.code.count("wgmma.mma_async.sync.aligned.m64n256k16") == 2 * 4
    assert "add.rn.f32" not in plain.code


def test_packages_say_how_to_launch():
    (package,) = package_kernels([skinny()], Target("ptx", "sm_90a"), CAPS, None)
    assert package.parameters == (("M", "i64"), ("N", "i64"), ("K", "i64"), ("a", "pointer"),
                                  ("b", "pointer"), ("c", "pointer"))  # fmt: skip
    assert package.grid == ("ceildiv(N, 16)", "ceildiv(M, 8)")
    assert package.is_overlapping
    assert KernelPackage.decode(package.encode()) == package


def dealt():
    b = IRBuilder("dealt", level="tile", grid=["n"])
    b.scalar("n")
    x = b.array("x", f32, ["n", 4, 16, 16], alignment=16)
    y = b.array("y", f32, ["n", 16, 16], access="w", alignment=16)
    group = b.workgroup_id()
    parts = b.shared_alloc(f32, [4, 16, 16])
    with b.for_(0, 4, 1, dealt=True) as loop:
        tile = b.copy(x, [group, loop.index, 0, 0], (16, 16))
        b.store_tile(parts, b.map(lambda v: b.mul(v, v), tile), [loop.index, 0, 0])
    with b.for_(0, 4, 1, [b.tile_zeros((16, 16), f32)]) as total:
        part = b.copy(parts, [total.index, 0, 0], (16, 16))
        total.yield_(b.map(b.add, total.carried[0], part))
    b.store_tile(y, total.result, [group, 0, 0])
    return b.finish()


def test_a_dealt_loop_is_shared_by_warps_and_from_sm_90_on_by_a_cluster():
    alone = compile_ptx(dealt(), arch="sm_80")
    assert (alone.threads, alone.depth) == (8 * 32, 1)
    assert alone.split.chunks == "4"
    assert alone.split.max_subgroups == 4
    assert alone.split.partial_bytes * 4 == 4 * 16 * 16 * 4
    assert alone.code.count("bar.sync") == 1
    assert "cluster" not in alone.code
    together = compile_ptx(dealt())
    assert (together.threads, together.depth) == (2 * 32, 4)
    assert ".reqnctapercluster 1, 1, 4" in together.code
    assert "bar.sync" not in together.code
    # Before anybody writes the first workgroup's memory, and before the rest.
    assert together.code.count("barrier.cluster.wait.acquire") == 2
    turns = together.code.split("barrier.cluster.wait.acquire")[1]
    assert "st.shared::cluster" in turns
    assert "st.shared." not in turns
    (package,) = package_kernels([dealt()], Target("ptx", "sm_90a"), CAPS, None)
    assert package.grid == ("n", "1", "4")


def rounding():
    """A lane kernel with 16-bit floats, an atomic, a table and exchanges."""
    from poot_core import bf16, f16

    b = IRBuilder("rounding", level="lane", grid=["n"], workgroup_size=64)
    b.scalar("n")
    x = b.array("x", f32, ["n", 1024])
    y = b.array("y", bf16, ["n", 1024], access="w")
    z = b.array("z", f16, ["n", 1024], access="w")
    count = b.array("count", u32, [1], access="rw")
    row = b.workgroup_id()
    with b.foreach(0, 1024) as loop:
        value = b.load(x, [row, loop.index])
        b.store(y, [row, loop.index], b.convert(value, bf16))
        b.store(z, [row, loop.index], b.convert(value, f16))
    b.atomic("add", count, [0], b.constant(1, u32))
    table = b.one("constant_table", dtype=i32, shape=(4,), values=(3, -1, 7, 9))
    found = b.load(table, b.and_(row, 3))
    b.store(y, [row, 0], b.convert(b.convert(found, f32), bf16))
    return b.finish()


def test_loads_of_a_loop_over_constants_come_before_its_stores():
    text = compile_ptx(rounding()).code
    # 16 turns, 8 at a time: each group's loads stand together.
    assert re.search(r"(ld\.global\.b32(?:(?!st\.global).)*?){8}st\.global", text, re.DOTALL)
    assert text.count("ld.global.b32") >= 16


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120"])
def test_lane_kernels_assemble_for_every_architecture(arch):
    if find_ptxas() is None:
        pytest.skip("ptxas is not installed")
    text = compile_ptx(rounding(), arch=arch).code
    assert ("cvt.rn.bf16" in text) == (arch != "sm_75")
    assert ("griddepcontrol" in text) == (arch in {"sm_90a", "sm_100", "sm_120"})
    assert assemble_ptx(text, arch=arch).spill_bytes == 0
    if arch != "sm_75":
        built = compile_ptx(skinny(), arch=arch, multiples=KNOWN)
        assert assemble_ptx(built.code, arch=arch).spill_bytes == 0
        assert assemble_ptx(compile_ptx(dealt(), arch=arch).code, arch=arch).spill_bytes == 0
