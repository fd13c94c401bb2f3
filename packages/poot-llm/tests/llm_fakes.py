"""An engine whose logits hash the whole KV content of a row, and an answer key without paging."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from poot_executor import EngineInfo, EngineOptions, NumpySampler, Sampled, StepInputs
from poot_kernelgen import SAMPLE_FIELDS

_PRIME = np.uint64(1099511628211)
_MIX = np.uint64(0x9E3779B97F4A7C15)


def context_hash(tokens: list[int]) -> int:
    """Return a hash of tokens and their places."""
    value = np.uint64(14695981039346656037)
    with np.errstate(over="ignore"):
        for token in tokens:
            value = (value ^ np.uint64(token + 1)) * _PRIME
    return int(value)


def logits_of(tokens: list[int], vocab_size: int) -> np.ndarray:
    """Return the (vocab_size,) logits that follow a context: about normal, from its hash alone."""
    with np.errstate(over="ignore"):
        x = (np.arange(vocab_size, dtype=np.uint64) + np.uint64(context_hash(tokens))) * _MIX
        x ^= x >> np.uint64(31)
        x *= np.uint64(0xBF58476D1CE4E5B9)
        x ^= x >> np.uint64(29)
    return ((x >> np.uint64(40)).astype(np.float32) / np.float32(2**24) - np.float32(0.5)) * 12


class FakeEngine:
    """Checks every array of a step, keeps tokens in a paged pool and reads them back from there."""

    def __init__(self, vocab_size: int = 97, **options: int) -> None:
        self.options = EngineOptions(
            **{
                "context_tokens": 64,
                "max_sequences": 4,
                "max_step_tokens": 16,
                "block_size": 4,
                "num_blocks": 64,
                **options,
            }
        )
        self.vocab_size = vocab_size
        slots = self.options.num_blocks * self.options.block_size
        rng = np.random.default_rng(5)
        self.pool_tokens = rng.integers(0, vocab_size, slots)  # garbage, so that a stray read shows
        self.pool_positions = rng.integers(0, 1000, slots)
        self.steps: list[tuple[int, int]] = []
        self.faults: dict[int, str] = {}
        self.fail_next = False
        self.closed = 0
        self._logits = np.zeros((0, vocab_size), np.float32)
        self._token_ids = np.zeros(0, np.int32)
        self.num_sampled = 0
        self._sampler = NumpySampler(
            lambda: self._logits, lambda: self._token_ids, vocab_size,
            self.options.max_sequences,
        )  # fmt: skip

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(
            backend="fake",
            device="fake",
            vocab_size=self.vocab_size,
            options=self.options,
            weight_bytes=0,
            state_bytes=0,
            workspace_bytes=0,
        )

    def forward(self, step: StepInputs) -> None:
        if self.fail_next:
            from poot_core import DeviceError

            raise DeviceError("the fake device is on fire")
        self._check(step)
        size = self.options.block_size
        self._token_ids = step.token_ids.copy()
        if step.feeds is not None:
            self._token_ids[step.feeds[:, 0]] = -1
            self._sampler.feed(step.feeds, len(step.token_ids))
        self.pool_tokens[step.slot_mapping] = self._token_ids
        self.pool_positions[step.slot_mapping] = step.positions
        rows = []
        for place in step.logit_positions:
            length = int(step.positions[place]) + 1
            table = step.block_tables[step.rows[place]]
            at = np.arange(length)
            slots = table[at // size] * size + at % size
            assert (self.pool_positions[slots] == at).all(), "a slot holds another position"
            rows.append(logits_of(self.pool_tokens[slots].tolist(), self.vocab_size))
        self._logits = np.array(rows, np.float32).reshape(len(rows), self.vocab_size)
        self.steps.append((len(step.token_ids), len(step.sequence_lengths)))

    def _check(self, step: StepInputs) -> None:
        options = self.options
        count, rows = len(step.token_ids), len(step.sequence_lengths)
        for name in StepInputs.__dataclass_fields__:
            array = getattr(step, name)
            if array is None:
                assert name in {"token_types", "feeds"}  # one kind of token, all of them known
                continue
            assert array.dtype == np.int32, name
            assert array.flags.c_contiguous, name
        assert 0 < count <= options.max_step_tokens
        assert 0 < rows <= options.max_sequences
        most = max(options.max_sequences, min(options.max_step_tokens, 128))
        assert len(step.logit_positions) <= most
        assert step.block_tables.shape == (rows, options.max_blocks_per_row)
        assert step.positions.shape == step.rows.shape == step.slot_mapping.shape == (count,)
        assert ((step.token_ids >= 0) & (step.token_ids < self.vocab_size)).all()
        assert set(step.rows.tolist()) == set(range(rows))
        assert (np.diff(step.rows) >= 0).all()
        assert len(set(step.slot_mapping.tolist())) == count, "two tokens share a slot"
        assert (np.diff(step.logit_positions) > 0).all()
        holders: dict[int, int] = {}
        for row in range(rows):
            mine = np.flatnonzero(step.rows == row)
            positions = step.positions[mine]
            assert (np.diff(positions) == 1).all()
            length = int(step.sequence_lengths[row])
            assert positions[-1] == length - 1 <= options.context_tokens - 1
            used = step.block_tables[row, : -(-length // options.block_size)].tolist()
            assert len(set(used)) == len(used)
            for block in used:
                holders[block] = holders.get(block, 0) + 1
            expected = step.block_tables[row, positions // options.block_size]
            expected = expected * options.block_size + positions % options.block_size
            assert (step.slot_mapping[mine] == expected).all()
        for block in set((step.slot_mapping // options.block_size).tolist()):
            assert holders[block] == 1, "a block that others read is written"
        for block in set((step.slot_mapping // options.block_size).tolist()):
            assert holders[block] == 1, "a block that others read is written"

    def greedy(self) -> np.ndarray:
        return self._logits.argmax(axis=1).astype(np.int32)

    def logits(self) -> np.ndarray:
        return self._logits

    def sample(self, params: np.ndarray) -> None:
        assert params.dtype == np.uint32
        assert len(set(params[:, SAMPLE_FIELDS.index("slot")].tolist())) == len(params)
        self.num_sampled += len(params)
        self._sampler.sample(params, len(self._logits))

    def sampled(self) -> Sampled:
        return self._sampler.sampled()

    def set_counts(self, slot: int, entries: np.ndarray) -> None:
        assert entries.dtype == np.uint32
        assert entries.shape == (len(set(entries[:, 0].tolist())), 2)
        self._sampler.set_counts(slot, entries)

    def step_faults(self) -> Mapping[int, str]:
        return self.faults

    def close(self) -> None:
        self.closed += 1


def greedy_answer(prompt: list[int], count: int, vocab_size: int = 97) -> list[int]:
    """Return the greedy continuation, computed without any engine."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(logits_of(tokens, vocab_size).argmax()))
    return tokens[len(prompt) :]


def run_all(driver, ids: list[int]) -> dict[int, list]:
    """Step until done; return the events of each request."""
    events: dict[int, list] = {request_id: [] for request_id in ids}
    steps = 0
    while driver.has_work:
        for event in driver.step():
            events[event.request_id].append(event)
        steps += 1
        assert steps < 10_000, "the driver makes no progress"
    return events


def tokens_of(events: list) -> list[int]:
    return [token_id for event in events for token_id in event.token_ids]
