"""The compiled runtime as LLVM IR: one call runs a whole step on the thread team.

Each thread walks the launch table. A launch of one chunk is run by thread 0 alone, and a run of such
launches needs no barrier in between. In other launches threads take chunks of tiles from a counter,
large ones first, so that each thread streams through memory and the last chunks even out.
"""

from __future__ import annotations

from poot_core import Target
from poot_cpu_device._layout import LAUNCH_WORDS, RESIZE_WORDS, Launch, Prepared, Resize, Team
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
        _barrier(),
        _bind(),
        _walk(),
        _entries(),
        _read_kernel(),
    )
    return "\n".join(parts).replace("#rt", _ATTRIBUTES)


def _field(name: str, base: str, offset: int) -> str:
    return f"%{name} = getelementptr i8, ptr {base}, i64 {offset}"


def _load(name: str, kind: str, base: str, offset: int) -> str:
    return f"""{_field(f"{name}.at", base, offset)}
  %{name} = load {kind}, ptr %{name}.at"""


def _wait() -> str:
    """Waiting for a word to change, and changing it."""
    return f"""
define internal void @await(ptr %team, ptr %word, i32 %seen, i64 %spin) noinline #rt {{
entry:
  %start = call i64 @ticks()
  br label %spinning
spinning:
  %n = phi i32 [ 0, %entry ], [ %n1, %again ], [ 0, %clock ]
  %now = load atomic i32, ptr %word acquire, align 4
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
  {_field("sleepers", "%word", 4)}
  %s = atomicrmw add ptr %sleepers, i32 1 seq_cst
  br label %check
check:
  %last = load atomic i32, ptr %word seq_cst, align 4
  %still = icmp eq i32 %last, %seen
  br i1 %still, label %asleep, label %awake
asleep:
  call void @sleep_on(ptr %team, ptr %word, i32 %seen)
  br label %check
awake:
  %u = atomicrmw sub ptr %sleepers, i32 1 seq_cst
  br label %done
done:
  ret void
}}
define internal void @release(ptr %team, ptr %word) #rt {{
entry:
  %old = load atomic i32, ptr %word monotonic, align 4
  %new = add i32 %old, 1
  store atomic i32 %new, ptr %word seq_cst, align 4
  {_field("sleepers", "%word", 4)}
  %s = load atomic i32, ptr %sleepers seq_cst, align 4
  %none = icmp eq i32 %s, 0
  br i1 %none, label %done, label %wake
wake:
  call void @wake_all(ptr %team, ptr %word)
  br label %done
done:
  ret void
}}"""


def _barrier() -> str:
    """The last thread to arrive resets the counters and lets the others go."""
    return f"""
define internal i1 @arrive(ptr %team, i64 %threads) #rt {{
entry:
  {_field("arrived", "%team", Team.ARRIVED)}
  %n = atomicrmw add ptr %arrived, i32 1 acq_rel
  %n1 = add i32 %n, 1
  %all = trunc i64 %threads to i32
  %last = icmp eq i32 %n1, %all
  br i1 %last, label %open, label %done
open:
  store atomic i32 0, ptr %arrived monotonic, align 4
  {_field("next", "%team", Team.NEXT_TILE)}
  store atomic i64 0, ptr %next monotonic, align 8
  {_field("phase", "%team", Team.PHASE)}
  call void @release(ptr %team, ptr %phase)
  br label %done
done:
  ret i1 %last
}}
define internal void @barrier(ptr %team, i64 %threads) #rt {{
entry:
  {_field("phase", "%team", Team.PHASE)}
  %seen = load atomic i32, ptr %phase monotonic, align 4
  %last = call i1 @arrive(ptr %team, i64 %threads)
  br i1 %last, label %done, label %wait
wait:
  {_load("spin", "i64", "%team", Team.BARRIER_TICKS)}
  call void @await(ptr %team, ptr %phase, i32 %seen, i64 %spin)
  br label %done
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


def _walk() -> str:
    """All launches of a step, as one thread sees them.

    A timed step meets once before its first launch, so that waking the team counts to none.
    """
    return f"""
declare i64 @llvm.umax.i64(i64, i64)
declare i64 @llvm.umin.i64(i64, i64)
define internal void @walk(ptr %team, ptr %prepared, i64 %index, i64 %threads, ptr %scratch) #rt {{
entry:
  {_load("table", "ptr", "%prepared", Prepared.TABLE)}
  {_load("count", "i64", "%prepared", Prepared.NUM_LAUNCHES)}
  {_load("stamps", "ptr", "%prepared", Prepared.STAMPS)}
  {_field("next", "%team", Team.NEXT_TILE)}
  %first = icmp eq i64 %index, 0
  %timed = icmp ne ptr %stamps, null
  %stamping = and i1 %first, %timed
  %alone = icmp eq i64 %threads, 1
  %several = icmp ne i64 %threads, 1
  %gather = and i1 %timed, %several
  %immediate = xor i1 %gather, true
  %shares = shl i64 %threads, 1
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %i1, %following ]
  %any.before = phi i1 [ %gather, %entry ], [ %any.now, %following ]
  %serial.before = phi i1 [ %immediate, %entry ], [ %serial.now, %following ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %launch, label %done
launch:
  %offset = mul i64 %i, {LAUNCH_WORDS * 8}
  %record = getelementptr i8, ptr %table, i64 %offset
  {_load("kernel", "ptr", "%record", Launch.KERNEL)}
  {_load("arguments", "ptr", "%record", Launch.ARGUMENTS)}
  {_load("tiles", "i64", "%record", Launch.TILES)}
  {_load("grain", "i64", "%record", Launch.GRAIN)}
  %few = icmp ule i64 %tiles, %grain
  %serial = or i1 %few, %alone
  %empty = icmp eq i64 %tiles, 0
  br i1 %empty, label %stamp, label %order
order:
  %both = and i1 %serial, %serial.before
  %apart = xor i1 %both, true
  %needed = and i1 %any.before, %apart
  br i1 %needed, label %meet, label %stamp
meet:
  call void @barrier(ptr %team, i64 %threads)
  br label %stamp
stamp:
  br i1 %stamping, label %take.stamp, label %choose
take.stamp:
  %stamp.at = getelementptr i64, ptr %stamps, i64 %i
  %t = call i64 @ticks()
  store i64 %t, ptr %stamp.at
  br label %choose
choose:
  br i1 %empty, label %following, label %full
full:
  br i1 %serial, label %one, label %claim
one:
  br i1 %first, label %whole, label %following
whole:
  call void %kernel(ptr %arguments, i64 0, i64 %tiles, ptr %scratch)
  br label %following
claim:
  %fresh = load atomic i64, ptr %next monotonic, align 8
  br label %try
try:
  %begin = phi i64 [ %fresh, %claim ], [ %observed, %size ]
  %left = sub i64 %tiles, %begin
  %some = icmp sgt i64 %left, 0
  br i1 %some, label %size, label %following
size:
  %share = udiv i64 %left, %shares
  %large = call i64 @llvm.umax.i64(i64 %share, i64 %grain)
  %chunk = call i64 @llvm.umin.i64(i64 %large, i64 %left)
  %end = add i64 %begin, %chunk
  %pair = cmpxchg ptr %next, i64 %begin, i64 %end monotonic monotonic
  %observed = extractvalue {{ i64, i1 }} %pair, 0
  %won = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %won, label %work, label %try
work:
  call void %kernel(ptr %arguments, i64 %begin, i64 %end, ptr %scratch)
  br label %claim
following:
  %any.here = xor i1 %empty, true
  %any.now = or i1 %any.before, %any.here
  %serial.now = select i1 %empty, i1 %serial.before, i1 %serial
  %i1 = add i64 %i, 1
  br label %head
done:
  ret void
}}"""


def _entries() -> str:
    """What Python calls."""
    return f"""
define internal ptr @scratch_of(ptr %team, i64 %index) #rt {{
  {_load("base", "ptr", "%team", Team.SCRATCH)}
  {_load("stride", "i64", "%team", Team.SCRATCH_STRIDE)}
  %offset = mul i64 %stride, %index
  %own = getelementptr i8, ptr %base, i64 %offset
  ret ptr %own
}}
define void @poot_step(ptr %team, ptr %prepared) #rt {{
entry:
  call void @bind(ptr %prepared)
  {_load("threads", "i64", "%team", Team.THREADS)}
  %scratch = call ptr @scratch_of(ptr %team, i64 0)
  %alone = icmp eq i64 %threads, 1
  br i1 %alone, label %walk, label %publish
publish:
  {_field("work", "%team", Team.PREPARED)}
  store ptr %prepared, ptr %work
  {_field("generation", "%team", Team.GENERATION)}
  call void @release(ptr %team, ptr %generation)
  br label %walk
walk:
  call void @walk(ptr %team, ptr %prepared, i64 0, i64 %threads, ptr %scratch)
  br i1 %alone, label %stamp, label %meet
meet:
  call void @barrier(ptr %team, i64 %threads)
  br label %stamp
stamp:
  {_load("stamps", "ptr", "%prepared", Prepared.STAMPS)}
  %untimed = icmp eq ptr %stamps, null
  br i1 %untimed, label %done, label %take
take:
  {_load("count", "i64", "%prepared", Prepared.NUM_LAUNCHES)}
  %last = getelementptr i64, ptr %stamps, i64 %count
  %t = call i64 @ticks()
  store i64 %t, ptr %last
  br label %done
done:
  ret void
}}
define void @poot_worker(ptr %team, i64 %index, i32 %generation.start) #rt {{
entry:
  {_field("generation", "%team", Team.GENERATION)}
  br label %idle
idle:
  %seen = phi i32 [ %generation.start, %entry ], [ %next, %work ]
  {_load("spin", "i64", "%team", Team.IDLE_TICKS)}
  call void @await(ptr %team, ptr %generation, i32 %seen, i64 %spin)
  %next = add i32 %seen, 1
  {_load("quit", "i32", "%team", Team.QUIT)}
  %over = icmp ne i32 %quit, 0
  br i1 %over, label %done, label %work
work:
  {_load("prepared", "ptr", "%team", Team.PREPARED)}
  {_load("threads", "i64", "%team", Team.THREADS)}
  %scratch = call ptr @scratch_of(ptr %team, i64 %index)
  call void @walk(ptr %team, ptr %prepared, i64 %index, i64 %threads, ptr %scratch)
  %last = call i1 @arrive(ptr %team, i64 %threads)
  br label %idle
done:
  ret void
}}
define i64 @poot_ticks() #rt {{
  %t = call i64 @ticks()
  ret i64 %t
}}
define void @poot_quit(ptr %team) #rt {{
  {_field("quit", "%team", Team.QUIT)}
  store i32 1, ptr %quit
  {_field("generation", "%team", Team.GENERATION)}
  call void @release(ptr %team, ptr %generation)
  ret void
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
