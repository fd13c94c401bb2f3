"""Lane kernels through LLVM and the simulator, against the kernel language's interpreter."""

import contextlib
from pathlib import Path

import numpy as np
import pytest

from poot_amd_sim import WAVE_ORDERS, SimulationFault
from poot_core import bf16, f16
from poot_kernel.interpreter import interpret
from poot_kernel.targets.amdgcn.atoms import architecture

RNG = np.random.default_rng(7)
ARCHS = ["gfx1030", "gfx1100", "gfx1151", "gfx1201", "gfx90a", "gfx942", "gfx950"]
archs = pytest.mark.parametrize("arch", ARCHS)
pytestmark = pytest.mark.sim


@pytest.fixture(scope="module")
def kernels(load_module):
    return load_module(Path(__file__).with_name("lane_kernels.py"))


def check(run, kernel, arguments, arch, *, tolerance=None, **options):
    """Run a kernel in the simulator and the interpreter; compare what it wrote."""
    function = kernel.specialise()
    outputs = [a for a in arguments if isinstance(a, np.ndarray)]
    expected = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    lanes = architecture(arch).subgroup_size
    interpret(function, expected, subgroup_size=lanes)
    run(function, arguments, arch, **options)
    wanted = [a for a in expected if isinstance(a, np.ndarray)]
    for found, good in zip(outputs, wanted, strict=True):
        if tolerance is None or found.dtype.kind in "iub":
            np.testing.assert_array_equal(found, good)
        else:
            np.testing.assert_allclose(
                found.astype("f8"), good.astype("f8"), rtol=tolerance, atol=tolerance
            )


def floats(*shape, scale=1.0):
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


def ints(*shape, bits=31, dtype=np.int32):
    return RNG.integers(-(1 << bits), 1 << bits, shape).astype(dtype)


@archs
def test_rows_are_normalised(run, kernels, arch):
    check(run, kernels.rms_norm, [3, 333, floats(3, 333), floats(3, 333)], arch, tolerance=1e-6)


@archs
def test_integer_arithmetic_is_exact(run, kernels, arch):
    n = 100
    b = np.where(RNG.random(n) < 0.5, ints(n, bits=6), ints(n))
    b[b == 0] = 3
    arguments = [n, ints(n), b.astype(np.int32), ints(n).view(np.uint32)]
    arguments += [ints(n, 18), ints(n, 8).view(np.uint32)]
    check(run, kernels.integers, arguments, arch)


@archs
def test_long_arithmetic_is_exact(run, kernels, arch):
    n = 70
    a, b = ints(n, bits=62, dtype=np.int64), ints(n, bits=40, dtype=np.int64)
    b[::3] = RNG.integers(1, 1000, len(b[::3]))
    check(run, kernels.longs, [n, a, b, ints(n, 8, dtype=np.int64)], arch)


@archs
def test_float_functions(run, kernels, arch):
    n = 128
    a, b = floats(n, scale=4), floats(n, scale=2)
    a[:6] = [0.0, -0.0, 1e-41, 87.0, -87.0, 20000.0]
    b[3:5] = [1e-3, 0.5]
    check(run, kernels.floats, [n, a, b, floats(n, 24)], arch, tolerance=3e-6)


@archs
def test_conversions(run, kernels, arch):
    n = 90
    x = floats(n, scale=60)
    x[:4] = [300.0, -300.0, np.nan, 65519.0]
    outputs = [np.zeros(n, t) for t in ("i1", "u1", "i2", "u2", bf16.numpy, f16.numpy, "?", "i4")]
    arguments = [n, x, ints(n), *outputs, floats(n, 3), ints(n, dtype=np.int64)]
    arguments[-1][:] = 0
    x[2] = 0.25  # what an integer of a NaN is, is not said
    check(run, kernels.conversions, arguments, arch, tolerance=1e-6)


@archs
def test_dot_products_and_tables(run, kernels, arch):
    n = 65
    arguments = [n, ints(n), ints(n), ints(n), ints(n, 4), floats(n), ints(n)]
    check(run, kernels.dots, arguments, arch, tolerance=1e-6)


@archs
def test_exchanges_among_lanes(run, kernels, arch):
    arguments = [floats(2, 128), ints(2, 128, bits=6), floats(2, 128, 9), ints(2, 128, 9)]
    check(run, kernels.subgroups, arguments, arch, tolerance=1e-5)


@archs
@pytest.mark.parametrize("order", WAVE_ORDERS)
def test_tree_in_workgroup_memory(run, kernels, arch, order):
    check(run, kernels.tree_sum, [5, floats(5, 128), floats(5)], arch, order=order, tolerance=1e-5)


@archs
def test_atomics_and_status_flags(run, kernels, arch):
    ids = np.array([0, 3, 9, -2, 4], np.int32)
    arguments = [5, 5, ids, floats(5, 64), floats(5, 64), np.zeros(5, np.int32)]
    arguments.append(np.array([0, -100, 0, 0], np.int32))
    check(run, kernels.flags, arguments, arch)
    assert arguments[5].tolist() == [0, 4, 1, 1, 0]


@archs
def test_vector_loads_and_stores(run, kernels, arch):
    n = 77
    arguments = [n, floats(4 * n), floats(4 * n).astype(bf16.numpy), floats(4 * n)]
    check(run, kernels.vectors, [*arguments, floats(4 * n).astype(bf16.numpy)], arch)


@pytest.mark.parametrize("arch", ["gfx1100", "gfx1201", "gfx942"])
def test_every_barrier_between_waves_is_needed(run, kernels, arch):
    """Without a barrier some order of waves gives another sum; the program itself never does."""
    function = kernels.tree_sum.specialise()
    program, threads = run.program(function, arch)
    x, caught = floats(4, 128), 0
    wanted = x.astype(np.float64).sum(axis=1)

    def is_right(candidate):
        for order in WAVE_ORDERS:
            for seed in range(3):
                y = floats(4)
                run(
                    function,
                    [4, x, y],
                    arch,
                    program=candidate,
                    threads=threads,
                    order=order,
                    seed=seed,
                )
                if not np.allclose(y, wanted, atol=1e-4):
                    return False
        return True

    assert is_right(program)
    places = program.places("s_barrier($| |_wait)")
    # Levels below a wave need none between waves: their lanes sit in one wave.
    waves = threads // program.wave_size
    for place in places:
        caught += not is_right(program.without(place))
    assert caught == waves.bit_length() - 1


@pytest.mark.parametrize("arch", ["gfx1030", "gfx1100", "gfx1201", "gfx942"])
def test_every_wait_for_a_load_is_needed(run, kernels, arch):
    function = kernels.rms_norm.specialise()
    program, threads = run.program(function, arch)
    mutants = [p for p in program.places("s_wait.*(vmcnt|loadcnt|lgkmcnt|kmcnt|dscnt)")]
    assert mutants
    survived = []
    for place in mutants:
        with contextlib.suppress(SimulationFault):
            run(function, [2, 200, floats(2, 200), floats(2, 200)], arch,
                program=program.without(place), threads=threads)  # fmt: skip
            survived.append(str(program.steps[place][0]))
    assert not survived


def test_memory_beyond_a_buffer_is_a_fault(run, kernels):
    function = kernels.vectors.specialise()
    n = 16
    short = [n, floats(4 * n), floats(4 * n).astype(bf16.numpy), floats(4 * n - 4)]
    with pytest.raises(SimulationFault, match="lie in no buffer; 240 bytes into 'y' of 240") as e:
        run(function, [*short, floats(4 * n).astype(bf16.numpy)], "gfx1100")
    assert e.value.kind == "bounds"
