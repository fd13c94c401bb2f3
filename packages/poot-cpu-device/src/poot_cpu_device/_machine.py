"""The few machine instructions that LLVM IR has no portable word for."""

from __future__ import annotations

from dataclasses import dataclass

from poot_core import Target

__all__ = ["Machine", "machine_of"]

# linux/futex.h: FUTEX_WAIT and FUTEX_WAKE with FUTEX_PRIVATE_FLAG
_WAIT, _WAKE = 128, 129


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """LLVM IR of four internal functions: ``relax``, ``ticks``, ``sleep_on``, ``wake_all``.

    Attributes:
        relax: Tells the core that it spins.
        ticks: Reads a counter that rises steadily on all cores.
        sleep_on: Sleeps while a word holds a value; may return early.
        wake_all: Wakes all sleepers of a word.
    """

    relax: str
    ticks: str
    sleep_on: str
    wake_all: str

    def text(self) -> str:
        """Return the four definitions."""
        return "\n".join((self.relax, self.ticks, self.sleep_on, self.wake_all))


def machine_of(target: Target, platform: str, nap_offset: int) -> Machine:
    """Return the instructions of ``target`` under the operating system ``platform``.

    Args:
        target: A host target.
        platform: As ``sys.platform``; only Linux has futexes.
        nap_offset: Byte offset of the pointer to usleep in the team's block, for the others.
    """
    is_x86 = target.arch == "x86-64"
    relax = '"pause", "~{memory}"' if is_x86 else '"yield", "~{memory}"'
    ticks = (
        "%t = call i64 @llvm.readcyclecounter()"
        if is_x86
        else '%t = call i64 asm sideeffect "mrs $0, cntvct_el0", "=r"()'
    )
    linux = platform == "linux"
    return Machine(
        relax=f"""
define internal void @relax() alwaysinline {{
  call void asm sideeffect {relax}()
  ret void
}}""",
        ticks=f"""
declare i64 @llvm.readcyclecounter()
define internal i64 @ticks() alwaysinline {{
  {ticks}
  ret i64 %t
}}""",
        sleep_on=_sleep_futex(is_x86) if linux else _sleep_nap(nap_offset),
        wake_all=_wake_futex(is_x86) if linux else _WAKE_NOTHING,
    )


def _futex(is_x86: bool, operation: int, value: str) -> str:
    if is_x86:  # System V ABI AMD64, A.2.1: rax, rdi, rsi, rdx, r10; rcx and r11 are lost
        return (
            'call i64 asm sideeffect "syscall", '
            '"={rax},0,{rdi},{rsi},{rdx},{r10},~{rcx},~{r11},~{memory}"'
            f"(i64 202, ptr %word, i64 {operation}, i64 {value}, i64 0)"
        )
    return (
        'call i64 asm sideeffect "svc #0", "={x0},0,{x1},{x2},{x3},{x8},~{memory}"'
        f"(ptr %word, i64 {operation}, i64 {value}, i64 0, i64 98)"
    )


def _sleep_futex(is_x86: bool) -> str:
    return f"""
define internal void @sleep_on(ptr %team, ptr %word, i32 %seen) noinline {{
  %wide = zext i32 %seen to i64
  %r = {_futex(is_x86, _WAIT, "%wide")}
  ret void
}}"""


def _wake_futex(is_x86: bool) -> str:
    return f"""
define internal void @wake_all(ptr %team, ptr %word) noinline {{
  %r = {_futex(is_x86, _WAKE, "2147483647")}
  ret void
}}"""


def _sleep_nap(nap_offset: int) -> str:
    return f"""
define internal void @sleep_on(ptr %team, ptr %word, i32 %seen) noinline {{
  %at = getelementptr i8, ptr %team, i64 {nap_offset}
  %nap = load ptr, ptr %at
  %r = call i32 %nap(i32 50)
  ret void
}}"""


_WAKE_NOTHING = """
define internal void @wake_all(ptr %team, ptr %word) noinline {
  ret void
}"""
