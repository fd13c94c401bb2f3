"""Compiling kernels for AMD and running them in the simulator on NumPy arrays."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from poot_amd_sim import Memory, dispatch, pack_arguments, parse_programs
from poot_core import Settings, Target
from poot_kernel.compile import CompileRequest, CompileService
from poot_kernel.ir.types import ArrayType
from poot_kernel.targets.amdgcn import compile_amdgcn


def load_kernels(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def service(tmp_path_factory):
    settings = Settings(kernel_cache_dir=tmp_path_factory.mktemp("kernels"))
    with CompileService(settings, num_workers=1) as opened:
        yield opened


class Runner:
    """Runs kernels of the language on NumPy arrays; outputs are written into the arrays."""

    def __init__(self, service):
        self.service = service
        self.programs = {}

    def assemble(self, text, name, arch):
        """Return the program of LLVM IR text."""
        request = CompileRequest(
            kind="llvm-amdgcn-assembly", ir=text, target=Target("rocm", arch), entries=(name,)
        )
        (found,) = self.service.compile([request])
        return parse_programs(found.data.decode())[name]

    def program(self, kernel, arch, threads=None, multiples=None):
        built = compile_amdgcn(kernel, arch=arch, threads=threads, multiples=multiples)
        return self.assemble(built.code, kernel.name, arch), built.threads

    def __call__(
        self, kernel, arguments, arch, *, threads=None, multiples=None, program=None, **options
    ):
        """Run a kernel; arguments are arrays and scalars in its order.

        Returns how many wave instructions ran.
        """
        if program is None:
            program, threads = self.program(kernel, arch, threads, multiples)
        return run_program(kernel, program, threads, arguments, **options)


def run_program(kernel, program, threads, arguments, **options):
    memory = Memory(1 << 26)
    values, held, sizes = [], [], {}
    for parameter, argument in zip(kernel.parameters, arguments, strict=True):
        if isinstance(parameter.type, ArrayType):
            address = memory.allocate(argument.nbytes, parameter.name)
            view = memory.block(address, argument.nbytes)
            view[:] = np.ascontiguousarray(argument).reshape(-1).view(np.uint8)
            held.append((argument, view))
            values.append(address.to_bytes(8, "little"))
        else:
            dtype = parameter.type.dtype
            sizes[parameter.name] = argument
            raw = np.array(argument).astype(
                {"float": "f4", "int": f"i{dtype.itemsize}"}.get(dtype.kind, f"u{dtype.itemsize}")
            )
            values.append(raw.tobytes().ljust(4, b"\0"))
    grid = [size.evaluate(sizes) for size in kernel.grid]
    grid = tuple([*grid, 1, 1][:3])
    block = (threads, 1, 1)
    packed = pack_arguments(program, values, grid, block)
    count = dispatch(program, memory, packed, grid, block, **options)
    for argument, view in held:
        if argument.flags.writeable:
            argument.reshape(-1).view(np.uint8)[:] = view
    return count


@pytest.fixture(scope="session")
def run(service):
    return Runner(service)


@pytest.fixture(scope="session")
def load_module():
    return load_kernels


@pytest.fixture(scope="session")
def gpu_kernels():
    """The small kernels that poot-kernel's tests of GPU targets share."""
    return load_kernels(Path(__file__).parents[2] / "poot-kernel" / "tests" / "gpu_kernels.py")
