"""An interpreter of AMD GPU assembly text in NumPy, for tests of poot's kernels without a GPU."""

from poot_amd_sim._book import SimulatedCompileService, find_programs, record_image
from poot_amd_sim._code_object import CodeObject, KernelFacts, loader_complaints, read_code_object
from poot_amd_sim._dispatch import WAVE_ORDERS, WaveOrder, dispatch, pack_arguments
from poot_amd_sim._errors import SimulationFault, UnknownInstruction
from poot_amd_sim._hip import SimulatedHip
from poot_amd_sim._memory import Memory
from poot_amd_sim._program import Program, parse_programs

__all__ = [
    "WAVE_ORDERS",
    "CodeObject",
    "KernelFacts",
    "Memory",
    "Program",
    "SimulatedCompileService",
    "SimulatedHip",
    "SimulationFault",
    "UnknownInstruction",
    "WaveOrder",
    "dispatch",
    "find_programs",
    "loader_complaints",
    "pack_arguments",
    "parse_programs",
    "read_code_object",
    "record_image",
]
