"""A lockstep interpreter of kernel IR on NumPy arrays: what every code generator must agree with."""

from poot_kernel.interpreter.errors import BoundsFault, KernelFault, RaceFault, UninitialisedFault
from poot_kernel.interpreter.interpret import INTERPRETER_RULES, WorkgroupOrder, interpret

__all__ = [
    "INTERPRETER_RULES",
    "BoundsFault",
    "KernelFault",
    "RaceFault",
    "UninitialisedFault",
    "WorkgroupOrder",
    "interpret",
]
