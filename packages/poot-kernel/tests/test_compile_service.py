"""The compile service: results, errors, dying workers, what starts when."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from poot_core import CompileError, Settings, Target, UnsupportedError
from poot_kernel.compile import (
    CompiledObject,
    CompileRequest,
    CompileService,
    KernelCache,
    host_arch,
    host_target,
    load_objects,
)

HOST = host_target(Settings())


def request_of(ir: str, *entries: str, **options: object) -> CompileRequest:
    arguments: dict[str, object] = {
        "kind": "llvm-host-object",
        "ir": ir,
        "target": HOST,
        "entries": entries,
    }
    return CompileRequest(**(arguments | options))  # type: ignore[arg-type]


def add_constant(number: int) -> str:
    return f"""
define i64 @f(i64 %x) {{
  %y = add i64 %x, {number}
  ret i64 %y
}}"""


def call(compiled: CompiledObject, value: int) -> int:
    code = load_objects([compiled.data], host_arch())
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(code.symbols[0]["f"])(value)


@pytest.fixture
def service(tmp_path: Path):
    with CompileService(Settings(kernel_cache_dir=tmp_path)) as service:
        yield service


def test_a_batch_comes_back_in_order_and_runs(service: CompileService) -> None:
    numbers = [5, 700, -3, 5]
    compiled = service.compile([request_of(add_constant(n), "f") for n in numbers])
    assert [call(c, 1000) for c in compiled] == [1005, 1700, 997, 1005]
    assert compiled[0].key == compiled[3].key != compiled[1].key


def test_a_warm_cache_starts_no_worker_and_calls_no_generator(tmp_path: Path) -> None:
    settings = Settings(kernel_cache_dir=tmp_path)
    with CompileService(settings) as cold:
        cold.compile([request_of(lambda: add_constant(7), "f", identity="seven 1")])
        assert len(cold.worker_pids()) == 1

    def unused() -> str:
        raise AssertionError("a hit needs no IR")

    with CompileService(settings) as warm:
        (hit,) = warm.compile([request_of(unused, "f", identity="seven 1")])
        assert warm.worker_pids() == ()
    assert call(hit, 1) == 8


def test_llvmlite_is_never_imported_here() -> None:
    program = """
        import sys
        from poot_core import Settings
        from poot_kernel.compile import CompileRequest, CompileService, host_target, load_objects
        target = host_target(Settings())
        ir = "define i64 @f() { ret i64 3 }"
        with CompileService(Settings()) as service:
            request = CompileRequest(
                kind="llvm-host-object", ir=ir, target=target, entries=("f",))
            (compiled,) = service.compile([request])
        load_objects([compiled.data], target.arch)
        print("llvmlite" in sys.modules)
    """
    done = run_program(program)
    assert done.stdout.strip() == "False", done.stderr


def run_program(text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | environment,
    )


def test_an_undefined_symbol_is_named(service: CompileService, tmp_path: Path) -> None:
    ir = """
    declare float @powf(float, float)
    define float @f(float %x) {
      %y = call float @powf(float %x, float %x)
      ret float %y
    }"""
    with pytest.raises(CompileError, match="undefined symbols in the object: powf") as caught:
        service.compile([request_of(ir, "f")])
    assert Path(caught.value.path).read_text() == ir
    assert caught.value.path.startswith(str(tmp_path))


def test_wide_copies_and_fills_need_no_library(service: CompileService) -> None:
    ir = """
    declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
    declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
    define void @f(ptr %to, ptr %from, i64 %n) {
      call void @llvm.memset.p0.i64(ptr %to, i8 -91, i64 200, i1 false)
      call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %n, i1 false)
      ret void
    }"""
    (compiled,) = service.compile([request_of(ir, "f")])
    code = load_objects([compiled.data], host_arch())
    kinds = (None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    source, result = ctypes.create_string_buffer(os.urandom(150)), (ctypes.c_char * 200)()
    ctypes.CFUNCTYPE(*kinds)(code.symbols[0]["f"])(
        ctypes.addressof(result), ctypes.addressof(source), 150
    )
    assert result.raw == source.raw[:150] + b"\xa5" * 50


@pytest.mark.parametrize(
    ("ir", "said"),
    [
        ("define i64 @f( {", "parsing error"),
        ("define i64 @f() { ret i64 1 }", "entries not defined in the module: g"),
    ],
)
def test_a_bad_module_is_refused_and_the_worker_lives_on(
    service: CompileService, ir: str, said: str
) -> None:
    with pytest.raises(CompileError, match=said):
        service.compile([request_of(ir, "f" if "(" in said else "g")])
    before = service.worker_pids()
    assert call(service.compile([request_of(add_constant(1), "f")])[0], 1) == 2
    assert service.worker_pids() == before


def test_a_fatal_llvm_error_kills_the_worker_alone(service: CompileService) -> None:
    # A scalar type that x86 cannot select: LLVM aborts instead of raising.
    ir = """
    define void @f() {
      call void asm sideeffect "not an instruction", ""()
      ret void
    }
    """
    with pytest.raises(CompileError, match="its IR is kept at") as caught:
        service.compile([request_of(ir, "f")])
    assert Path(caught.value.path).read_text() == ir
    assert call(service.compile([request_of(add_constant(2), "f")])[0], 1) == 3


def test_a_killed_worker_is_replaced(tmp_path: Path) -> None:
    with CompileService(Settings(kernel_cache_dir=tmp_path), num_workers=1) as service:
        service.compile([request_of(add_constant(3), "f")])
        (pid,) = service.worker_pids()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(CompileError, match="ended with signal 9"):
            service.compile([request_of(add_constant(4), "f")])
        assert call(service.compile([request_of(add_constant(4), "f")])[0], 1) == 5
        assert service.worker_pids() != (pid,)


def test_at_most_one_worker_a_core(tmp_path: Path) -> None:
    with CompileService(Settings(kernel_cache_dir=tmp_path), num_workers=2) as service:
        service.compile([request_of(add_constant(n), "f") for n in range(12)])
        assert 1 <= len(service.worker_pids()) <= 2


def wait_until_gone(pid: int) -> bool:
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return True
        if state == "Z":  # ended, and waits for whoever adopted it
            return True
        time.sleep(0.05)
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    "end", ["service.close()", "os.kill(os.getpid(), 9)", "pass", "os._exit(0)"]
)
def test_workers_end_with_their_parent(end: str) -> None:
    program = f"""
        import os
        from poot_core import Settings
        from poot_kernel.compile import CompileRequest, CompileService, host_target
        service = CompileService(Settings())
        ir = "define i64 @f() {{ ret i64 3 }}"
        service.compile([CompileRequest(
            kind="llvm-host-object", ir=ir, target=host_target(Settings()), entries=("f",))])
        print(*service.worker_pids(), flush=True)
        {end}
    """
    done = run_program(program, PYTHONWARNINGS="error")
    assert wait_until_gone(int(done.stdout)), done.stderr
    assert done.stderr == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_compiles_with_workers_of_its_own() -> None:
    program = """
        import os, warnings
        warnings.simplefilter("ignore")
        from poot_core import Settings
        from poot_kernel.compile import CompileRequest, CompileService, host_target
        target = host_target(Settings())
        service = CompileService(Settings())
        def compile(n):
            ir = "define i64 @f() { ret i64 %d }" % n
            service.compile([CompileRequest(
                kind="llvm-host-object", ir=ir, target=target, entries=("f",))])
        compile(1)
        parents = service.worker_pids()
        child = os.fork()
        if child == 0:
            compile(2)
            ok = not set(parents) & set(service.worker_pids())
            service.close()
            os._exit(0 if ok else 3)
        status = os.waitpid(child, 0)[1]
        compile(3)
        print(status, service.worker_pids() == parents)
        service.close()
    """
    done = run_program(program)
    assert done.stdout.split() == ["0", "True"], done.stderr


def test_other_kinds_are_compiled_for_their_target(service: CompileService) -> None:
    ptx_ir = """
    define ptx_kernel void @k(ptr addrspace(1) %x) {
      store float 1.5, ptr addrspace(1) %x
      ret void
    }"""
    amd_ir = ptx_ir.replace("ptx_kernel", "amdgpu_kernel")
    ptx, amd = service.compile(
        [
            request_of(ptx_ir, "k", kind="llvm-nvptx", target=Target("ptx", "sm_90a")),
            request_of(amd_ir, "k", kind="llvm-amdgcn-object", target=Target("rocm", "gfx1100")),
        ]
    )
    assert b".visible .entry k(" in ptx.data
    assert b".target sm_90a" in ptx.data
    assert amd.data[:4] == b"\x7fELF"
    assert amd.data[18] == 224  # EM_AMDGPU
    with pytest.raises(UnsupportedError, match="'llvm-nvptx' cannot be compiled for cpu"):
        service.compile([request_of(ptx_ir, "k", kind="llvm-nvptx")])


def test_the_key_depends_on_everything_that_the_code_depends_on() -> None:
    base = request_of(add_constant(1), "f")
    variants = [
        base,
        request_of(add_constant(2), "f"),
        request_of(add_constant(1), "f", opt_level=0),
        request_of(add_constant(1), "f", target=Target("cpu", "x86-64", frozenset({"avx2"}))),
        request_of(add_constant(1), "f", identity="a"),
        request_of(add_constant(1), "f", identity="b"),
    ]
    assert len({variant.key() for variant in variants}) == len(variants)
    assert base.key() == request_of(add_constant(1), "f").key()


def test_ir_by_function_needs_an_identity() -> None:
    with pytest.raises(TypeError, match="needs an identity"):
        request_of(lambda: add_constant(1), "f")


def test_a_closed_service_still_answers_hits_and_refuses_misses(tmp_path: Path) -> None:
    cache = KernelCache(Settings(kernel_cache_dir=tmp_path))
    service = CompileService(Settings(), cache=cache)
    service.compile([request_of(add_constant(1), "f")])
    service.close()
    service.close()
    assert call(service.compile([request_of(add_constant(1), "f")])[0], 1) == 2
    with pytest.raises(CompileError, match="closed"):
        service.compile([request_of(add_constant(2), "f")])


def test_released_workers_come_back_when_needed(service: CompileService) -> None:
    service.compile([request_of(add_constant(1), "f")])
    service.release_workers()
    assert service.worker_pids() == ()
    assert call(service.compile([request_of(add_constant(2), "f")])[0], 1) == 3


def test_a_failed_modules_ir_outlives_a_private_cache() -> None:
    program = """
        from poot_core import CompileError, Settings
        from poot_kernel.compile import CompileRequest, CompileService, host_target
        try:
            CompileService(Settings()).compile([CompileRequest(
                kind="llvm-host-object", ir="not IR", target=host_target(Settings()),
                entries=("f",))])
        except CompileError as error:
            print(error.path)
    """
    path = Path(run_program(program).stdout.strip())
    assert path.read_text() == "not IR"
    path.unlink()
