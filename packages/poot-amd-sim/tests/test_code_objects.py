"""Code objects: linked by what the device uses, checked against the loaders' rules."""

from functools import cache
from pathlib import Path

import pytest

from poot_amd_sim import loader_complaints, read_code_object
from poot_core import DeviceCaps, Target
from poot_kernel.targets.amdgcn import package_kernels, wave_size
from poot_rocm_device import comgr_linker, lld_linker

ARCHS = ["gfx942", "gfx1100", "gfx1151", "gfx1201", "gfx90a", "gfx1030"]
MATRIX = {"gfx942", "gfx1100", "gfx1151", "gfx1201", "gfx90a"}
pytestmark = pytest.mark.sim


def caps(arch):
    return DeviceCaps(
        name="", vector_bytes=16, subgroup_size=wave_size(arch), num_workers=4,
        shared_bytes=65536, memory_bytes=1 << 30, max_workgroup=1024,
    )  # fmt: skip


# What a loader looks at: arguments of every kind, workgroup memory and none, large workgroups, scalar
# and vector and accumulation registers. Other test kernels differ in their code alone.
LANE_KERNELS = ("rms_norm", "dots", "subgroups", "tree_sum", "flags")


@pytest.fixture(scope="module")
def packages(service, load_module, gpu_kernels):
    """Return the packages of an architecture; each is compiled when it is first asked for."""
    lanes = load_module(Path(__file__).with_name("lane_kernels.py"))
    functions = [getattr(lanes, name).specialise() for name in LANE_KERNELS]
    tiles = [gpu_kernels.product.specialise(TM=64, TN=64, TK=32, STAGES=2),
             gpu_kernels.attention.specialise()]  # fmt: skip

    @cache
    def of(arch):
        chosen = functions + (tiles if arch in MATRIX else [])
        return package_kernels(chosen, Target("rocm", arch), caps(arch), service)

    return of


@pytest.fixture(scope="module")
def link():
    found = lld_linker()
    if found is None:
        pytest.skip("no LLVM linker (Debian: lld-19)")
    return found


@pytest.mark.parametrize("arch", ARCHS)
def test_linked_kernels_pass_the_loaders_rules(packages, link, arch):
    for package in packages(arch):
        image = link(package.code, arch)
        assert loader_complaints(image, arch) == [], package.name
        facts = read_code_object(image).kernels[package.name].metadata
        assert facts[".max_flat_workgroup_size"] == package.threads
        given = [a for a in facts[".args"] if not a[".value_kind"].startswith("hidden")]
        assert len(given) == len(package.parameters)


def test_what_loaders_refuse_is_found(packages, link):
    package = packages("gfx1100")[0]
    image = bytearray(link(package.code, "gfx1100"))
    unlinked = loader_complaints(package.code, "gfx1100")
    assert "type 1: it is not linked" in unlinked
    assert "no metadata note" in unlinked
    assert "flags say gfx1100, not gfx1151" in loader_complaints(bytes(image), "gfx1151")
    assert loader_complaints(b"PTX", "gfx1100")[0].startswith("no ELF file")

    def with_byte(place, value):
        changed = bytearray(image)
        changed[place] = value
        return loader_complaints(bytes(changed), "gfx1100")

    assert with_byte(7, 0) == ["OS ABI 0 is not HSA's 64"]
    assert "code object version 6, not 5 for an exact target" in with_byte(8, 4)
    assert with_byte(48, 0x4A)[0] == "flags say gfx1151, not gfx1100"
    assert any("xnack is on" in text for text in with_byte(49, 3))
    descriptor = read_code_object(bytes(image)).kernels[package.name].descriptor_address
    # Read-only data lies at the same place in the file as in memory.
    assert f"{package.name}: workgroup memory differs" in with_byte(descriptor + 1, 0x7F)
    assert f"{package.name}: reserved bits are set" in with_byte(descriptor + 13, 1)
    assert any("waves of 64" in text for text in with_byte(descriptor + 57, 0))


@pytest.mark.parametrize("arch", ["gfx90a", "gfx1030"])
def test_comgr_links_the_same(packages, arch):
    """Debian's comgr is old: it knows gfx90a and gfx1030, by the second interface."""
    link = comgr_linker()
    if link is None:
        pytest.skip("libamd_comgr is not installed (Debian: libamd-comgr2)")
    for package in packages(arch)[:3]:
        assert loader_complaints(link(package.code, arch), arch) == []
