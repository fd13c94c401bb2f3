"""Runs generated shaders through wgpu on the first adapter, each array in a buffer of its own."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from poot_core import DeviceCaps
from poot_kernel import Size
from poot_kernel.targets.wgsl import array_accesses, table_words

_PROBE = """
@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@compute @workgroup_size(64) fn main(@builtin(subgroup_size) size: u32) { y[0] = size; }
"""


@functools.cache
def open_adapter():
    """Return a wgpu device and the capabilities that generators need; skips without an adapter."""
    wgpu = pytest.importorskip("wgpu")
    from wgpu.backends.wgpu_native.extras import set_instance_extras

    set_instance_extras(backends=["Vulkan", "Metal", "DX12"])
    adapters = wgpu.gpu.enumerate_adapters_sync()
    if not adapters:
        pytest.skip("no WebGPU adapter (for a software one: mesa-vulkan-drivers)")
    limits = {
        name: adapters[0].limits[name]
        for name in ("max-storage-buffers-per-shader-stage", "max-compute-workgroup-storage-size",
                     "max-compute-invocations-per-workgroup")
    }  # fmt: skip
    device = adapters[0].request_device_sync(required_features=["subgroup"], required_limits=limits)
    size = int(_dispatch(device, _PROBE, [np.zeros(4, np.uint32)], (1, 1))[0][0])
    return device, DeviceCaps(
        name="test", vector_bytes=16, subgroup_size=size, num_workers=1,
        shared_bytes=limits["max-compute-workgroup-storage-size"], memory_bytes=0,
        max_workgroup=256, may_contract=True,
    )  # fmt: skip


def run_shader(kernel, package, *arguments):
    """Run a packaged kernel on arrays and numbers in the order of its parameters, in place."""
    device, _ = open_adapter()
    words, arrays, scalars = [], [], {}
    for (name, kind), argument in zip(package.parameters, arguments, strict=True):
        if kind == "pointer":
            words.append(0)
            arrays.append(argument)
        elif kind == "f32":
            words.append(int(np.float32(argument).view(np.uint32)))
        else:
            words.append(int(argument) & 0xFFFFFFFF)
            scalars[name] = int(argument)
    total = int(np.prod([Size.parse(text).evaluate(scalars) for text in package.grid]))
    used = [i for i, (_, kind) in enumerate(package.parameters) if kind == "pointer"]
    code = package.code.decode()
    accessed = array_accesses(code)
    bound = [a for i, a in zip(used, arrays, strict=True) if i in accessed]
    uniform = np.array([*words, 0], np.uint32)
    padding = np.zeros(-len(uniform) % 4, np.uint32)
    uniform = np.concatenate([uniform, padding, np.array(table_words(code), np.uint32)])
    grid = (min(total, 7), -(-total // 7))  # more workgroups than wanted, on two axes
    found = _dispatch(device, code, bound, grid, uniform)
    for array, data in zip(bound, found, strict=True):
        array.reshape(-1).view(np.uint8)[:] = data.view(np.uint8)[: array.nbytes]


def _dispatch(device, code, arrays, grid, uniform=None):
    import wgpu

    usage = wgpu.BufferUsage
    module = device.create_shader_module(code=code)
    pipeline = device.create_compute_pipeline(
        layout="auto", compute={"module": module, "entry_point": "main"}
    )
    buffers = []
    for array in arrays:
        size = max(16, -(-array.nbytes // 16) * 16)
        raw = np.zeros(size, np.uint8)
        raw[: array.nbytes] = array.reshape(-1).view(np.uint8)
        flags = usage.STORAGE | usage.COPY_SRC | usage.COPY_DST
        buffers.append(device.create_buffer_with_data(data=raw, usage=flags))
    bound = list(buffers)
    if uniform is not None:
        bound.insert(0, device.create_buffer_with_data(data=uniform, usage=usage.UNIFORM))
    entries = [{"binding": i, "resource": {"buffer": b}} for i, b in enumerate(bound)]
    group = device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
    encoder = device.create_command_encoder()
    compute = encoder.begin_compute_pass()
    compute.set_pipeline(pipeline)
    compute.set_bind_group(0, group)
    compute.dispatch_workgroups(*grid)
    compute.end()
    device.queue.submit([encoder.finish()])
    return [np.frombuffer(device.queue.read_buffer(b), np.uint32) for b in buffers]
