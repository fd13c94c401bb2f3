"""Every format against golden values made by an independent decoder, and its own promises."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from poot_core import PootError
from poot_quant import (
    FORMATS,
    QuantFormat,
    decode,
    encode,
    format_by_ggml_type,
    format_by_name,
    random_blocks,
    unpack,
)

GOLDENS = np.load(Path(__file__).parent / "data" / "gguf-types.npz")
NAMES = sorted({name.split(".")[0] for name in GOLDENS.files})
ALL = [pytest.param(fmt, id=fmt.name) for fmt in FORMATS.values()]

# Blocks from the format documents: elements and bytes, kept apart from the table under test.
SIZES = {
    "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34),
    "Q2_K": (256, 84), "Q3_K": (256, 110), "Q4_K": (256, 144), "Q5_K": (256, 176),
    "Q6_K": (256, 210), "IQ2_XXS": (256, 66), "IQ2_XS": (256, 74), "IQ2_S": (256, 82),
    "IQ3_XXS": (256, 98), "IQ3_S": (256, 110), "IQ1_S": (256, 50), "IQ1_M": (256, 56),
    "IQ4_NL": (32, 18), "IQ4_XS": (256, 136), "TQ1_0": (256, 54), "TQ2_0": (256, 66),
    "MXFP4": (32, 17), "NVFP4": (64, 36),
}  # fmt: skip


def test_every_golden_type_has_a_format() -> None:
    assert sorted(FORMATS) == NAMES
    assert {n: (f.block_elements, f.block_bytes) for n, f in FORMATS.items()} == SIZES


@pytest.mark.parametrize("name", NAMES)
def test_decode_is_bit_equal_to_the_golden(name: str) -> None:
    values = decode(format_by_name(name), GOLDENS[f"{name}.bytes"])
    np.testing.assert_array_equal(values, GOLDENS[f"{name}.f32"])
    np.testing.assert_array_equal(np.signbit(values), np.signbit(GOLDENS[f"{name}.f32"]))


@pytest.mark.parametrize("fmt", ALL)
def test_the_affine_form_is_exact(fmt: QuantFormat) -> None:
    raw, golden = GOLDENS[f"{fmt.name}.bytes"], GOLDENS[f"{fmt.name}.f32"]
    codes, scales, mins = unpack(fmt, raw)
    assert (codes.dtype, scales.dtype, codes.shape) == (np.int8, np.float32, golden.shape)
    assert scales.shape == (len(raw), golden.shape[1] // fmt.group)
    assert (mins is not None) == fmt.has_min
    wide = codes * np.repeat(scales, fmt.group, axis=1).astype(np.float64)
    size = np.abs(wide)
    if mins is not None:
        offset = np.repeat(mins, fmt.group, axis=1).astype(np.float64)
        wide, size = wide + offset, size + np.abs(offset)
    # One float32 product and one sum: each rounds by at most half of 2 ** -23 of its operands.
    assert np.all(np.abs(wide - golden) <= 2.0**-23 * size)


@pytest.mark.parametrize("fmt", ALL)
def test_codes_stay_in_the_alphabet(fmt: QuantFormat) -> None:
    rng = np.random.default_rng(7)
    codes = unpack(fmt, random_blocks(fmt, (64, 1024), rng)).codes
    seen = np.unique(codes).tolist()
    assert (seen[0], seen[-1]) == (fmt.code_min, fmt.code_max)
    if fmt.code_values is None:
        assert fmt.code_max - fmt.code_min >= 16
        assert 2**fmt.code_bits == fmt.code_max - fmt.code_min + 1
    else:
        assert seen == list(fmt.code_values)
        assert len(fmt.code_values) <= 2**fmt.code_bits <= 16


def test_only_plain_offset_codes_lack_a_table() -> None:
    plain = {name for name, fmt in FORMATS.items() if fmt.code_values is None}
    assert plain == {"Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q8_0"}


@pytest.mark.parametrize("fmt", ALL)
def test_fields_cover_the_block(fmt: QuantFormat) -> None:
    ends = [0]
    for field in fmt.fields:
        assert field.offset == ends[-1]
        ends.append(field.offset + field.num_bytes)
    assert ends[-1] == fmt.block_bytes
    assert fmt.group in {16, 32}
    assert pickle.loads(pickle.dumps(fmt)) is fmt
    assert format_by_ggml_type(fmt.ggml_type) is fmt


@pytest.mark.parametrize("fmt", ALL)
def test_random_blocks_are_finite_and_sized(fmt: QuantFormat) -> None:
    raw = random_blocks(fmt, (3, 4, 512), np.random.default_rng(3), scale=0.05)
    values = decode(fmt, raw)
    assert values.shape == (3, 4, 512)
    assert 0.02 < float(np.sqrt(np.mean(values**2))) < 0.1
    # Decoding in runs, rows or all at once is the same.
    np.testing.assert_array_equal(values[1], decode(fmt, raw[1]))
    np.testing.assert_array_equal(values[:, 2], decode(fmt, raw[:, 2]))


def test_long_arrays_are_decoded_in_runs() -> None:
    fmt = format_by_name("Q4_1")
    raw = random_blocks(fmt, (5, 1 << 17), np.random.default_rng(1))
    codes, scales, mins = unpack(fmt, raw)
    assert mins is not None
    expected = codes.reshape(5, -1, 32) * scales[..., None] + mins[..., None]
    np.testing.assert_array_equal(decode(fmt, raw), expected.reshape(5, -1))


# Half a step of the scale, plus the rounding of the f16 scale over the largest code (2 ** -11
# of it) and, with an offset, the f16 rounding of that; in units of the block's range.
ENCODERS = {"Q8_0": 0.006, "Q4_0": 0.13, "Q4_1": 0.036, "Q5_0": 0.066, "Q5_1": 0.019}


@pytest.mark.parametrize("name", ENCODERS)
def test_encode_rounds_to_the_nearest_code(name: str) -> None:
    fmt = format_by_name(name)
    values = np.random.default_rng(5).standard_normal((6, 4, 96)).astype(np.float32)
    values[0, 0, :32] = 0  # a block of zeros has scale zero
    back = decode(fmt, encode(fmt, values))
    blocks = values.reshape(-1, 32)
    extent = np.abs(blocks).max(axis=1) if not fmt.has_min else np.ptp(blocks, axis=1)
    error = np.abs(back - values).reshape(-1, 32).max(axis=1)
    assert np.all(error <= ENCODERS[name] * extent)
    assert np.all(back[0, 0, :32] == 0)


@pytest.mark.parametrize("name", ENCODERS)
def test_encode_is_the_inverse_of_decode(name: str) -> None:
    fmt = format_by_name(name)
    raw = encode(fmt, np.random.default_rng(6).standard_normal((3, 64)).astype(np.float32))
    values = decode(fmt, raw)
    np.testing.assert_allclose(decode(fmt, encode(fmt, values)), values, rtol=2e-3, atol=2e-3)


def test_misuse_is_refused() -> None:
    fmt = format_by_name("Q4_K")
    with pytest.raises(ValueError, match=r"multiple of 144 bytes, got uint8 of shape \(2, 143\)"):
        decode(fmt, np.ones((2, 143), np.uint8))
    with pytest.raises(ValueError, match="multiple of 144 bytes, got int8"):
        unpack(fmt, np.ones((2, 144), np.int8))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="row of 100 is no whole number"):
        fmt.num_bytes(100)
    with pytest.raises(PootError, match="no encoder for Q4_K"):
        encode(fmt, np.ones((1, 256), np.float32))
    with pytest.raises(PootError, match="'Q9_9'"):
        format_by_name("Q9_9")
    with pytest.raises(PootError, match="ggml type 4 "):
        format_by_ggml_type(4)
    with pytest.raises(ValueError, match="32 elements to a block"):
        encode(format_by_name("Q8_0"), np.ones((1, 33), np.float32))
    with pytest.raises(KeyError):
        fmt.field("nothing")


def test_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text()
    for block in text.split("```python\n")[1:]:
        exec(compile(block.split("```")[0], "README.md", "exec"), {})
    assert capsys.readouterr().out == "256 144 32 True 4\n"
