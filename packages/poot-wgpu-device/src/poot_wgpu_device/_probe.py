"""What only running a shader tells of an adapter: its subgroup size, how it rounds."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from poot_core import DeviceError
from poot_kernel.compile import KernelCache
from poot_wgpu_device._gpu import Gpu, GpuError
from poot_wgpu_device._native import Flags

__all__ = ["AdapterHabits", "known_habits", "probe_adapter"]

_VIRTUAL_LANES = 32
_BYTES = 256
_THREADS = (32, 64, 256)
_FORMS = ("a * b + c", "c + b * a", "-(a * b) - c", "a * (-b) - c")
# ln 2 in two parts: what a driver that joins them loses shows in the last bits of x - n * ln 2.
_HIGH, _LOW = np.float32(-0.693145751953125), np.float32(-1.428606765330187e-06)
_X, _N, _BIG = np.float32(72.0474), np.float32(104.0), np.float32(2.0**24)
_WITH_LANES = """
  if (thread == 0u) { y[0] = size; }
  if (lane != thread % size) { y[1] = 1u; }
"""
_SHADER = """
struct Inputs {{ a: f32, b: f32, c: f32, count: u32, x: f32, n: f32, big: f32, one: f32 }}
@group(0) @binding(0) var<uniform> p: Inputs;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@compute @workgroup_size({threads}) fn main(
  @builtin(local_invocation_index) thread: u32,
  {builtins}
) {{
  let a = p.a;
  let b = p.b;
  let c = p.c;
  {lanes}
  if (thread == 0u) {{
    {forms}
    var chain = c;
    for (var i = 0u; i < p.count; i += 1u) {{ chain = chain + a * b; }}
    y[7] = bitcast<u32>(chain);
    y[8] = bitcast<u32>(fma(a, b, c));
    y[9] = bitcast<u32>(fma(p.n, {low}, fma(p.n, {high}, p.x)));
    y[10] = bitcast<u32>(p.x + p.n * {high} + p.n * {low});
    y[11] = bitcast<u32>((p.big + p.one) - p.big);
  }}
}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterHabits:
    """What was seen.

    Attributes:
        subgroup_size: Lanes of every subgroup; of virtual ones if the adapter's vary.
        has_subgroups: Whether the adapter's own subgroups are of one size, lanes in order.
        may_contract: Whether a product and a sum were rounded once.
        is_fma_fused: Whether ``fma`` rounds once.
        is_exact: Whether products and sums are computed as they are written: not joined, their
            factors not collected, what cancels not left out.
    """

    subgroup_size: int
    has_subgroups: bool
    may_contract: bool
    is_fma_fused: bool
    is_exact: bool

    @property
    def features(self) -> frozenset[str]:
        """What generated code may count on, as ``Target`` names it."""
        found = {"subgroups": self.has_subgroups, "exact": self.is_exact}
        return frozenset(name for name, holds in found.items() if holds)


def known_habits(gpu: Gpu, cache: KernelCache) -> AdapterHabits:
    """Return what was seen of this adapter and driver before, or look now.

    Raises:
        DeviceError: If the adapter does not run small shaders.
    """
    adapter = gpu.adapter
    facts = (_SHADER, adapter.name, adapter.driver, adapter.backend, str(sorted(adapter.features)),
             str(gpu.native.lib.wgpuGetVersion()))  # fmt: skip
    key = hashlib.sha256("\0".join(facts).encode()).hexdigest()
    stored = cache.get("wgpu-habits", key)
    if stored is not None:
        try:
            return AdapterHabits(**json.loads(stored))
        except (ValueError, TypeError):  # another version's; it is written anew
            pass
    found = probe_adapter(gpu)
    cache.put("wgpu-habits", key, json.dumps(asdict(found)).encode())
    return found


def probe_adapter(gpu: Gpu) -> AdapterHabits:
    """Run small shaders of several sizes.

    Raises:
        DeviceError: If the adapter does not run them.
    """
    try:
        found = [_run(gpu, threads) for threads in _THREADS]
    except GpuError as error:
        raise DeviceError(f"{gpu.adapter} does not run a small shader: {error}") from error
    sizes = {int(words[0]) for words in found}
    size = min(sizes)
    is_fixed = len(sizes) == 1 and gpu.adapter.has_one_subgroup_size
    is_usable = 4 <= size <= min(_THREADS) and not size & (size - 1)
    in_order = not any(words[1] for words in found)
    has_subgroups = gpu.has_subgroups and is_fixed and is_usable and in_order
    floats = [words.view(np.float32) for words in found]
    # (1 + 2**-12)**2 - 1 is 2**-11 + 2**-24 exactly; the last bit is lost where the product is rounded.
    rounded, exact = 2.0**-11, 2.0**-11 + 2.0**-24
    for words in floats:
        if any(abs(x) not in (rounded, exact) for x in (*words[3:8], words[8])):
            raise DeviceError(f"{gpu.adapter} computes wrongly: {words[3:9]}")
    is_fused = all(words[8] == exact for words in floats)
    may_contract = any(abs(x) == exact for words in floats for x in words[3:8])
    kept = all(np.array_equal(words[9:12], _as_written(is_fused)) for words in floats)
    return AdapterHabits(
        subgroup_size=size if has_subgroups else _VIRTUAL_LANES,
        has_subgroups=has_subgroups,
        may_contract=may_contract,
        is_fma_fused=is_fused,
        is_exact=kept and not may_contract,
    )


def _as_written(is_fused: bool) -> NDArray[np.float32]:
    """Return the three results that a driver may change, rounded as the shader says."""
    chained = np.float32(np.float32(_X + _N * _HIGH) + _N * _LOW)
    first = np.float32(np.float64(_X) + np.float64(_N) * _HIGH)
    fused = np.float32(np.float64(first) + np.float64(_N) * _LOW)
    cancelled = np.float32(_BIG + np.float32(1)) - _BIG
    return np.array([fused if is_fused else chained, chained, cancelled], np.float32)


def _run(gpu: Gpu, threads: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    lib, ffi = gpu.native.lib, gpu.native.ffi
    lanes = ("@builtin(subgroup_size) size: u32,", "@builtin(subgroup_invocation_id) lane: u32,")
    forms = [f"y[{3 + i}] = bitcast<u32>({form});" for i, form in enumerate(_FORMS)]
    code = _SHADER.format(
        threads=threads,
        builtins="\n  ".join(lanes) if gpu.has_subgroups else "",
        lanes=_WITH_LANES if gpu.has_subgroups else "",
        forms="\n    ".join(forms),
        high=f"({_HIGH})",
        low=f"({_LOW})",
    )
    layout = gpu.group_layout([True])
    module = gpu.shader(code, "probe", is_checked=True)
    pipeline = gpu.pipeline(module, gpu.pipeline_layout(layout), "probe")
    storage = Flags.STORAGE | Flags.COPY_SOURCE
    output = gpu.buffer(_BYTES, storage, "probe")
    inputs = gpu.buffer(32, Flags.UNIFORM | Flags.COPY_TARGET, "probe")
    staging = gpu.buffer(_BYTES, Flags.MAP_READ | Flags.COPY_TARGET, "probe")
    values = np.array([1 + 2.0**-12, 1 + 2.0**-12, -1.0, 0, _X, _N, _BIG, 1], np.float32)
    values.view(np.uint32)[3] = 1
    gpu.write(inputs, 0, values.view(np.uint8))
    group = gpu.group(layout, [(inputs, 0, 32), (output, 0, _BYTES)])
    encoder = gpu.encoder()
    compute = lib.wgpuCommandEncoderBeginComputePass(encoder, ffi.NULL)
    lib.wgpuComputePassEncoderSetPipeline(compute, pipeline)
    lib.wgpuComputePassEncoderSetBindGroup(compute, 0, group, 0, ffi.NULL)
    lib.wgpuComputePassEncoderDispatchWorkgroups(compute, 1, 1, 1)
    lib.wgpuComputePassEncoderEnd(compute)
    lib.wgpuComputePassEncoderRelease(compute)
    lib.wgpuCommandEncoderCopyBufferToBuffer(encoder, output, 0, staging, 0, _BYTES)
    gpu.submit(encoder)
    found = gpu.read(staging, _BYTES).view(np.uint32)
    for buffer in (output, inputs, staging):
        lib.wgpuBufferRelease(buffer)
    return found
