import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import poot_core
from poot_core import (
    APIS,
    DTYPES,
    CheckpointError,
    PootError,
    RequestError,
    Settings,
    SettingsError,
    T,
    Target,
    bind_shape,
    dtype_by_name,
    dtype_of,
)

NAMES = st.text("abcdefgh0123456789_.-", min_size=1, max_size=8)


@given(st.sampled_from(APIS), NAMES, st.frozensets(NAMES, max_size=4))
def test_target_parse_inverts_str(api: str, arch: str, features: frozenset[str]) -> None:
    target = Target(api, arch, features)
    assert Target.parse(str(target)) == target


@pytest.mark.parametrize("text", ["", "cpu", "cpu:", "tpu:v5", "cpu:a:b:c"])
def test_target_refuses(text: str) -> None:
    with pytest.raises(SettingsError, match="is no target"):
        Target.parse(text)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtype_is_interned_and_its_width_is_numpys(dtype: poot_core.DType) -> None:
    assert dtype_by_name(dtype.name) is dtype
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert dtype.numpy.itemsize == dtype.itemsize
    assert dtype_of(np.ones(3, dtype.numpy)) is dtype


def test_errors_keep_their_details_across_processes() -> None:
    error = CheckpointError(
        "'a.gguf' is short", path="a.gguf", field="n_kv", found=1, allowed="2..3"
    )
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, ValueError)
    assert isinstance(copy, PootError)
    assert (str(copy), copy.details) == (str(error), error.details)
    refusal = pickle.loads(pickle.dumps(RequestError("no", status=404, field="model")))
    assert (refusal.status, refusal.field) == (404, "model")


def test_every_error_is_a_poot_error_and_a_builtin() -> None:
    for name in poot_core.__all__:
        kind = getattr(poot_core, name)
        if isinstance(kind, type) and issubclass(kind, PootError) and kind is not PootError:
            assert len(kind.__bases__) == 2, name


def test_bind_shape() -> None:
    assert bind_shape((T, 8), {"T": 5}) == (5, 8)
    with pytest.raises(KeyError):
        bind_shape((T, 8), {"R": 5})


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"HOME": "/h"}, "/h/.cache/poot/kernels"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "/x/poot/kernels"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x", "POOT_KERNEL_CACHE_DIR": "/k"}, "/k"),
    ],
)
def test_kernel_cache_directory(environment: dict[str, str], expected: str) -> None:
    assert str(Settings.from_environment(environment).kernel_cache_dir) == expected


@pytest.mark.parametrize("off", ["0", "off", "false"])
def test_kernel_cache_can_be_off(off: str) -> None:
    environment = {"HOME": "/h", "POOT_KERNEL_CACHE": off, "POOT_KERNEL_CACHE_DIR": "/k"}
    assert Settings.from_environment(environment).kernel_cache_dir is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("POOT_KERNEL_CACHE", "maybe"),
        ("POOT_THREADS", "0"),
        ("POOT_THREADS", "-2"),
        ("POOT_THREADS", "²"),
        ("POOT_TREADS", "2"),
    ],
)
def test_bad_variables_raise_and_are_named(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        Settings.from_environment({name: value})
