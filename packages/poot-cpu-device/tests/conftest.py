"""A device over one kernel cache for the whole run, and small kernels written by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from poot_core import Settings
from poot_cpu_device import CpuDevice, open_device
from poot_cpu_device._kernel import CpuKernel
from poot_kernel.compile import CompileRequest

# add:    y[i] += x[i], one float a tile
# count:  c[tile]++ with an atomic, arguments (c)
# stamp:  out[0..2] = i64 slots 1..3, one tile
# scale:  y[i] = a * y[i], arguments (y, f32 a)
# trail:  scratch[0] = tile_begin, then out[tile] = scratch[0]
# shape:  out[tile] = 1000 * (tile / columns) + tile % columns, arguments (out, columns)
KERNELS = """
define void @empty(ptr %args, i64 %begin, i64 %end, ptr %scratch) {
  ret void
}
define void @add(ptr %args, i64 %begin, i64 %end, ptr %scratch) {
entry:
  %x = load ptr, ptr %args
  %y.at = getelementptr i64, ptr %args, i64 1
  %y = load ptr, ptr %y.at
  br label %head
head:
  %i = phi i64 [ %begin, %entry ], [ %i1, %body ]
  %more = icmp ult i64 %i, %end
  br i1 %more, label %body, label %done
body:
  %x.p = getelementptr float, ptr %x, i64 %i
  %y.p = getelementptr float, ptr %y, i64 %i
  %a = load float, ptr %x.p
  %b = load float, ptr %y.p
  %c = fadd float %a, %b
  store float %c, ptr %y.p
  %i1 = add i64 %i, 1
  br label %head
done:
  ret void
}
define void @count(ptr %args, i64 %begin, i64 %end, ptr %scratch) {
entry:
  %c = load ptr, ptr %args
  br label %head
head:
  %i = phi i64 [ %begin, %entry ], [ %i1, %body ]
  %more = icmp ult i64 %i, %end
  br i1 %more, label %body, label %done
body:
  %p = getelementptr i64, ptr %c, i64 %i
  %old = atomicrmw add ptr %p, i64 1 monotonic
  %i1 = add i64 %i, 1
  br label %head
done:
  ret void
}
define void @stamp(ptr %args, i64 %begin, i64 %end, ptr %scratch) {
  %out = load ptr, ptr %args
  %in = getelementptr i64, ptr %args, i64 1
  %v = load <3 x i64>, ptr %in, align 8
  store <3 x i64> %v, ptr %out, align 8
  ret void
}
define void @scale(ptr %args, i64 %begin, i64 %end, ptr %scratch) {
entry:
  %y = load ptr, ptr %args
  %a.at = getelementptr i64, ptr %args, i64 1
  %a = load float, ptr %a.at
  br label %head
head:
  %i = phi i64 [ %begin, %entry ], [ %i1, %body ]
  %more = icmp ult i64 %i, %end
  br i1 %more, label %body, label %done
body:
  %p = getelementptr float, ptr %y, i64 %i
  %b = load float, ptr %p
  %c = fmul float %a, %b
  store float %c, ptr %p
  %i1 = add i64 %i, 1
  br label %head
done:
  ret void
}
define void @trail(ptr %args, i64 %begin, i64 %end, ptr %scratch) {
entry:
  %out = load ptr, ptr %args
  %far = getelementptr i8, ptr %scratch, i64 99992
  br label %head
head:
  %i = phi i64 [ %begin, %entry ], [ %i1, %body ]
  %more = icmp ult i64 %i, %end
  br i1 %more, label %body, label %done
body:
  store volatile i64 %i, ptr %scratch
  store volatile i64 %i, ptr %far
  %a = load volatile i64, ptr %scratch
  %b = load volatile i64, ptr %far
  %p = getelementptr i64, ptr %out, i64 %i
  %s = add i64 %a, %b
  store i64 %s, ptr %p
  %i1 = add i64 %i, 1
  br label %head
done:
  ret void
}
define void @shape(ptr %args, i64 %begin, i64 %end, ptr %scratch) {
entry:
  %out = load ptr, ptr %args
  %columns.at = getelementptr i64, ptr %args, i64 1
  %columns = load i64, ptr %columns.at
  br label %head
head:
  %i = phi i64 [ %begin, %entry ], [ %i1, %body ]
  %more = icmp ult i64 %i, %end
  br i1 %more, label %body, label %done
body:
  %row = udiv i64 %i, %columns
  %column = urem i64 %i, %columns
  %thousands = mul i64 %row, 1000
  %v = add i64 %thousands, %column
  %p = getelementptr i64, ptr %out, i64 %i
  store i64 %v, ptr %p
  %i1 = add i64 %i, 1
  br label %head
done:
  ret void
}
"""
ENTRIES = ("empty", "add", "count", "stamp", "scale", "trail", "shape")

Kernels = Mapping[str, CpuKernel]


def load_kernels(device: CpuDevice) -> Kernels:
    request = CompileRequest(
        kind="llvm-host-object", ir=KERNELS, target=device.target, entries=ENTRIES
    )
    return device.load(device.service.compile([request]))[0]


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(kernel_cache_dir=tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def open_with(settings: Settings) -> Iterator[Callable[..., tuple[CpuDevice, Kernels]]]:
    opened: list[CpuDevice] = []

    def open_one(threads: int, **changes: object) -> tuple[CpuDevice, Kernels]:
        device = open_device(settings, threads, **changes)  # type: ignore[arg-type]
        opened.append(device)
        return device, load_kernels(device)

    yield open_one
    for device in opened:
        device.close()


@pytest.fixture
def load() -> Callable[[CpuDevice], Kernels]:
    return load_kernels


@pytest.fixture(params=[1, 2, 3, 4, 11], ids="{} threads".format)  # 11: they share 8 parts
def device_and_kernels(
    request: pytest.FixtureRequest, open_with: Callable[..., tuple[CpuDevice, Kernels]]
) -> tuple[CpuDevice, Kernels]:
    return open_with(request.param)


@pytest.fixture
def cache_dir(settings: Settings) -> Path:
    assert settings.kernel_cache_dir is not None
    return settings.kernel_cache_dir
