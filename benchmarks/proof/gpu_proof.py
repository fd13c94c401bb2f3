"""Builds, checks and times the three proof kernels on an NVIDIA GPU through PTX and Vulkan.

One line per case: relative error (norm) against float64, rate, spills, times to build. Run with
``PYTHONPATH`` holding the ``src`` of poot-core, poot-kernel and poot-kernelgen, and torch installed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import struct
import time
import traceback
from functools import partial
from pathlib import Path

import numpy as np
import torch
from cuda_device import Cuda, TensorMap
from data import interleave_q4_k, q4_k_bytes, q4_k_values, quantised_rows

from poot_core import u32
from poot_kernel import IRBuilder
from poot_kernel.targets.nvptx import assemble_ptx, compile_ptx
from poot_kernel.targets.spirv import compile_spirv
from poot_kernelgen.proof import INTERLEAVED, RAW, flash_attention, gemm, q4_k_matmul

ALIGNED = {"a": 16, "b": 16, "c": 16, "q": 16, "k": 16, "v": 16, "out": 16, "w": 128, "x": 16,
           "x_scale": 16, "x_sum": 16, "y": 16}  # fmt: skip
RESULTS: dict[str, object] = {}


def report(name: str, **facts: object) -> None:
    """Print and keep a line."""
    RESULTS[name] = facts
    shown = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in facts.items())
    print(f"{name:34s} {'  '.join(shown)}", flush=True)


def relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the relative error in norm."""
    return ((found.double() - wanted.double()).norm() / wanted.double().norm()).item()


def grid_of(kernel, scalars) -> tuple[int, int, int]:
    """Return the launch grid."""
    found = [size.evaluate(scalars) for size in kernel.grid]
    return tuple(found + [1] * (3 - len(found)))


class PtxKernel:
    """A kernel built for CUDA."""

    def __init__(self, cuda: Cuda, kernel, multiples, threads=None) -> None:
        started = time.perf_counter()
        self.built = compile_ptx(kernel, multiples={**ALIGNED, **multiples}, threads=threads)
        self.text_ms = (time.perf_counter() - started) * 1e3
        self.binary = assemble_ptx(self.built.code)
        self.kernel, self.cuda = kernel, cuda
        self.function = cuda.load(self.binary.cubin, self.built.name, self.built.shared_bytes)

    def launcher(self, *arguments):
        """Return a function that launches with tensors and numbers."""
        scalars = {}
        packed = []
        for value, kind, given in zip(
            self.kernel.parameters, self.built.parameters, arguments, strict=True
        ):
            if kind == "pointer":
                packed.append(ctypes.c_uint64(given.data_ptr()))
            elif kind == "f32":
                packed.append(ctypes.c_float(given))
            else:
                scalars[value.name] = given
                packed.append(ctypes.c_int64(given))
        grid = grid_of(self.kernel, scalars)
        for found in self.built.tensor_maps:
            shape = tuple(size.evaluate(scalars) for size in found.shape)
            packed.append(TensorMap(packed[found.parameter].value, shape, found.box))
        if self.built.is_persistent:
            grid = (min(grid[0] * grid[1] * grid[2], self.cuda.num_multiprocessors), 1, 1)
        return lambda: self.cuda.launch(
            self.function, grid, self.built.threads, self.built.shared_bytes, packed
        )

    def facts(self) -> dict[str, object]:
        """Return what building took."""
        return {"regs": self.binary.registers, "spill": self.binary.spill_bytes,
                "smem": self.built.shared_bytes, "threads": self.built.threads,
                "text_ms": self.text_ms, "ptxas_ms": self.binary.seconds * 1e3}  # fmt: skip


def torch_seconds(call, count: int = 1, repeats: int = 15) -> float:
    """Return the median seconds of a torch call in graph replay."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            call()
    times = []
    for _ in range(repeats + 3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times[3:])[repeats // 2] / 1e3 / count


def run_once(cuda: Cuda, launch, output: torch.Tensor) -> None:
    """Launch over a poisoned output."""
    output.fill_(float("nan"))
    torch.cuda.synchronize()
    launch()
    cuda.synchronise()


def bf16(*shape: int) -> torch.Tensor:
    """Return normal random numbers."""
    return torch.randn(*shape, device="cuda").bfloat16()


GEMMS = (
    ("gemm ptx wgmma 128x256x64 s4", dict(TM=128, TN=256, TK=64, STAGES=4), None),
    ("gemm ptx wgmma 128x256x64 s3", dict(TM=128, TN=256, TK=64, STAGES=3), None),
    ("gemm ptx wgmma 128x128x64 s6", dict(TM=128, TN=128, TK=64, STAGES=6), None),
    ("gemm ptx mma.sync 128x128x64 s3", dict(TM=128, TN=128, TK=64, STAGES=3), 256),
    ("gemm ptx mma.sync 128x128x32 s4", dict(TM=128, TN=128, TK=32, STAGES=4), 128),
    ("gemm ptx mma.sync 128x256x64 s3", dict(TM=128, TN=256, TK=64, STAGES=3), 256),
)


def gemm_ptx(cuda: Cuda) -> None:
    """GEMM through PTX: edges, then speed."""
    m, n, k = 200, 136, 96
    a, b = bf16(m, k), bf16(n, k)
    c = torch.empty(m, n, device="cuda")
    built = PtxKernel(cuda, gemm.specialise(TM=64, TN=64, TK=32, STAGES=3, SIGNATURE="native"), {})
    run_once(cuda, built.launcher(m, n, k, a, b, c), c)
    report("gemm ptx edges", error=relative(c, a.double() @ b.double().T), **built.facts())
    kernel = gemm.specialise(TM=128, TN=128, TK=64, STAGES=4, SIGNATURE="native")
    built = PtxKernel(cuda, kernel, dict(K=8))
    run_once(cuda, built.launcher(m, n, k, a, b, c), c)
    report("gemm ptx wgmma edges", error=relative(c, a.double() @ b.double().T), **built.facts())
    for size in (4096, 8192):
        gemm_speed(cuda, size)


def gemm_speed(cuda: Cuda, size: int) -> None:
    """Time every schedule beside cuBLAS."""
    a, b = bf16(size, size), bf16(size, size)
    c = torch.empty(size, size, device="cuda")
    wanted = a.double() @ b.double().T
    out = torch.empty(size, size, device="cuda", dtype=torch.bfloat16)
    flops = 2 * size**3
    seconds = torch_seconds(lambda: torch.matmul(a, b.T, out=out), 10)
    report(f"gemm cuBLAS {size}", error=relative(out, wanted), tflops=flops / seconds / 1e12)
    for name, tiles, threads in GEMMS:
        try:
            kernel = gemm.specialise(**tiles, SIGNATURE="native")
            built = PtxKernel(cuda, kernel, dict(M=256, N=256, K=64), threads)
            launch = built.launcher(size, size, size, a, b, c)
            run_once(cuda, launch, c)
            seconds = cuda.seconds([launch] * 10) / 10
            rate = flops / seconds / 1e12
            report(f"{name} {size}", error=relative(c, wanted), tflops=rate, **built.facts())
        except Exception:
            report(name, failed=traceback.format_exc(limit=-2).replace("\n", " | "))


def reference_attention(q, k, v, scale):
    """Return causal attention in float64."""
    scores = q.double() @ k.double().transpose(1, 2) * scale
    rows = torch.arange(q.shape[1], device="cuda")
    scores = scores.masked_fill(rows[None, :] > rows[:, None], float("-inf"))
    return torch.softmax(scores, -1) @ v.double()


FLASHES = ((64, 64, 64, 2, None), (64, 128, 64, 2, None), (64, 128, 64, 3, None),
           (64, 64, 128, 2, None), (128, 64, 64, 2, None), (128, 128, 64, 2, None),
           (128, 128, 32, 3, None), (128, 128, 128, 2, None))  # fmt: skip


def flash_ptx(cuda: Cuda) -> None:
    """Attention through PTX."""
    for d in (64, 128):
        heads, length = 32 * 64 // d * 2, 8192
        q, k, v = (bf16(heads, length, d) for _ in range(3))
        flops = 4 * heads * length * length * d / 2
        sdpa = torch.nn.functional.scaled_dot_product_attention
        seconds = torch_seconds(partial(sdpa, q[None], k[None], v[None], is_causal=True))
        report(f"attention SDPA D{d} S{length}", tflops=flops / seconds / 1e12)
        for width, tm, tn, stages, threads in FLASHES:
            if width != d:
                continue
            name = f"attention ptx D{d} {tm}x{tn} s{stages}"
            try:
                kernel = flash_attention.specialise(
                    D=d, TM=tm, TN=tn, STAGES=stages, SIGNATURE="native"
                )
                built = PtxKernel(cuda, kernel, dict(S=128), threads)
                small = [x[:2, :1024].contiguous() for x in (q, k, v)]
                out = torch.empty_like(small[0])
                run_once(cuda, built.launcher(2, 1024, d**-0.5, *small, out), out)
                error = relative(out, reference_attention(*small, d**-0.5))
                out = torch.empty_like(q)
                launch = built.launcher(heads, length, d**-0.5, q, k, v, out)
                run_once(cuda, launch, out)
                seconds = cuda.seconds([launch], repeats=7)
                report(name, error=error, tflops=flops / seconds / 1e12, **built.facts())
            except Exception:
                report(name, failed=traceback.format_exc(limit=-2).replace("\n", " | "))
    short = [bf16(3, 200, 64) for _ in range(3)]
    out = torch.empty_like(short[0])
    kernel = flash_attention.specialise(D=64, TM=64, TN=64, STAGES=2, SIGNATURE="native")
    built = PtxKernel(cuda, kernel, {})
    run_once(cuda, built.launcher(3, 200, 0.125, *short, out), out)
    error = relative(out, reference_attention(*short, 0.125))
    report("attention ptx edges", error=error, **built.facts())


def read_kernel():
    """Return a lane-level kernel that reads words and adds them: what a GEMV cannot beat."""
    b = IRBuilder("read", level="lane", grid=["G"], workgroup_size=256, fastmath=["reassociate"])
    b.scalar("G")
    chunks = b.scalar("C")
    source = b.raw("w", alignment=128)
    target = b.array("y", u32, ["G"], access="w")
    start = b.mul(b.workgroup_id(), chunks)
    total = b.constant(0, u32)
    with b.foreach(start, b.add(start, chunks), [total]) as loop:
        words = [
            b.load(source, b.add(b.mul(loop.index, 64), 16 * i), count=4, dtype=u32, alignment=16)
            for i in range(4)
        ]
        found = loop.carried[0]
        for word in words:
            found = b.xor(found, b.vector_reduce(word, "xor"))
        loop.yield_(found)
    b.store(target, b.workgroup_id(), b.workgroup_reduce(loop.result, "xor"))
    return b.finish()


def gemv_ptx(cuda: Cuda) -> None:
    """Q4_K with int8 activations through PTX, over weights that no cache holds."""
    rng = np.random.default_rng(7)
    for n, k in ((28672, 4096), (4096, 14336), (6144, 4096), (128256, 4096)):
        raw = q4_k_bytes(rng, n, k)
        copies = max(1, 600_000_000 // raw.nbytes)
        values = torch.from_numpy(q4_k_values(raw[:4096])).cuda()
        for name, layout, held in (
            ("interleaved", INTERLEAVED, interleave_q4_k(raw)),
            ("raw", RAW, raw),
        ):
            pool = torch.from_numpy(held.reshape(-1)).cuda().repeat(copies).view(copies, -1)
            if name == "interleaved":
                chunks = 256 * 4
                groups = pool.numel() // (64 * chunks)
                built = PtxKernel(cuda, read_kernel(), dict(C=chunks))
                sums = torch.zeros(groups, device="cuda", dtype=torch.int32)
                launch = built.launcher(groups, chunks, pool, sums)
                seconds = cuda.seconds([launch])
                report(
                    f"read {n}x{k}",
                    tb_s=groups * chunks * 64 / seconds / 1e12,
                    regs=built.binary.registers,
                )
            for tokens, stages in ((1, 4), (1, 6), (1, 8), (8, 4)):
                if name == "raw" and (tokens, stages) != (1, 8):
                    continue
                x, scale, sums = quantised_rows(rng, tokens, k)
                wanted = (
                    torch.from_numpy(np.repeat(scale, 32, 1) * x.astype(np.float64)).cuda()
                    @ values.T
                )
                x, scale, sums = (torch.from_numpy(t).cuda() for t in (x, scale, sums))
                label = f"q4_k ptx {n}x{k} {name} T{tokens} s{stages}"
                try:
                    kernel = q4_k_matmul.specialise(TM=tokens, LAYOUT=layout, STAGES=stages)
                    built = PtxKernel(cuda, kernel, dict(N=16, K=256, T=tokens))
                    y = torch.empty(copies, tokens, n, device="cuda")
                    launches = [
                        built.launcher(tokens, n, k, pool[i], x, scale, sums, y[i])
                        for i in range(copies)
                    ]
                    run_once(cuda, launches[0], y)
                    error = relative(y[0][:, :4096], wanted)
                    seconds = cuda.seconds(launches)
                    report(label, error=error, tb_s=pool.numel() / seconds / 1e12, **built.facts())
                except Exception:
                    report(label, failed=traceback.format_exc(limit=-2).replace("\n", " | "))
            del pool


def vulkan_cases() -> None:
    """The same three kernels through SPIR-V."""
    from vulkan_device import Vulkan

    device = Vulkan()
    report("vulkan device", device=device.name)

    def run(name, kernel, multiples, arguments, output, wanted, work=None, threads=None, count=10):
        try:
            started = time.perf_counter()
            built = compile_spirv(kernel, multiples={**ALIGNED, **multiples}, threads=threads)
            text_ms = (time.perf_counter() - started) * 1e3
            started = time.perf_counter()
            pipeline = device.pipeline(built.code, len(built.parameters))
            driver_ms = (time.perf_counter() - started) * 1e3
            scalars, push, target = {}, b"", None
            for value, kind, given in zip(
                kernel.parameters, built.parameters, arguments, strict=True
            ):
                if kind == "pointer":
                    array = (
                        given
                        if isinstance(given, np.ndarray)
                        else given.cpu().contiguous().view(torch.uint8).numpy()
                    )
                    buffer = device.upload(array)
                    target = buffer if given is output else target
                    push += struct.pack("<Q", buffer.address)
                elif kind == "f32":
                    push += struct.pack("<ff", given, 0)
                else:
                    scalars[value.name] = given
                    push += struct.pack("<q", given)
            grid = grid_of(kernel, scalars)
            device.dispatch(pipeline, push, grid)
            raw = torch.from_numpy(device.download(target, np.uint8).copy()).cuda()
            found = raw.view(output.dtype).view(output.shape)[..., : wanted.shape[-1]]
            facts = {"error": relative(found, wanted), "words": len(built.code) // 4,
                     "threads": built.threads, "text_ms": text_ms, "driver_ms": driver_ms}  # fmt: skip
            if work:
                for _ in range(3):
                    device.dispatch(pipeline, push, grid, count)
                times = sorted(device.dispatch(pipeline, push, grid, count) for _ in range(7))
                facts[work[0]] = work[1] * count / times[3] / 1e12
            report(name, **facts)
        except Exception:
            report(name, failed=traceback.format_exc(limit=-2).replace("\n", " | "))

    m, n, k = 200, 136, 96
    a, b = bf16(m, k), bf16(n, k)
    c = torch.full((m, n), float("nan"), device="cuda")
    kernel = gemm.specialise(TM=64, TN=64, TK=32, STAGES=2, SIGNATURE="native")
    run("gemm vulkan edges", kernel, {}, (m, n, k, a, b, c), c, a.double() @ b.double().T)
    size = 4096
    a, b = bf16(size, size), bf16(size, size)
    c = torch.full((size, size), float("nan"), device="cuda")
    wanted = a.double() @ b.double().T
    for tm, tn, tk in ((128, 128, 32), (128, 128, 64), (128, 256, 32), (64, 128, 32)):
        kernel = gemm.specialise(TM=tm, TN=tn, TK=tk, STAGES=2, SIGNATURE="native")
        run(f"gemm vulkan {tm}x{tn}x{tk}", kernel, dict(M=256, N=256, K=64),
            (size, size, size, a, b, c), c, wanted, ("tflops", 2 * size**3))  # fmt: skip
    for length, promise, work in ((200, {}, False), (4096, dict(S=64), True)):
        q, k, v = (bf16(8, length, 64) for _ in range(3))
        out = torch.full_like(q, float("nan"))
        kernel = flash_attention.specialise(D=64, TM=32, TN=64, STAGES=2, SIGNATURE="native")
        wanted = reference_attention(q, k, v, 0.125)
        rate = ("tflops", 4 * 8 * length * length * 64 / 2) if work else None
        run(f"attention vulkan S{length}", kernel, promise, (8, length, 0.125, q, k, v, out), out,
            wanted, rate)  # fmt: skip
    rng = np.random.default_rng(9)
    n, k = 28672, 4096
    raw = q4_k_bytes(rng, n, k)
    x, scale, sums = quantised_rows(rng, 1, k)
    wanted = torch.from_numpy(
        (np.repeat(scale, 32, 1) * x.astype(np.float64)) @ q4_k_values(raw[:4096]).T
    ).cuda()
    y = torch.full((1, n), float("nan"), device="cuda")
    for name, layout, held in (
        ("interleaved", INTERLEAVED, interleave_q4_k(raw)),
        ("raw", RAW, raw),
    ):
        kernel = q4_k_matmul.specialise(TM=1, LAYOUT=layout, STAGES=2)
        given = (1, n, k, held, x, scale, sums, y)
        run(f"q4_k vulkan {n}x{k} {name}", kernel, dict(N=16, K=256), given, y, wanted,
            ("tb_s", raw.nbytes))  # fmt: skip


def main() -> None:
    """Run all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("gpu_proof.json"))
    parser.add_argument("--only", default="gemm_ptx,flash_ptx,gemv_ptx,vulkan")
    options = parser.parse_args()
    torch.manual_seed(3)
    print(torch.cuda.get_device_name(0), torch.__version__, flush=True)
    cuda = Cuda()
    for name in options.only.split(","):
        try:
            if name == "vulkan":
                vulkan_cases()
            else:
                {"gemm_ptx": gemm_ptx, "flash_ptx": flash_ptx, "gemv_ptx": gemv_ptx}[name](cuda)
        except Exception:
            traceback.print_exc()
        options.out.write_text(json.dumps(RESULTS, indent=1, default=str))


if __name__ == "__main__":
    main()
