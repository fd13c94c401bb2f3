"""What devices share whose driver takes launches into a stream and replays graphs: CUDA and HIP.

A device package brings its binding (``StreamDriver`` with its ``Dialect``), finds its machine, loads
code and queues one launch; memory, sequences, capture and replay are here.
"""

from poot_executor.stream_device._device import StreamDevice
from poot_executor.stream_device._driver import Dialect, DriverError, StreamDriver
from poot_executor.stream_device._kernel import StreamKernel, refused_kernel
from poot_executor.stream_device._launch import Grid, PreparedLaunch
from poot_executor.stream_device._memory import StreamBuffer

__all__ = [
    "Dialect",
    "DriverError",
    "Grid",
    "PreparedLaunch",
    "StreamBuffer",
    "StreamDevice",
    "StreamDriver",
    "StreamKernel",
    "refused_kernel",
]
