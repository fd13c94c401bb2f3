"""The host's math functions against NumPy in double precision, over dense samples."""

import ctypes
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from poot_core import Settings, UnsupportedError
from poot_kernel.compile import CompileRequest, CompileService, host_target, load_objects
from poot_kernel.targets.host.math import MATH_FUNCTIONS, math_function

RNG = np.random.default_rng(5)
ERF = np.vectorize(math.erf, otypes=[np.float64])
# name: exact function, samples, most ulp of error. Samples span what models use and the edges of
# each approximation; sin and cos take positions of the longest contexts times frequencies.
UNARY: dict[str, tuple[Callable[..., np.ndarray], list[tuple[float, float]], float]] = {
    "exp": (np.exp, [(-87.3, 88.7), (-1, 1)], 1.5),
    "exp2": (np.exp2, [(-125.9, 127.9), (-1, 1)], 1.5),
    "log": (np.log, [(1e-6, 1e6), (0.5, 2.0), (0.99, 1.01), (1e-38, 1e-30)], 1.5),
    "log2": (np.log2, [(1e-6, 1e6), (0.99, 1.01)], 2.0),
    "sin": (np.sin, [(-10, 10), (-131072, 131072), (-1e6, 1e6)], 1.5),
    "cos": (np.cos, [(-10, 10), (-131072, 131072), (-1e6, 1e6)], 1.5),
    "tanh": (np.tanh, [(-12, 12), (-1, 1), (-1e-3, 1e-3)], 2.0),
    "erf": (ERF, [(-5, 5), (-1, 1), (-1e-3, 1e-3)], 2.0),
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompileService]:
    settings = Settings(kernel_cache_dir=Path(tmp_path_factory.mktemp("kernels")))
    with CompileService(settings, num_workers=1) as found:
        yield found


def _caller(service: CompileService, name: str, width: int) -> Callable[..., np.ndarray]:
    """Return a NumPy function that runs blocks of ``width`` lanes through the compiled code."""
    symbol, text, declarations = math_function(name, width)
    lanes = "float" if width == 1 else f"<{width} x float>"
    binary = name == "pow"
    argument = f", {lanes} %y" if binary else ""
    second = f"  %y = load {lanes}, ptr %b, align 4\n" if binary else ""
    ir = (
        "\n".join(sorted(declarations))
        + "\n"
        + text
        + f"""
define void @run(ptr %a, ptr %b, ptr %c) {{
  %x = load {lanes}, ptr %a, align 4
{second}  %r = call {lanes} {symbol}({lanes} %x{argument})
  store {lanes} %r, ptr %c, align 4
  ret void
}}
"""
    )
    target = host_target(Settings())
    request = CompileRequest(kind="llvm-host-object", ir=ir, target=target, entries=("run",))
    code = load_objects([service.compile([request])[0].data], target.arch)
    run = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(code.symbols[0]["run"])

    def call(x: np.ndarray, y: np.ndarray | None = None) -> np.ndarray:
        result = np.empty_like(x)
        other = x if y is None else y
        for at in range(0, len(x), width):
            run(*(array.ctypes.data + 4 * at for array in (x, other, result)))
        assert code
        return result

    return call


def _ulps(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    spacing = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    return np.abs(got.astype(np.float64) - exact) / np.maximum(spacing, 2.0**-149)


@pytest.mark.parametrize("name", sorted(UNARY))
def test_function_is_within_its_ulps(service: CompileService, name: str) -> None:
    exact, ranges, most = UNARY[name]
    call = _caller(service, name, 64)
    for low, high in ranges:
        x = RNG.uniform(low, high, 64 * 1000).astype(np.float32)
        error = _ulps(call(x), exact(x.astype(np.float64)))
        assert error.max() <= most, (low, high, x[error.argmax()])


@pytest.mark.parametrize("name", sorted(UNARY))
def test_bits_do_not_depend_on_width(service: CompileService, name: str) -> None:
    low, high = UNARY[name][1][0]
    x = RNG.uniform(low, high, 512).astype(np.float32)
    first = _caller(service, name, 1)(x)
    for width in (8, 16):
        np.testing.assert_array_equal(
            _caller(service, name, width)(x).view(np.int32), first.view(np.int32)
        )


def test_positions_times_frequencies_keep_their_sine(service: CompileService) -> None:
    positions = RNG.integers(0, 131072, 6400).astype(np.float32)
    frequency = (10000.0 ** -RNG.uniform(0, 1, 6400)).astype(np.float32)
    x = positions * frequency
    np.testing.assert_allclose(
        _caller(service, "sin", 64)(x), np.sin(x.astype(np.float64)), rtol=0, atol=1.2e-7
    )


def test_special_values(service: CompileService) -> None:
    inf, nan = np.inf, np.nan
    x = np.array([0.0, -0.0, inf, -inf, nan, 1.0, 100.0, -100.0], np.float32)
    with np.errstate(all="ignore"):
        for name in ("exp", "exp2", "log", "log2", "tanh", "erf"):
            wanted = UNARY[name][0](x.astype(np.float64)).astype(np.float32)
            wanted[(np.abs(wanted) < 2.0**-126) & (wanted != 0)] = 0
            got = _caller(service, name, 8)(x)
            np.testing.assert_allclose(got, wanted, rtol=3e-7, atol=0, err_msg=name)
    assert _caller(service, "exp", 8)(x)[0] == 1.0


def test_pow(service: CompileService) -> None:
    call = _caller(service, "pow", 64)
    x = RNG.uniform(1e-3, 50, 6400).astype(np.float32)
    y = RNG.uniform(-8, 8, 6400).astype(np.float32)
    assert _ulps(call(x, y), np.power(x.astype(np.float64), y.astype(np.float64))).max() <= 1.0
    whole = RNG.integers(-5, 6, 6400).astype(np.float32)
    wanted = np.power(-x.astype(np.float64), whole.astype(np.float64))
    assert _ulps(call(-x, whole), wanted).max() <= 1.0
    edges = np.array([0, -0.0, 1, -1, 2, -2, np.inf, -np.inf, np.nan, 0.5], np.float32)
    pairs = np.array(
        np.meshgrid(
            edges,
            np.array([0, 1, 2, 3, -1, -2, -3, 0.5, -0.5, np.inf, -np.inf, np.nan], np.float32),
        )
    ).reshape(2, -1)
    filled = np.ones((2, 128), np.float32)
    filled[:, : pairs.shape[1]] = pairs
    with np.errstate(all="ignore"):
        wanted = np.power(filled[0], filled[1])
    np.testing.assert_allclose(call(filled[0].copy(), filled[1].copy()), wanted, rtol=2e-7)


def test_unknown_function_is_refused() -> None:
    assert "pow" in MATH_FUNCTIONS
    with pytest.raises(UnsupportedError, match="no math function 'gamma'"):
        math_function("gamma", 16)
