"""A CUDA driver in NumPy at the binding's edge: its functions, with the binding's own types.

Calls are checked against the real binding's signatures and kept in order. Kernels run in the kernel
language's interpreter, by the name of their entry. ``fail`` makes the next call of a function answer
an error.
"""

from __future__ import annotations

import ctypes
import re

import numpy as np
from cuda.bindings import driver as real

from poot_kernel import ArrayType
from poot_kernel.interpreter import interpret

OK = real.CUresult.CUDA_SUCCESS
FACTS = {
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "COMPUTE_CAPABILITY_MINOR": 0,
    "MULTIPROCESSOR_COUNT": 132,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
    "MAX_THREADS_PER_BLOCK": 1024,
}


def num_parameters(name):
    """Return how many arguments the real function takes, from the signature in its docstring."""
    (text,) = re.findall(rf"^{name}\((.*)\)", getattr(real, name).__doc__)
    depth, count = 0, bool(text)
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        count += letter == "," and depth == 0
    return int(count)


class FakeCuda:
    """Stands in for the module ``cuda.bindings.driver``."""

    def __init__(self, kernels=(), facts=None, total=1 << 30):
        self.kernels = {kernel.name: kernel for kernel in kernels}
        self.facts = {**FACTS, **(facts or {})}
        self.total = total
        self.memory = {}
        self.hosts = {}
        self.events = []
        self.calls = []
        self.launches = []
        self.failures = {}
        self.capturing = None
        self.graphs = {}
        self.images = {}
        self.cubins = []
        self.live_graphs = 0  # executable ones
        self.live_recordings = 0
        self.clock = 0.0
        self._next = 0x7000_0000_0000

    def fail(self, name, code, after=0):
        """Make a call of ``name`` answer ``code``, once, after so many good ones."""
        self.failures[name] = [after, code]

    def names(self):
        return [name for name, _ in self.calls]

    def __getattr__(self, name):
        if not name.startswith("cu") or not hasattr(real, name):
            raise AttributeError(name)
        if isinstance(getattr(real, name), type):
            return getattr(real, name)

        def call(*arguments):
            assert len(arguments) == num_parameters(name), f"{name} takes other arguments"
            self.calls.append((name, arguments))
            if name in self.failures:
                left, code = self.failures[name]
                if left == 0:
                    del self.failures[name]
                    if name == "cuStreamEndCapture":  # it ends one that it refuses, too
                        self.capturing = None
                    if isinstance(code, Exception):
                        raise code
                    return (getattr(real.CUresult, code), *[None] * 2)[:2]
                self.failures[name][0] -= 1
            found = getattr(self, "_" + name)(*arguments)
            return (
                (OK, *found)
                if isinstance(found, tuple)
                else (OK,)
                if found is None
                else (OK, found)
            )

        return call

    CUresult = real.CUresult
    CUdevice_attribute = real.CUdevice_attribute
    CUfunction_attribute = real.CUfunction_attribute
    CUjit_option = real.CUjit_option
    CUjitInputType = real.CUjitInputType
    CUlaunchConfig = real.CUlaunchConfig
    CUlaunchAttribute = real.CUlaunchAttribute
    CUlaunchAttributeID = real.CUlaunchAttributeID
    CUstreamCaptureMode = real.CUstreamCaptureMode

    # ---- the device

    def _cuInit(self, flags):
        assert flags == 0

    def _cuDriverGetVersion(self):
        return 13000

    def _cuDeviceGetCount(self):
        return 2

    def _cuDeviceGet(self, ordinal):
        return ordinal

    def _cuDeviceGetName(self, length, device):
        return f"Fake GPU {device}".encode().ljust(length, b"\0")

    def _cuDeviceGetAttribute(self, attribute, device):
        return self.facts[attribute.name.removeprefix("CU_DEVICE_ATTRIBUTE_")]

    def _cuDeviceTotalMem(self, device):
        return self.total

    def _cuDevicePrimaryCtxRetain(self, device):
        return "context"

    def _cuCtxSetCurrent(self, context):
        assert context == "context"

    def _cuStreamCreate(self, flags):
        return real.CUstream(7)

    def _cuStreamDestroy(self, stream):
        return None

    def _cuStreamSynchronize(self, stream):
        assert self.capturing is None

    # ---- memory

    def _cuMemAlloc(self, size):
        if sum(map(len, self.memory.values())) + size > self.total:
            return self._out_of_memory()
        address = self._next
        self._next += -(-size // 256) * 256 + 4096
        self.memory[address] = np.random.default_rng(address).integers(0, 255, size, np.uint8)
        return real.CUdeviceptr(address)

    def _out_of_memory(self):
        raise AssertionError("use fail('cuMemAlloc', 'CUDA_ERROR_OUT_OF_MEMORY')")

    def _cuMemFree(self, address):
        del self.memory[int(address)]

    def _cuMemGetInfo(self):
        return self.total - sum(map(len, self.memory.values())), self.total

    def _cuMemsetD8Async(self, address, value, count, stream):
        self._at(address, count)[:] = value

    def _cuMemHostAlloc(self, size, flags):
        block = np.zeros(size, np.uint8)
        self.hosts[block.ctypes.data] = block
        return block.ctypes.data

    def _cuMemFreeHost(self, address):
        del self.hosts[address]

    def _cuMemcpyHtoDAsync(self, target, source, count, stream):
        assert self.capturing is None
        raw = (ctypes.c_uint8 * count).from_address(source)
        self._at(target, count)[:] = np.ctypeslib.as_array(raw)

    def _cuMemcpyDtoHAsync(self, target, source, count, stream):
        raw = (ctypes.c_uint8 * count).from_address(target)
        np.ctypeslib.as_array(raw)[:] = self._at(source, count)

    def _at(self, address, count):
        for start, block in self.memory.items():
            offset = int(address) - start
            if offset >= 0 and offset + count <= len(block):
                return block[offset : offset + count]
        raise AssertionError(f"no memory of {count} bytes at {int(address):#x}")

    def _rest(self, address):
        for start, block in self.memory.items():
            if 0 <= int(address) - start < len(block):
                return block[int(address) - start :]
        raise AssertionError(f"no memory at {int(address):#x}")

    # ---- events

    def _cuEventCreate(self, flags):
        self.events.append(0.0)
        return len(self.events) - 1

    def _cuEventRecord(self, event, stream):
        self.events[event] = self.clock

    def _cuEventSynchronize(self, event):
        return None

    def _cuEventElapsedTime(self, start, end):
        return self.events[end] - self.events[start]

    def _cuEventDestroy(self, event):
        return None

    # ---- code

    def _cuLinkCreate(self, count, options, values):
        assert count == len(options) == len(values)
        return {"source": None, "log": values[0]}

    def _cuLinkAddData(self, state, kind, data, size, name, count, options, values):
        assert kind is real.CUjitInputType.CU_JIT_INPUT_PTX
        assert data.endswith(b"\0")
        assert size == len(data)
        state["source"] = data

    def _cuLinkComplete(self, state):
        cubin = ctypes.create_string_buffer(b"CUBIN" + state["source"])
        self.cubins.append(cubin)
        return ctypes.addressof(cubin), len(cubin) - 1

    def _cuLinkDestroy(self, state):
        state.clear()

    def _cuModuleLoadData(self, image):
        assert image.startswith((b"CUBIN", b".version"))
        return image

    def _cuModuleGetFunction(self, module, name):
        assert b".entry " + name in module
        return name.decode()

    def _cuModuleUnload(self, module):
        return None

    def _cuFuncSetAttribute(self, function, attribute, value):
        assert 48 * 1024 < value <= FACTS["MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"]

    # ---- launches

    def _cuLaunchKernelEx(self, config, function, parameters, extra):
        assert extra == 0
        kernel = self.kernels[function]
        pointers = (ctypes.c_uint64 * len(kernel.parameters)).from_address(parameters)
        slots = [ctypes.c_uint64.from_address(p).value for p in pointers]
        record = {
            "name": function,
            "grid": (config.gridDimX, config.gridDimY, config.gridDimZ),
            "threads": config.blockDimX,
            "shared": config.sharedMemBytes,
            "early": config.numAttrs == 1,
            "slots": slots,
        }
        assert min(record["grid"]) > 0
        if self.capturing is not None:
            self.capturing.append(record)
            return
        self._run(record)

    def _run(self, record):
        self.launches.append(record)
        self.clock += 1.0
        kernel = self.kernels[record["name"]]
        arguments = []
        for parameter, slot in zip(kernel.parameters, record["slots"], strict=True):
            if isinstance(parameter.type, ArrayType):
                size = parameter.type.dtype.itemsize
                block = self._rest(slot)
                arguments.append(
                    block[: len(block) // size * size].view(parameter.type.dtype.numpy)
                )
            else:
                raw = slot.to_bytes(8, "little")[: parameter.type.dtype.itemsize]
                arguments.append(np.frombuffer(raw, parameter.type.dtype.numpy)[0])
        interpret(kernel, arguments, workgroup_size=record["threads"], check=False)

    def _cuStreamBeginCapture(self, stream, mode):
        self.capturing = []

    def _cuStreamEndCapture(self, stream):
        assert self.capturing is not None
        found, self.capturing = self.capturing, None
        self.live_recordings += 1
        return found

    def _cuGraphInstantiate(self, graph, flags):
        self.live_graphs += 1
        return list(graph)

    def _cuGraphDestroy(self, graph):
        self.live_recordings -= 1

    def _cuGraphUpload(self, executable, stream):
        return None

    def _cuGraphLaunch(self, executable, stream):
        for record in executable:
            self._run(record)

    def _cuGraphExecDestroy(self, executable):
        self.live_graphs -= 1
