"""The runtime module: it compiles everywhere, from the cache, and follows the feature mask."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from poot_core import CompileError, Settings, Target
from poot_cpu_device import open_device
from poot_cpu_device._runtime_ir import ENTRIES, runtime_ir
from poot_executor import BufferArgument, GridDim, Launch
from poot_kernel.compile import (
    CompiledObject,
    CompileRequest,
    CompileService,
    host_arch,
    host_features,
)


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_the_runtime_is_self_contained(settings: Settings, platform: str) -> None:
    # The other architecture's inline assembly cannot be assembled here: llvmlite has the
    # native assembly parser alone.
    target = Target("cpu", host_arch())
    with CompileService(settings) as service:
        (compiled,) = service.compile(
            [
                CompileRequest(
                    kind="llvm-host-object",
                    ir=runtime_ir(target, platform),
                    target=target,
                    entries=ENTRIES,
                )
            ]
        )
    assert compiled.data[:4] == b"\x7fELF"


def test_a_warm_start_needs_no_llvm(cache_dir: Path) -> None:
    program = """
        import sys
        from pathlib import Path
        from poot_core import Settings
        from poot_cpu_device import open_device
        device = open_device(Settings(kernel_cache_dir=Path(sys.argv[1])), 2)
        device.run(device.prepare([]), {})
        print(device.service.worker_pids(), "llvmlite" in sys.modules)
    """
    for expected in (None, "() False\n"):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program), str(cache_dir)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert expected in {None, done.stdout}


@pytest.mark.skipif("avx2" not in host_features(), reason="needs AVX2")
def test_a_masked_device_runs(settings: Settings, load) -> None:
    masked = replace(settings, cpu_features=frozenset({"avx2"}))
    with open_device(masked, 2) as device:
        assert device.caps.vector_bytes == 32
        assert not any(name.startswith("avx512") for name in device.target.features)
        kernels = load(device)
        counts = device.allocate(8 * 64, "counts")
        launch = Launch(
            kernel=kernels["count"], arguments=(BufferArgument(counts),), grid=(GridDim(64),)
        )
        device.run(device.prepare([launch]), {})
        assert (device.view(counts).view(np.int64) == 1).all()


def test_code_for_other_devices_and_missing_entries_are_refused(open_with) -> None:
    device, _ = open_with(1)
    fields = {"key": "0" * 64, "data": b"", "entries": ("k",)}
    ptx = CompiledObject(kind="llvm-nvptx", target=Target("ptx", "sm_90a"), **fields)
    with pytest.raises(CompileError, match="cannot be loaded on cpu"):
        device.load([ptx])
    (compiled,) = device.service.compile(
        [
            CompileRequest(
                kind="llvm-host-object",
                ir="define void @k() { ret void }",
                target=device.target,
                entries=("k",),
            )
        ]
    )
    with pytest.raises(CompileError, match="has no entry other"):
        device.load([replace(compiled, entries=("k", "other"))])
