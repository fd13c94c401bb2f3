"""A shader that reads: how fast an adapter can at all."""

from __future__ import annotations

from poot_kernel.compile import KernelPackage
from poot_kernel.targets.wgsl import ArrayAccess, array_section
from poot_wgpu_device._kernel import WgpuKernel

__all__ = ["READ_WORDS", "read_kernel"]

_THREADS = 256
_QUADS = 16  # loads of 16 bytes of an invocation
READ_WORDS = _THREADS * _QUADS * 4
"""Words that a workgroup reads."""

_ARRAYS = array_section(
    {0: ArrayAccess("vec4<u32>", False, ("load",)), 1: ArrayAccess("u32", True, ("store",))}
)
_CODE = f"""\
struct Arguments {{ a0: u32, a1: u32, a2: u32, zero: u32, }}
@group(0) @binding(0) var<uniform> p: Arguments;
{_ARRAYS}@compute @workgroup_size({_THREADS})
fn main(
  @builtin(local_invocation_index) thread: u32,
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
) {{
  let workgroup = group.y * groups.x + group.x;
  if (workgroup >= p.a2) {{ return; }}
  var sum = vec4<u32>(0u);
  for (var i = 0u; i < {_QUADS}u; i += 1u) {{
    sum ^= load0((workgroup * {_QUADS}u + i) * {_THREADS}u + thread);
  }}
  let all = sum.x ^ sum.y ^ sum.z ^ sum.w;
  // Random data rarely give this, but the shader compiler does not know.
  if (all == 0x9e3779b9u) {{ store1(thread, all); }}
}}
"""


def read_kernel() -> WgpuKernel:
    """Return a kernel that reads ``READ_WORDS`` words a workgroup: data, result, workgroups."""
    return WgpuKernel(
        KernelPackage(
            name="read", code=_CODE.encode(), threads=_THREADS,
            parameters=(("data", "pointer"), ("result", "pointer"), ("groups", "i64")),
            grid=("groups",),
        )
    )  # fmt: skip
