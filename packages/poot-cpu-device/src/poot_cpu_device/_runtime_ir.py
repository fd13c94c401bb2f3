"""The compiled runtime as LLVM IR: one call runs a whole step on the thread team.

One launch is open at a time. Its tiles are as many parts as there are threads, up to ``MOST_CLAIMS``.
Threads take chunks of a part of their own, large ones first, so that each streams through memory, and
what a launch of the same shape wrote lies in the caches of who reads it; then chunks of the other parts,
which evens the end out. The thread that finishes the last tile opens the next launch, and runs launches
of one chunk at once by itself. So a launch waits for tiles, never for threads: one that was descheduled
between chunks holds nobody up, and joins in where the others are.
"""

from __future__ import annotations

from poot_core import Target
from poot_cpu_device._layout import (
    CLOSED,
    LAUNCH_WORDS,
    MOST_CLAIMS,
    RESIZE_WORDS,
    Launch,
    Prepared,
    Resize,
    Team,
)
from poot_cpu_device._machine import machine_of

__all__ = ["ENTRIES", "READ_TILE_BYTES", "runtime_ir"]

ENTRIES = ("poot_step", "poot_worker", "poot_quit", "poot_ticks", "poot_read")
_SPINS_PER_CLOCK = 8  # reading the clock costs about as much as two spins
_ATTRIBUTES = 'nounwind "no-builtins"'


def runtime_ir(target: Target, platform: str) -> str:
    """Return the runtime module for ``target`` under ``platform`` (as ``sys.platform``)."""
    parts = (
        machine_of(target, platform, Team.NAP).text(),
        _wait(),
        _bind(),
        _advance(),
        _work(),
        _entries(),
        _read_kernel(),
    )
    return "\n".join(parts).replace("#rt", _ATTRIBUTES)


def _field(name: str, base: str, offset: int) -> str:
    return f"%{name} = getelementptr i8, ptr {base}, i64 {offset}"


def _load(name: str, kind: str, base: str, offset: int) -> str:
    return f"""{_field(f"{name}.at", base, offset)}
  %{name} = load {kind}, ptr %{name}.at"""


_ALIGNMENT = {"i32": 4, "i64": 8, "ptr": 8}


def _load_shared(name: str, kind: str, base: str, offset: int) -> str:
    """Load what another thread may be storing."""
    return f"""{_field(f"{name}.at", base, offset)}
  %{name} = load atomic {kind}, ptr %{name}.at acquire, align {_ALIGNMENT[kind]}"""


def _store(value: str, kind: str, base: str, offset: int, order: str) -> str:
    operand = value if value.isdigit() else f"%{value}"
    at = f"field.{offset}"
    return f"""{_field(at, base, offset)}
  store atomic {kind} {operand}, ptr %{at} {order}, align {_ALIGNMENT[kind]}"""


def _wait() -> str:
    """Waiting for the next launch, and ending others' waiting; opening and closing one."""
    return f"""
declare i64 @llvm.umax.i64(i64, i64)
declare i64 @llvm.umin.i64(i64, i64)
define internal void @await(ptr %team, i32 %seen, i64 %spin) noinline #rt {{
entry:
  {_field("serial", "%team", Team.SERIAL)}
  %start = call i64 @ticks()
  br label %spinning
spinning:
  %n = phi i32 [ 0, %entry ], [ %n1, %again ], [ 0, %clock ]
  %now = load atomic i32, ptr %serial acquire, align 4
  %same = icmp eq i32 %now, %seen
  br i1 %same, label %again, label %done
again:
  call void @relax()
  %n1 = add i32 %n, 1
  %more = icmp ult i32 %n1, {_SPINS_PER_CLOCK}
  br i1 %more, label %spinning, label %clock
clock:
  %t = call i64 @ticks()
  %spent = sub i64 %t, %start
  %early = icmp ult i64 %spent, %spin
  br i1 %early, label %spinning, label %sleepy
sleepy:
  {_field("sleeping", "%team", Team.SLEEPING)}
  store atomic i32 1, ptr %sleeping seq_cst, align 4
  %last = load atomic i32, ptr %serial seq_cst, align 4
  %still = icmp eq i32 %last, %seen
  br i1 %still, label %asleep, label %done
asleep:
  call void @sleep_on(ptr %team, ptr %serial, i32 %seen)
  br label %sleepy
done:
  ret void
}}
define internal void @wake(ptr %team) #rt {{
entry:
  {_field("sleeping", "%team", Team.SLEEPING)}
  %s = load atomic i32, ptr %sleeping seq_cst, align 4
  %none = icmp eq i32 %s, 0
  br i1 %none, label %done, label %wake
wake:
  store atomic i32 0, ptr %sleeping seq_cst, align 4
  {_field("serial", "%team", Team.SERIAL)}
  call void @wake_all(ptr %team, ptr %serial)
  br label %done
done:
  ret void
}}
define internal ptr @claim_of(ptr %team, i64 %part) alwaysinline #rt {{
  %words = shl i64 %part, 3
  %further = add i64 %words, {Team.FURTHER_CLAIMS - 8}
  %is.first = icmp eq i64 %part, 0
  %offset = select i1 %is.first, i64 {Team.CLAIM}, i64 %further
  %at = getelementptr i8, ptr %team, i64 %offset
  ret ptr %at
}}
define internal i64 @count_parts(ptr %team) alwaysinline #rt {{
  {_load("threads", "i64", "%team", Team.THREADS)}
  %parts = call i64 @llvm.umin.i64(i64 %threads, i64 {MOST_CLAIMS})
  ret i64 %parts
}}
define internal i64 @start_of(i64 %tiles, i64 %part, i64 %parts) alwaysinline #rt {{
  %product = mul i64 %tiles, %part
  %sum = add i64 %product, %parts
  %above = sub i64 %sum, 1
  %start = udiv i64 %above, %parts
  ret i64 %start
}}
define internal i64 @close_launch(ptr %team) #rt {{
entry:
  {_field("claim", "%team", Team.CLAIM)}
  %parts = call i64 @count_parts(ptr %team)
  %old = load atomic i64, ptr %claim monotonic, align 8
  %closed = or i64 %old, {CLOSED}
  br label %close
close:
  %part = phi i64 [ 0, %entry ], [ %part1, %close ]
  %at = call ptr @claim_of(ptr %team, i64 %part)
  store atomic i64 %closed, ptr %at monotonic, align 8
  %part1 = add i64 %part, 1
  %more = icmp ult i64 %part1, %parts
  br i1 %more, label %close, label %done
done:
  %next = add i64 %closed, 1
  ret i64 %next
}}
define internal void @open_launch(ptr %team, i64 %next, i64 %tiles) #rt {{
entry:
  %parts = call i64 @count_parts(ptr %team)
  br label %head
head:
  ; The first part goes last, and is never empty: a launch cannot end before all of it is open.
  %part = phi i64 [ %parts, %entry ], [ %part1, %head ]
  %part1 = sub i64 %part, 1
  %start = call i64 @start_of(i64 %tiles, i64 %part1, i64 %parts)
  %word = or i64 %next, %start
  %at = call ptr @claim_of(ptr %team, i64 %part1)
  store atomic i64 %word, ptr %at seq_cst, align 8
  %over = icmp eq i64 %part1, 0
  br i1 %over, label %done, label %head
done:
  ret void
}}"""


def _bind() -> str:
    """Tile counts and symbol arguments of this step."""
    axes = "\n".join(_bind_axis(axis) for axis in range(3))
    return f"""
define internal void @bind(ptr %prepared) #rt {{
entry:
  {_load("values", "ptr", "%prepared", Prepared.VALUES)}
  {_load("table", "ptr", "%prepared", Prepared.TABLE)}
  {_load("resizes", "ptr", "%prepared", Prepared.RESIZES)}
  {_load("num.resizes", "i64", "%prepared", Prepared.NUM_RESIZES)}
  {_load("patches", "ptr", "%prepared", Prepared.PATCHES)}
  {_load("num.patches", "i64", "%prepared", Prepared.NUM_PATCHES)}
  br label %resize.head
resize.head:
  %r = phi i64 [ 0, %entry ], [ %r1, %stored2 ]
  %r.more = icmp ult i64 %r, %num.resizes
  br i1 %r.more, label %resize, label %patch.head
resize:
  %r.offset = mul i64 %r, {RESIZE_WORDS * 8}
  %row = getelementptr i8, ptr %resizes, i64 %r.offset
  br label %axis0
{axes}
  %tiles01 = mul i64 %tiles0, %tiles1
  %tiles = mul i64 %tiles01, %tiles2
  {_load("launch", "i64", "%row", Resize.LAUNCH)}
  %launch.offset = mul i64 %launch, {LAUNCH_WORDS * 8}
  %entry.at = getelementptr i8, ptr %table, i64 %launch.offset
  {_field("tiles.at", "%entry.at", Launch.TILES)}
  store i64 %tiles, ptr %tiles.at
  %r1 = add i64 %r, 1
  br label %resize.head
patch.head:
  %p = phi i64 [ 0, %resize.head ], [ %p1, %patch ]
  %p.more = icmp ult i64 %p, %num.patches
  br i1 %p.more, label %patch, label %done
patch:
  %p.offset = mul i64 %p, 16
  %pair = getelementptr i8, ptr %patches, i64 %p.offset
  %slot = load ptr, ptr %pair
  {_load("p.symbol", "i64", "%pair", 8)}
  %p.value.at = getelementptr i64, ptr %values, i64 %p.symbol
  %p.value = load i64, ptr %p.value.at
  store i64 %p.value, ptr %slot
  %p1 = add i64 %p, 1
  br label %patch.head
done:
  ret void
}}"""


def _bind_axis(axis: int) -> str:
    at = Resize.AXES + axis * Resize.AXIS_BYTES
    after = f"br label %axis{axis + 1}" if axis < 2 else ""
    return f"""axis{axis}:
  {_load(f"coefficient{axis}", "i64", "%row", at)}
  {_load(f"symbol{axis}", "i64", "%row", at + 8)}
  {_load(f"divisor{axis}", "i64", "%row", at + 16)}
  {_load(f"slot{axis}", "ptr", "%row", at + 24)}
  %value{axis}.at = getelementptr i64, ptr %values, i64 %symbol{axis}
  %value{axis} = load i64, ptr %value{axis}.at
  %product{axis} = mul i64 %coefficient{axis}, %value{axis}
  %sum{axis} = add i64 %product{axis}, %divisor{axis}
  %above{axis} = sub i64 %sum{axis}, 1
  %tiles{axis} = udiv i64 %above{axis}, %divisor{axis}
  %unasked{axis} = icmp eq ptr %slot{axis}, null
  br i1 %unasked{axis}, label %stored{axis}, label %store{axis}
store{axis}:
  store i64 %tiles{axis}, ptr %slot{axis}
  br label %stored{axis}
stored{axis}:
  {after}"""


def _advance() -> str:
    """Goes to the next launch that needs the team; runs small ones on the way.

    One thread at a time is here: the caller of the step, or who finished a launch's last tile. A
    launch is described while its claims are closed, so that nobody mixes two launches: a thread that
    read a part of each fails to exchange the claim.
    """
    return f"""
define internal void @advance(ptr %team, ptr %scratch, i1 %is.caller) #rt {{
entry:
  {_load("prepared", "ptr", "%team", Team.PREPARED)}
  {_load("start", "i64", "%team", Team.NEXT_LAUNCH)}
  {_load("threads", "i64", "%team", Team.THREADS)}
  {_load("table", "ptr", "%prepared", Prepared.TABLE)}
  {_load("count", "i64", "%prepared", Prepared.NUM_LAUNCHES)}
  {_load("stamps", "ptr", "%prepared", Prepared.STAMPS)}
  {_field("claim", "%team", Team.CLAIM)}
  %timed = icmp ne ptr %stamps, null
  %alone = icmp eq i64 %threads, 1
  br label %head
head:
  %i = phi i64 [ %start, %entry ], [ %i1, %following ]
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i, %count
  br i1 %more, label %launch, label %finish
launch:
  %offset = mul i64 %i, {LAUNCH_WORDS * 8}
  %record = getelementptr i8, ptr %table, i64 %offset
  {_load("kernel", "ptr", "%record", Launch.KERNEL)}
  {_load("arguments", "ptr", "%record", Launch.ARGUMENTS)}
  {_load("tiles", "i64", "%record", Launch.TILES)}
  {_load("grain", "i64", "%record", Launch.GRAIN)}
  %empty = icmp eq i64 %tiles, 0
  br i1 %empty, label %following, label %full
full:
  br i1 %timed, label %stamp, label %choose
stamp:
  %stamp.at = getelementptr i64, ptr %stamps, i64 %i
  %t = call i64 @ticks()
  store i64 %t, ptr %stamp.at
  br label %choose
choose:
  %few = icmp ule i64 %tiles, %grain
  %serial = or i1 %few, %alone
  br i1 %serial, label %whole, label %open
whole:
  call void %kernel(ptr %arguments, i64 0, i64 %tiles, ptr %scratch)
  br label %following
following:
  br label %head
open:
  %next = call i64 @close_launch(ptr %team)
  {_store("kernel", "ptr", "%team", Team.KERNEL, "release")}
  {_store("arguments", "ptr", "%team", Team.ARGUMENTS, "release")}
  {_store("tiles", "i64", "%team", Team.TILES, "release")}
  {_store("grain", "i64", "%team", Team.GRAIN, "release")}
  {_store("0", "i64", "%team", Team.DONE, "release")}
  {_store("i1", "i64", "%team", Team.NEXT_LAUNCH, "release")}
  call void @open_launch(ptr %team, i64 %next, i64 %tiles)
  call void @wake(ptr %team)
  ret void
finish:
  br i1 %timed, label %last.stamp, label %finished
last.stamp:
  %last.at = getelementptr i64, ptr %stamps, i64 %count
  %last.t = call i64 @ticks()
  store i64 %last.t, ptr %last.at
  br label %finished
finished:
  {_store("0", "i32", "%team", Team.ACTIVE, "release")}
  br i1 %is.caller, label %done, label %tell
tell:
  %after = call i64 @close_launch(ptr %team)
  %nothing = or i64 %after, {CLOSED}
  store atomic i64 %nothing, ptr %claim seq_cst, align 8
  call void @wake(ptr %team)
  br label %done
done:
  ret void
}}"""


def _work() -> str:
    """Takes chunks of whatever launch is open: the caller until its step is over, others for ever."""
    return f"""
define internal void @work(ptr %team, i64 %index, i1 %is.caller) noinline #rt {{
entry:
  {_load("threads", "i64", "%team", Team.THREADS)}
  %parts = call i64 @count_parts(ptr %team)
  %twice = shl i64 %threads, 1
  %shares = udiv i64 %twice, %parts
  %spread = mul i64 %index, %parts
  %own = udiv i64 %spread, %threads
  {_field("first.claim", "%team", Team.CLAIM)}
  {_field("done", "%team", Team.DONE)}
  br label %look
look:
  %first = load atomic i64, ptr %first.claim acquire, align 8
  br label %scan
scan:
  %nth = phi i64 [ 0, %look ], [ %nth1, %next ]
  %ahead = add i64 %own, %nth
  %wraps = icmp uge i64 %ahead, %parts
  %back = select i1 %wraps, i64 %parts, i64 0
  %part = sub i64 %ahead, %back
  %claim = call ptr @claim_of(ptr %team, i64 %part)
  %seen = load atomic i64, ptr %claim acquire, align 8
  %begin = and i64 %seen, {CLOSED}
  {_load_shared("tiles", "i64", "%team", Team.TILES)}
  %part1 = add i64 %part, 1
  %limit = call i64 @start_of(i64 %tiles, i64 %part1, i64 %parts)
  %some = icmp ult i64 %begin, %limit
  br i1 %some, label %take, label %next
next:
  %nth1 = add i64 %nth, 1
  %more = icmp ult i64 %nth1, %parts
  br i1 %more, label %scan, label %none
take:
  {_load_shared("kernel", "ptr", "%team", Team.KERNEL)}
  {_load_shared("arguments", "ptr", "%team", Team.ARGUMENTS)}
  {_load_shared("grain", "i64", "%team", Team.GRAIN)}
  {_load_shared("base", "ptr", "%team", Team.SCRATCH)}
  {_load_shared("stride", "i64", "%team", Team.SCRATCH_STRIDE)}
  %left = sub i64 %limit, %begin
  %share = udiv i64 %left, %shares
  %large = call i64 @llvm.umax.i64(i64 %share, i64 %grain)
  %chunk = call i64 @llvm.umin.i64(i64 %large, i64 %left)
  %taken = add i64 %seen, %chunk
  %pair = cmpxchg ptr %claim, i64 %seen, i64 %taken acq_rel acquire
  %won = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %won, label %run, label %look
run:
  %scratch.offset = mul i64 %stride, %index
  %scratch = getelementptr i8, ptr %base, i64 %scratch.offset
  %end = add i64 %begin, %chunk
  call void %kernel(ptr %arguments, i64 %begin, i64 %end, ptr %scratch)
  %before = atomicrmw add ptr %done, i64 %chunk acq_rel
  %now = add i64 %before, %chunk
  %all = icmp eq i64 %now, %tiles
  br i1 %all, label %last, label %look
last:
  call void @advance(ptr %team, ptr %scratch, i1 %is.caller)
  br label %look
none:
  {_load_shared("active", "i32", "%team", Team.ACTIVE)}
  {_load_shared("quit", "i32", "%team", Team.QUIT)}
  %idle = icmp eq i32 %active, 0
  %asked = icmp ne i32 %quit, 0
  %over = select i1 %is.caller, i1 %idle, i1 %asked
  br i1 %over, label %over.now, label %wait
wait:
  {_load_shared("step.ticks", "i64", "%team", Team.STEP_TICKS)}
  {_load_shared("idle.ticks", "i64", "%team", Team.IDLE_TICKS)}
  %spin = select i1 %idle, i64 %idle.ticks, i64 %step.ticks
  %upper = lshr i64 %first, 32
  %serial = trunc i64 %upper to i32
  call void @await(ptr %team, i32 %serial, i64 %spin)
  br label %look
over.now:
  ret void
}}"""


def _entries() -> str:
    """What Python calls."""
    return f"""
define void @poot_step(ptr %team, ptr %prepared) #rt {{
entry:
  call void @bind(ptr %prepared)
  {_store("prepared", "ptr", "%team", Team.PREPARED, "monotonic")}
  {_store("0", "i64", "%team", Team.NEXT_LAUNCH, "monotonic")}
  {_store("1", "i32", "%team", Team.ACTIVE, "monotonic")}
  {_load("scratch", "ptr", "%team", Team.SCRATCH)}
  call void @advance(ptr %team, ptr %scratch, i1 true)
  call void @work(ptr %team, i64 0, i1 true)
  ret void
}}
define void @poot_worker(ptr %team, i64 %index) #rt {{
  call void @work(ptr %team, i64 %index, i1 false)
  ret void
}}
define void @poot_quit(ptr %team) #rt {{
  {_store("1", "i32", "%team", Team.QUIT, "release")}
  %next = call i64 @close_launch(ptr %team)
  %nothing = or i64 %next, {CLOSED}
  {_store("nothing", "i64", "%team", Team.CLAIM, "seq_cst")}
  call void @wake(ptr %team)
  ret void
}}
define i64 @poot_ticks() #rt {{
  %t = call i64 @ticks()
  ret i64 %t
}}"""


READ_TILE_BYTES = 1 << 15


def _read_kernel() -> str:
    """A kernel that reads tiles of memory and nothing else; the sum goes to the scratch."""
    loads = "\n".join(
        f"""  %at{k} = getelementptr i8, ptr %p, i64 {64 * k}
  %v{k} = load <16 x i32>, ptr %at{k}, align 64
  %x{k} = xor <16 x i32> %a{k}, %v{k}"""
        for k in range(8)
    )
    phis = "\n".join(
        f"  %a{k} = phi <16 x i32> [ zeroinitializer, %entry ], [ %x{k}, %body ]" for k in range(8)
    )
    folds = "\n".join(
        f"  %f{k} = xor <16 x i32> %{'a0' if k == 1 else f'f{k - 1}'}, %a{k}" for k in range(1, 8)
    )
    return f"""
define void @poot_read(ptr %args, i64 %begin, i64 %end, ptr %scratch) #rt {{
entry:
  %base = load ptr, ptr %args
  %first = mul i64 %begin, {READ_TILE_BYTES}
  %last = mul i64 %end, {READ_TILE_BYTES}
  br label %head
head:
  %i = phi i64 [ %first, %entry ], [ %i1, %body ]
{phis}
  %more = icmp ult i64 %i, %last
  br i1 %more, label %body, label %done
body:
  %p = getelementptr i8, ptr %base, i64 %i
{loads}
  %i1 = add i64 %i, 512
  br label %head
done:
{folds}
  store <16 x i32> %f7, ptr %scratch, align 64
  ret void
}}"""
