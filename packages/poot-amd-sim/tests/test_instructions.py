"""Instructions by hand-written assembly: results from the manuals, and each kind of fault."""

from fractions import Fraction

import numpy as np
import pytest

from poot_amd_sim import Memory, SimulationFault, UnknownInstruction, dispatch, parse_programs
from poot_amd_sim._floats import fma

pytestmark = pytest.mark.sim
FRAME = """
    .amdgcn_target "amdgcn-amd-amdhsa--{arch}"
    .type f,@function
f:
    s_load_b64 s[2:3], s[0:1], 0x0
    v_and_b32_e32 v0, 0x3ff, v0
    v_lshlrev_b32_e32 v1, 2, v0
    s_waitcnt lgkmcnt(0)
{body}
    s_endpgm
    .amdhsa_kernel f
        .amdhsa_group_segment_fixed_size 128
        .amdhsa_kernarg_size 8
        .amdhsa_user_sgpr_count 2
        .amdhsa_user_sgpr_kernarg_segment_ptr 1
        .amdhsa_system_sgpr_workgroup_id_x 1
        .amdhsa_next_free_vgpr 16
        .amdhsa_wavefront_size32 1
    .end_amdhsa_kernel
"""
STORE = "    global_store_b32 v1, v2, s[2:3]"


def execute(body, lanes=32, arch="gfx1100", words=64, **options):
    """Run a body whose v0 is the lane, v1 four times it and s[2:3] an array; return the array."""
    program = parse_programs(FRAME.format(arch=arch, body=body))["f"]
    memory = Memory(1 << 16)
    address = memory.allocate(4 * words, "out")
    view = memory.block(address, 4 * words).view(np.uint32)
    view[:] = 0
    arguments = address.to_bytes(8, "little").ljust(64, b"\0")
    dispatch(program, memory, arguments, (1, 1, 1), (lanes, 1, 1), **options)
    return view.copy()


def moved(modifiers):
    return execute(f"    v_mov_b32_e32 v2, 99\n    v_mov_b32_dpp v2, v0 {modifiers}\n{STORE}")[:32]


LANE = np.arange(32)


def test_lanes_move_as_the_manual_says():
    assert moved("quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf").tolist() == (LANE ^ 1).tolist()
    assert moved("row_xmask:5 row_mask:0xf bank_mask:0xf").tolist() == (LANE ^ 5).tolist()
    shifted = np.where(LANE % 16 >= 3, LANE - 3, 0)
    assert moved("row_shr:3 row_mask:0xf bank_mask:0xf bound_ctrl:1").tolist() == shifted.tolist()
    kept = np.where(LANE % 16 >= 3, LANE - 3, 99)
    assert moved("row_shr:3 row_mask:0xf bank_mask:0xf").tolist() == kept.tolist()
    one_row = np.where(LANE < 16, LANE ^ 15, 99)
    assert moved("row_mirror row_mask:0x1 bank_mask:0xf").tolist() == one_row.tolist()
    assert (
        moved("row_share:2 row_mask:0xf bank_mask:0xf").tolist() == (LANE // 16 * 16 + 2).tolist()
    )


@pytest.mark.parametrize(
    ("swizzle", "source"),
    [
        ("swizzle(SWAP,8)", LANE ^ 8),
        ("swizzle(BROADCAST,8,3)", LANE // 8 * 8 + 3),
        ("swizzle(QUAD_PERM,3,2,1,0)", LANE ^ 3),
        ('swizzle(BITMASK_PERM,"0000p")', LANE & 1),
    ],
)
def test_swizzles(swizzle, source):
    body = f"    ds_swizzle_b32 v2, v0 offset:{swizzle}\n    s_waitcnt lgkmcnt(0)\n{STORE}"
    assert execute(body)[:32].tolist() == source.tolist()


@pytest.mark.parametrize(
    ("instruction", "expected"),
    [
        ("v_perm_b32 v2, 0x33221100, 0x77665544, 0x07040c00", 0x33000044),
        ("v_alignbit_b32 v2, 0x1, 0x80000000, 4", 0x18000000),
        ("v_alignbyte_b32 v2, 0xaabbccdd, 0x11223344, 1", 0xDD112233),
        ("v_bfe_i32 v2, 0xf0, 4, 4", 0xFFFFFFFF),
        ("v_bfi_b32 v2, 0xff00, 0x1234, 0xabcd", 0x12CD),
        ("v_mul_hi_u32 v2, 0x80000000, 6", 3),
        ("v_mad_u32_u24 v2, 0x1000003, 2, 1", 7),
        ("v_lshl_add_u32 v2, 3, 4, 5", 53),
        ("v_bcnt_u32_b32 v2, 0xf0f0, 2", 10),
        ("v_clz_i32_u32_e32 v2, 0x10000", 15),
        ("v_ctz_i32_b32_e32 v2, 0", 0xFFFFFFFF),
        ("v_cvt_u32_f32_e32 v2, -1.0", 0),
        ("v_cvt_i32_f32_e32 v2, 0x4f800000", 0x7FFFFFFF),
        ("v_rcp_f32_e32 v2, 4.0", 0x3E800000),
        ("v_exp_f32_e32 v2, 0xc2fe0000", 0),  # 2**-127 is a denormal, which it flushes
        ("v_max_f32_e32 v2, 0x7fc00000, 1.0", 0x3F800000),
        ("v_cvt_f32_ubyte2_e32 v2, 0x30201", 0x40400000),
        ("v_dot4_i32_iu8 v2, 0xff010203, 0x01010101, 10 neg_lo:[1,1,0]", 15),
        ("v_add_f32_e64 v2, -1.0, |-4.0| clamp", 0x3F800000),
    ],
)
def test_results_by_hand(instruction, expected):
    if "|-4.0|" in instruction:
        instruction = "v_mov_b32_e32 v3, -4.0\n    v_add_f32_e64 v2, -1.0, |v3| clamp"
    assert (execute(f"    {instruction}\n{STORE}")[:32] == expected).all()


def test_carries_cross_words():
    body = """
    v_add_co_u32 v2, vcc_lo, -1, v0
    v_add_co_ci_u32_e64 v2, null, 0, 5, vcc_lo
"""
    found = execute(body + STORE)[:32]
    assert found[0] == 5
    assert (found[1:] == 6).all()


def test_masked_lanes_keep_what_they_had():
    body = """
    v_mov_b32_e32 v2, 7
    v_cmpx_gt_u32_e32 4, v0
    v_mov_b32_e32 v2, 8
    s_mov_b32 exec_lo, -1
"""
    assert execute(body + STORE)[:32].tolist() == [8] * 4 + [7] * 28


def test_fma_rounds_once():
    rng = np.random.default_rng(2)
    a, b, c = rng.standard_normal((3, 3000)).astype(np.float32)
    c[::2] = -(a[::2].astype("f8") * b[::2]).astype(np.float32)  # cancellation
    c[1::4] *= np.float32(2.0**-30)
    for x, y, z, found in zip(a, b, c, fma(a, b, c), strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        near = [found, np.nextafter(found, np.float32(9e9)), np.nextafter(found, np.float32(-9e9))]
        errors = [abs(Fraction(float(v)) - exact) for v in near]
        assert errors[0] == min(errors)


LOAD = "    global_load_b32 v2, v1, s[2:3]\n"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (LOAD + "    v_add_nc_u32_e32 v2, v2, v2", "wait"),
        (LOAD + "    s_waitcnt vmcnt(1)\n    v_mov_b32_e32 v3, v2", "wait"),
        (LOAD + "    v_mov_b32_e32 v2, 0", "wait"),  # the load would overwrite it later
        ("    s_load_b32 s4, s[2:3], 0x0\n    s_load_b32 s5, s[2:3], 0x4\n"
         "    s_waitcnt lgkmcnt(1)\n    s_mov_b32 s6, s4", "wait"),  # they come in any order
        ("    ds_store_b32 v1, v0\n    s_barrier", "wait"),
        ("    ds_store_b32 v1, v0 offset:60", "bounds"),
        ("    global_store_b32 v1, v0, s[2:3] offset:252", "bounds"),
        ("    global_load_b32 v2, v[6:7], off", "bounds"),  # poison is no address
        (".LBB0_1:\n    s_branch .LBB0_1", "runaway"),
    ],
)  # fmt: skip
def test_faults(body, kind, monkeypatch):
    monkeypatch.setattr("poot_amd_sim._dispatch._STEPS", 1000)
    with pytest.raises(SimulationFault) as caught:
        execute(body)
    assert caught.value.kind == kind


def test_a_barrier_that_a_wave_never_reaches():
    body = """
    v_readfirstlane_b32 s4, v0
    s_cmp_eq_u32 s4, 0
    s_cbranch_scc0 .LBB0_1
    s_barrier
.LBB0_1:
"""
    with pytest.raises(SimulationFault, match="some waves ended while others wait"):
        execute(body, lanes=64)


def test_two_loads_fill_the_halves_of_one_register():
    body = """
    global_load_d16_b16 v2, v1, s[2:3]
    global_load_d16_hi_b16 v2, v1, s[2:3] offset:2
    s_waitcnt vmcnt(0)
"""
    assert (execute(body + STORE)[:32] == 0).all()


def test_what_is_not_known_is_refused_with_its_line():
    with pytest.raises(UnknownInstruction, match=r"f \(gfx1100\), line 9: v_frobnicate v1, v2"):
        execute("    v_frobnicate v1, v2")
    with pytest.raises(UnknownInstruction, match="wave_rol"):
        moved("wave_rol:1 row_mask:0xf bank_mask:0xf")
    with pytest.raises(UnknownInstruction, match=r"no \.amdgcn_target"):
        parse_programs("nothing")
