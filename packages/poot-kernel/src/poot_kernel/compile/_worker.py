"""The program of a compile worker: LLVM IR in, object bytes out, one frame each over its pipes.

Run as ``python -I -S _worker.py SITE_DIRECTORY``, never imported. It is self-contained so that a
worker starts with llvmlite's binding alone. An LLVM fatal error ends this process and no other.

Frames, both ways: u32 little-endian length of a JSON header, u32 length of a body, header, body.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
import threading
import time
from typing import Any, BinaryIO

# What LLVM's expansion of wide copies and fills calls; linked in when an object needs them. The
# attribute keeps the loop from being recognised as a call to itself.
_MEMORY_ROUTINES = """
define hidden ptr @memset(ptr %d, i32 %v, i64 %n) "no-builtins" {
entry:
  %b = trunc i32 %v to i8
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %j, %body ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %body, label %done
body:
  %p = getelementptr i8, ptr %d, i64 %i
  store i8 %b, ptr %p
  %j = add i64 %i, 1
  br label %head
done:
  ret ptr %d
}
define hidden ptr @memcpy(ptr %d, ptr %s, i64 %n) "no-builtins" {
entry:
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %j, %body ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %body, label %done
body:
  %q = getelementptr i8, ptr %s, i64 %i
  %b = load i8, ptr %q
  %p = getelementptr i8, ptr %d, i64 %i
  store i8 %b, ptr %p
  %j = add i64 %i, 1
  br label %head
done:
  ret ptr %d
}
"""


def _read_exactly(stream: BinaryIO, length: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < length:
        part = stream.read(length - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)


def _read_frame(stream: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    prefix = _read_exactly(stream, 8)
    if prefix is None:
        return None
    header_bytes, body_bytes = struct.unpack("<II", prefix)
    header = _read_exactly(stream, header_bytes)
    body = _read_exactly(stream, body_bytes)
    if header is None or body is None:
        return None
    return json.loads(header), body


def _write_frame(stream: BinaryIO, header: dict[str, Any], body: bytes) -> None:
    encoded = json.dumps(header).encode()
    stream.write(struct.pack("<II", len(encoded), len(body)) + encoded + body)
    stream.flush()


def _undefined_symbols(data: bytes) -> list[str]:
    """Return the names of an ELF64 little-endian object's undefined symbols."""
    offset, count = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, offset + 64 * i) for i in range(count)]
    names: list[str] = []
    for section in sections:
        if section[1] != 2:  # SHT_SYMTAB
            continue
        strings = sections[section[6]][4]
        for at in range(section[4] + 24, section[4] + section[5], 24):
            name, _info, _other, index = struct.unpack_from("<IBBH", data, at)
            if index == 0:
                start = strings + name
                names.append(data[start : data.index(b"\0", start)].decode())
    return names


class _Compiler:
    def __init__(self, llvm: Any) -> None:
        self.llvm = llvm
        self.machines: dict[tuple[str, str, str, str], Any] = {}

    def machine(self, triple: str, cpu: str, features: str, reloc: str) -> Any:
        key = (triple, cpu, features, reloc)
        if key not in self.machines:
            self.machines[key] = self.llvm.Target.from_triple(triple).create_target_machine(
                cpu=cpu, features=features, opt=3, reloc=reloc, codemodel="default"
            )
        return self.machines[key]

    def emit(self, text: str, job: dict[str, Any]) -> bytes:
        # NOTE: a fresh module for each emission: code generation changes the IR, and a second
        # emission from the same module aborts the process.
        llvm = self.llvm
        machine = self.machine(job["triple"], job["cpu"], job["features"], job["reloc"])
        with llvm.create_context() as context:
            module = llvm.parse_assembly(text, context)
            try:
                return self._emit_module(module, machine, job)
            finally:
                module.close()  # before its context

    def _emit_module(self, module: Any, machine: Any, job: dict[str, Any]) -> bytes:
        llvm = self.llvm
        module.triple = job["triple"]
        module.data_layout = str(machine.target_data)
        module.verify()
        defined = {f.name for f in module.functions if not f.is_declaration}
        if missing := set(job["entries"]) - defined:
            raise ValueError(f"entries not defined in the module: {', '.join(sorted(missing))}")
        options = llvm.create_pipeline_tuning_options(speed_level=job["opt_level"])
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(module, builder)
        if job["output"] == "assembly":
            return machine.emit_assembly(module).encode()
        return machine.emit_object(module)

    def compile(self, text: str, job: dict[str, Any]) -> bytes:
        data = self.emit(text, job)
        if not job["self_contained"]:
            return data
        undefined = _undefined_symbols(data)
        if undefined and set(undefined) <= {"memset", "memcpy"}:
            data = self.emit(text + _MEMORY_ROUTINES, job)
            undefined = _undefined_symbols(data)
        if undefined:
            raise ValueError(f"undefined symbols in the object: {', '.join(sorted(undefined))}")
        return data


def _end_with(parent: int) -> None:
    """End this process when its parent is gone: LLVM may never come back to read the closed pipe."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _main() -> None:
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's; it closes the pipe
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, ValueError, OSError):
        pass
    source = sys.stdin.buffer
    # LLVM may print: keep the answer's pipe to ourselves and send fd 1 to stderr.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.path.append(sys.argv[1])
    compiler: _Compiler | None = None
    while (frame := _read_frame(source)) is not None:
        job, body = frame
        try:
            if compiler is None:
                import llvmlite.binding as llvm

                llvm.initialize_all_targets()
                llvm.initialize_all_asmprinters()
                llvm.initialize_native_asmparser()  # for inline assembly
                compiler = _Compiler(llvm)
            data = compiler.compile(body.decode(), job)
        except (RuntimeError, ValueError, ImportError, OSError) as error:
            _write_frame(answers, {"ok": False, "error": str(error)}, b"")
        else:
            _write_frame(answers, {"ok": True}, data)


if __name__ == "__main__":
    try:
        _main()
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(1)
