"""Runs a program by the NumPy meaning of its requests: proves plans before and without kernels.

Intermediates lie in one byte arena at the planned offsets, so that a wrong memory plan shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_core import DeviceError, bf16, dtype_by_name, f32
from poot_executor._attention_work import work_capacity
from poot_executor._engine import EngineOptions, WeightSource
from poot_executor._load_host import load_vector, stored_rows
from poot_executor._planned import Operand
from poot_executor._program import Program, ProgramLaunch
from poot_executor._runner import StepKey, selected_launches, step_slots
from poot_kernelgen import (
    AttendRequest,
    ContractionRequest,
    GatherRequest,
    Request,
    RowProgram,
)
from poot_kernelgen import reference as ref

__all__ = ["ReferenceRunner"]

Array = NDArray[Any]
Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]


class ReferenceRunner:
    """Implements ``Runner`` in NumPy.

    Args:
        program: What to run.
        weights: Source of its weights.
        options: Bounds of a step.
    """

    def __init__(self, program: Program, weights: WeightSource, options: EngineOptions) -> None:
        self._program = program
        rows = program.max_rows
        shapes = step_slots(rows["T"], rows["L"], options.max_sequences, options.max_blocks_per_row)
        self.slots: dict[str, Int32] = {n: np.zeros(s, np.int32) for n, s in shapes.items()}
        self.work: list[Int32] = [
            np.zeros((work_capacity(a, rows["T"], options.max_sequences), 4), np.int32)
            for a in program.attention
        ]
        self._status = {symbol: np.zeros(rows[symbol], np.int32) for symbol in ("T", "L")}
        self._matrices = [
            ref.stack_weights(
                [
                    ref.LogicalWeight.from_stored(
                        m.source, stored_rows(weights, m, p), p.num_rows, m.k
                    )
                    for p in m.parts
                ]
            )
            for m in program.matrices
        ]
        self._vectors = [load_vector(weights, vector) for vector in program.vectors]
        self._constants = [
            np.frombuffer(c.data, dtype_by_name(c.dtype).numpy).reshape(c.shape)
            for c in program.constants
        ]
        self._states = {
            state.name: np.zeros(
                ref.kv_pool_shape(state.layout, state.num_blocks),
                dtype_by_name(state.layout.dtype).numpy,
            )
            for state in program.states
        }
        self._tables: dict[str, Any] = {
            "matrix": self._matrices,
            "vector": self._vectors,
            "constant": self._constants,
            "slot": self.slots,
            "state": self._states,
            "status": self._status,
            "work": self.work,
        }
        # Random bytes: what a kernel reads before it is written shows as nonsense.
        self._arena = np.random.default_rng(7).integers(0, 255, program.arena_bytes, np.uint8)
        self.weight_bytes = sum(m.codes.nbytes for m in self._matrices)
        self.state_bytes = sum(pool.nbytes for pool in self._states.values())

    def run(self, key: StepKey, sizes: Mapping[str, int]) -> None:
        """Run one step."""
        for launch, variant in selected_launches(self._program, key):
            request = self._program.requests[variant]
            _Interpreter(self, launch, sizes).run(request)

    def logits(self, rows: int) -> Float32:
        """Return the logits of the last step, a view."""
        return self.temp(self._program.logits, rows, f32.numpy)

    def greedy(self, rows: int) -> Int32:
        """Return ids of the largest logits of the last step."""
        return ref.argmax(self.logits(rows))

    def take_faults(self, symbol: str, rows: int) -> Int32 | None:
        """Return the flags of the first rows and clear them; None if none is set."""
        flags = self._status[symbol][:rows]
        if not flags.any():
            return None
        found = flags.copy()
        flags[:] = 0
        return found

    def time(self, key: StepKey, sizes: Mapping[str, int], *, repeat: int) -> NDArray[np.float64]:
        """Refuse: times of NumPy say nothing about kernels."""
        raise DeviceError("the reference backend is no device; open the engine on one")

    def read_bandwidth_gb_s(self, nbytes: int) -> float:
        """Refuse: there is no device."""
        raise DeviceError("the reference backend is no device; open the engine on one")

    def close(self) -> None:
        """Do nothing: memory goes with the object."""

    # --- operands ---

    def temp(self, temp: int, rows: int, dtype: np.dtype[Any]) -> Array:
        """Return (rows, elements) of an intermediate, a view of the arena."""
        nbytes = rows * self._program.temps[temp].row_bytes
        start = self._program.offsets[temp]
        width = self._program.temps[temp].row_bytes // dtype.itemsize
        return self._arena[start : start + nbytes].view(dtype).reshape(rows, width)

    def resolve(self, operand: Operand, sizes: Mapping[str, int]) -> Any:
        """Return an operand: an array, or the temp's id, or a number."""
        value: Any = operand.value
        if operand.kind == "symbol":
            return sizes[value]
        if operand.kind == "work_count":
            return sizes[f"W{value}"]
        if operand.kind == "partial_stride":
            return sizes[f"P{value}"]
        table = self._tables.get(operand.kind)
        return value if table is None else table[value]


class _Interpreter:
    """One launch: takes its operands in order."""

    def __init__(
        self, runner: ReferenceRunner, launch: ProgramLaunch, sizes: Mapping[str, int]
    ) -> None:
        self._runner = runner
        self._launch = launch
        self._sizes = sizes
        self._rows = sizes[launch.symbol]
        self._operands = iter(launch.operands)

    def run(self, request: Request) -> None:
        if isinstance(request, RowProgram):
            self._row_program(request)
        elif isinstance(request, ContractionRequest):
            self._contraction(request)
        elif isinstance(request, GatherRequest):
            self._gather()
        elif isinstance(request, AttendRequest):
            if self._launch.role == "merge":
                self._merge(request)
            else:
                self._attend(request)
        else:
            raise AssertionError(f"no meaning for {request}")
        assert next(self._operands, None) is None, f"{self._launch.label}: operands left over"

    def _next(self) -> Any:
        return self._runner.resolve(next(self._operands), self._sizes)

    def _array(self, dtype: np.dtype[Any], shape: Sequence[int], rows: int | None = None) -> Array:
        """Return the next operand, an intermediate or a slot, as (rows, *shape)."""
        operand = next(self._operands)
        rows = self._rows if rows is None else rows
        if operand.kind == "temp":
            assert isinstance(operand.value, int)
            return self._runner.temp(operand.value, rows, dtype).reshape(rows, *shape)
        array = self._runner.resolve(operand, self._sizes)[:rows]
        assert array.dtype == dtype
        return array.reshape(rows, *shape)

    def _row_program(self, request: RowProgram) -> None:
        inputs: list[Array] = []
        for spec in request.inputs:
            dtype = dtype_by_name(spec.dtype).numpy
            if spec.indexed_by is not None:
                operands = self._launch.operands
                position = len(inputs) + sum(
                    1 for s in request.inputs[: len(inputs)] if s.indexed_by is not None
                )
                count = self._runner.resolve(operands[position + 1], self._sizes)
                inputs.append(self._array(dtype, spec.shape, count))
                self._next()
            elif spec.per_row:
                inputs.append(self._array(dtype, spec.shape))
            else:
                array = self._next()
                assert array.dtype == dtype
                inputs.append(array.reshape(spec.shape))
        targets: list[list[Array]] = []
        pools: dict[int, Array] = {}
        shapes = [spec.shape for spec in request.inputs] + [n.shape for n in request.nodes]
        for index, output in enumerate(request.outputs):
            k = int(np.prod(shapes[output.value]))
            if output.kind == "kv":
                pools[index] = self._next()
                assert output.layout is not None
                assert self._next() == len(pools[index]) * output.layout.block_size
                targets.append([])
            elif output.kind == "i8":
                codes = self._array(np.dtype(np.int8), (k,))
                scales = [self._array(f32.numpy, (k // 32,)) for _ in range(2)]
                targets.append([codes, *scales])
            elif output.kind == "bf16":
                targets.append([self._array(np.dtype(np.uint16), (k,))])
            else:
                dtype = dtype_by_name(output.dtype).numpy
                targets.append([self._array(dtype, shapes[output.value])])
        assert self._next() == self._rows
        indexed = any(spec.indexed_by is not None for spec in request.inputs)
        status = self._next() if indexed or pools else None
        results = ref.run_row_program(request, inputs, self._rows, pools=pools, status=status)
        for target, result in zip(targets, results, strict=True):
            parts = result if isinstance(result, tuple) else (result,)
            for array, part in zip(target, parts, strict=False):
                array[...] = part

    def _contraction(self, request: ContractionRequest) -> None:
        weight = self._next()
        n = weight.shape[0] // (2 if request.gated else 1)
        k = weight.shape[1]
        if request.activation == "i8":
            codes = self._array(np.dtype(np.int8), (k,))
            scales, sums = (self._array(f32.numpy, (k // 32,)) for _ in range(2))
            activation: Any = ref.QuantisedActivation(codes, scales, sums)
        elif request.activation == "bf16":
            activation = self._array(bf16.numpy, (k,)).view(np.uint16)
        else:
            activation = self._array(f32.numpy, (k,))
        extra = [
            self._next() if kind == "column" else self._array(f32.numpy, (n,)).copy()
            for kind in request.epilogue.inputs
        ]
        result = self._array(f32.numpy, (n,))
        rows, columns, width, stride = (self._next() for _ in range(4))
        assert (rows, columns, width, stride) == (self._rows, n, k, n)
        result[...] = ref.contract(request, weight, activation, extra)

    def _gather(self) -> None:
        weight, ids = self._next(), self._array(np.dtype(np.int32), ())
        result = self._array(f32.numpy, (weight.shape[1],))
        rows, n, k, scale = (self._next() for _ in range(4))
        assert (rows, n, k) == (self._rows, *weight.shape)
        result[...] = ref.gather(weight, ids, scale, self._next())

    def _attend(self, request: AttendRequest) -> None:
        heads, dim = request.num_heads, request.value.head_dim
        queries = self._array(f32.numpy, (heads, request.key.head_dim))
        pools = self._next(), self._next()
        positions, rows = (self._array(np.dtype(np.int32), ()) for _ in range(2))
        tables = self._next()
        work = self._next()
        items = work[: self._next()]
        assert self._next() == tables.shape[1]
        sinks = self._next() if request.sinks else None
        slopes = self._next() if request.alibi else None
        partials = self._partials(request)
        result = self._array(f32.numpy, (heads, dim))
        ref.attend_partials(
            request, queries, pools, positions, rows, tables, items, partials, result,
            sinks=sinks, slopes=slopes,
        )  # fmt: skip

    def _partials(self, request: AttendRequest) -> Array:
        operand, stride = next(self._operands), self._next()
        assert isinstance(operand.value, int)
        shape = (self._rows, stride, request.num_heads, request.value.head_dim + 2)
        flat = self._runner.temp(operand.value, self._rows, f32.numpy).reshape(-1)
        return flat[: int(np.prod(shape))].reshape(shape)

    def _merge(self, request: AttendRequest) -> None:
        partials = self._partials(request)
        positions = self._array(np.dtype(np.int32), ())
        sinks = self._next() if request.sinks else None
        result = self._array(f32.numpy, (request.num_heads, request.value.head_dim))
        assert self._next() == self._rows
        ref.merge_partials(request, partials, positions, result, sinks=sinks)
