"""Blocks that are shared, kept and evicted; answers never depend on it."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from llm_fakes import FakeEngine, greedy_answer, run_all, tokens_of

from poot_llm import Driver, Request, SamplingParams
from poot_llm._blocks import BlockManager
from poot_llm._prefix import extend_hashes, root_hash

GREEDY = SamplingParams(temperature=0.0, max_tokens=6)


class Blocks(RuleBasedStateMachine):
    """The block manager against a plain model of who holds what."""

    @initialize(count=st.integers(1, 12))
    def start(self, count: int) -> None:
        self.manager = BlockManager(count)
        self.count = count
        self.held: list[list[int]] = []  # blocks of each sequence
        self.names: dict[int, bytes] = {}  # content that was named and not overwritten since
        self.used: list[int] = []  # idle blocks with content, least recently used first
        self.next_name = 0

    @rule(wanted=st.integers(0, 5))
    def allocate(self, wanted: int) -> None:
        holders = {block for blocks in self.held for block in blocks}
        free = self.count - len(holders)
        blocks = self.manager.allocate(wanted)
        assert (blocks is None) == (wanted > free)
        if blocks is None:
            return
        assert len(set(blocks)) == wanted
        assert not set(blocks) & holders
        empty = free - len(self.used)
        # Content goes only when nothing empty is left, and the least recently used goes first.
        evicted = [block for block in blocks if block in self.names]
        assert evicted == self.used[: max(0, wanted - empty)]
        for block in evicted:
            self.used.remove(block)
            del self.names[block]
        self.held.append(blocks)

    @rule(data=st.data())
    def name(self, data: st.DataObject) -> None:
        nameless = [b for blocks in self.held for b in blocks if b not in self.names]
        if nameless:
            block = data.draw(st.sampled_from(nameless))
            content = self.next_name.to_bytes(8, "little")
            self.next_name += 1
            self.manager.name(block, content)
            self.names[block] = content

    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        if self.names:
            blocks = data.draw(
                st.lists(st.sampled_from(sorted(self.names)), unique=True, max_size=4)
            )
            contents = [self.names[block] for block in blocks]
            assert self.manager.match([*contents, b"unknown"]) == blocks
            assert self.manager.num_idle_among(blocks) == sum(b in self.used for b in blocks)
            self.manager.share(blocks)
            self.used = [block for block in self.used if block not in blocks]
            self.held.append(list(blocks))

    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        if self.held:
            blocks = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
            self.manager.free(reversed(blocks))
            still = {block for others in self.held for block in others}
            self.used += [b for b in reversed(blocks) if b not in still and b in self.names]

    @invariant()
    def counts(self) -> None:
        holders = {block for blocks in self.held for block in blocks}
        assert self.manager.num_free == self.count - len(holders)
        assert self.manager.num_cached == len(self.used)


TestBlocks = Blocks.TestCase
TestBlocks.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_second_block_with_the_same_content_is_not_kept() -> None:
    manager = BlockManager(2)
    first, second = manager.allocate(2) or []
    manager.name(first, b"x")
    manager.name(second, b"x")
    manager.free([second, first])
    assert manager.num_cached == 1
    assert manager.match([b"x"]) == [first]


def test_hashes_are_a_chain_over_tokens_and_everything_else_that_counts() -> None:
    tokens = np.arange(11, dtype=np.int32)
    root = root_hash(cache_salt="tenant")
    hashes: list[bytes] = []
    extend_hashes(hashes, root, tokens[:6], 4)
    extend_hashes(hashes, root, tokens, 4)
    first = hashlib.sha256(root + tokens[:4].tobytes()).digest()
    assert hashes == [first, hashlib.sha256(first + tokens[4:8].tobytes()).digest()]
    roots = [
        root_hash(), root_hash(cache_salt="a"), root_hash(cache_salt=""), root_hash(adapter="a"),
        root_hash(media=[b"a"]), root_hash(media=[b"a", b""]), root_hash(adapter="", media=[b"a"]),
        root_hash(adapter="a", cache_salt="a"), root_hash(cache_salt="aa"),
    ]  # fmt: skip
    assert len(set(roots)) == len(roots)


def test_a_prefix_is_computed_once_and_counted() -> None:
    engine = FakeEngine(context_tokens=64, block_size=4)
    driver = Driver(engine)
    prompt = list(range(30))

    def run(ids: list[int], **more: object):
        before = sum(tokens for tokens, _ in engine.steps)
        request_id = driver.add(Request(prompt_ids=ids, params=GREEDY, **more))
        events = run_all(driver, [request_id])[request_id]
        assert tokens_of(events) == greedy_answer(ids, 6)
        computed = sum(tokens for tokens, _ in engine.steps) - before
        assert events[0].cached_tokens == events[-1].timings.cached_tokens
        return computed, events[0].cached_tokens

    assert run(prompt) == (30 + 5, 0)
    assert run(prompt) == (2 + 5, 28)
    assert run(prompt[:28]) == (4 + 5, 24)  # one token at least is computed, so one block
    assert run([*prompt, *greedy_answer(prompt, 6)]) == (4 + 5, 32)  # the answer is kept too
    assert run([*prompt[:13], 96, 95]) == (3 + 5, 12)
    assert run([96, *prompt[1:]]) == (30 + 5, 0)
    assert run(prompt, cache_salt="other") == (30 + 5, 0)
    assert run(prompt, cache_salt="other") == (2 + 5, 28)
    stats = driver.stats
    assert stats.prefix_hit_tokens == 28 + 24 + 32 + 12 + 28
    assert stats.prefix_query_tokens == 30 + 30 + 28 + 36 + 15 + 30 + 30 + 30
    assert stats.num_free_blocks == stats.num_blocks
    alone = Driver(engine, shares_prefixes=False)
    for _ in range(2):
        request_id = alone.add(Request(prompt_ids=prompt, params=GREEDY))
        assert run_all(alone, [request_id])[request_id][0].cached_tokens == 0


def test_what_two_requests_share_is_computed_by_one_while_the_other_waits() -> None:
    engine = FakeEngine(context_tokens=64, block_size=4, max_step_tokens=8)
    driver = Driver(engine)
    prompt = list(range(30))
    ids = [driver.add(Request(prompt_ids=[*prompt, n], params=GREEDY)) for n in range(4)]
    other = driver.add(Request(prompt_ids=[50, 51], params=GREEDY))
    events = run_all(driver, [*ids, other])
    for n, request_id in enumerate(ids):
        assert tokens_of(events[request_id]) == greedy_answer([*prompt, n], 6)
        assert events[request_id][0].cached_tokens == (28 if n else 0)
    assert tokens_of(events[other]) == greedy_answer([50, 51], 6)
    assert sum(tokens for tokens, _ in engine.steps) == 31 + 3 * 3 + 2 + 5 * 5


def test_a_shared_prefix_whose_maker_leaves_is_computed_by_the_next() -> None:
    driver = Driver(FakeEngine(context_tokens=64, block_size=4, max_step_tokens=8))
    prompt = list(range(30))
    first, second = (driver.add(Request(prompt_ids=prompt, params=GREEDY)) for _ in range(2))
    driver.step()
    driver.cancel(first)
    events = run_all(driver, [second])[second]
    assert tokens_of(events) == greedy_answer(prompt, 6)
    assert events[0].cached_tokens == 8  # what the first had computed


def test_what_a_failed_row_computed_is_not_shared() -> None:
    engine = FakeEngine(context_tokens=64, block_size=4)
    driver = Driver(engine)
    engine.faults = {0: "out of range"}
    request_id = driver.add(Request(prompt_ids=list(range(9)), params=GREEDY))
    assert run_all(driver, [request_id])[request_id][0].finish_reason == "error"
    engine.faults = {}
    assert driver.stats.num_cached_blocks == 0
    assert driver.stats.faults == 1
    assert driver.stats.num_free_blocks == driver.stats.num_blocks


@given(
    work=st.lists(
        st.tuples(
            st.integers(0, 3),  # which family of prompts
            st.integers(1, 40),  # tokens of the prompt
            st.integers(1, 16),  # tokens of the answer
            st.integers(0, 14),  # step of arrival
            st.integers(-1, 1),  # priority
            st.sampled_from([None, None, None, 3, 9]),  # step at which it is cancelled
            st.sampled_from([None, None, "a", "b"]),  # salt
        ),
        min_size=1,
        max_size=12,
    ),
    max_sequences=st.integers(1, 5),
    extra_tokens=st.integers(0, 12),
    block_size=st.sampled_from([1, 3, 4, 8]),
    spare_tokens=st.integers(0, 40),
    max_prefill=st.sampled_from([None, 1, 5]),
)
@settings(max_examples=120, deadline=None)
def test_sharing_changes_no_answer_and_loses_no_block(
    work, max_sequences, extra_tokens, block_size, spare_tokens, max_prefill
) -> None:
    context = 60
    blocks = -(-context // block_size) + spare_tokens // block_size
    engine = FakeEngine(
        context_tokens=context, max_sequences=max_sequences, block_size=block_size,
        max_step_tokens=max_sequences + extra_tokens, num_blocks=blocks,
    )  # fmt: skip
    driver = Driver(engine, max_prefill_tokens=max_prefill)
    families = np.random.default_rng(3).integers(0, 97, (4, 60))
    pending = list(work)
    wanted, got, leaving = {}, {}, {}
    step = 0
    while pending or driver.has_work:
        for item in [item for item in pending if item[3] <= step]:
            pending.remove(item)
            family, size, count, _, priority, cancelled, salt = item
            prompt = families[family, :size].tolist()
            params = SamplingParams(temperature=0.0, max_tokens=count)
            request_id = driver.add(
                Request(prompt_ids=prompt, params=params, priority=priority, cache_salt=salt)
            )
            wanted[request_id] = greedy_answer(prompt, min(count, context - size))
            got[request_id] = []
            if cancelled is not None:
                leaving[request_id] = step + cancelled
        for request_id in [r for r, when in leaving.items() if when == step]:
            driver.cancel(request_id)
        for event in driver.step():
            got[event.request_id] += event.token_ids
        step += 1
        assert step < 5000
    for request_id, answer in got.items():
        if request_id in leaving:
            assert answer == wanted[request_id][: len(answer)]
        else:
            assert answer == wanted[request_id]
    stats = driver.stats
    assert stats.num_free_blocks == blocks
    assert stats.waiting_tokens == 0
    # A new engine's worth of blocks can be had, each once.
    assert sorted(driver._blocks.allocate(blocks) or []) == list(range(blocks))


def test_priorities_go_first_and_are_put_back_last() -> None:
    driver = Driver(FakeEngine(max_sequences=1))
    ids = [
        driver.add(Request(prompt_ids=[n], params=GREEDY, priority=priority))
        for n, priority in enumerate([1, 0, -1, 0])
    ]
    order: list[int] = []
    while driver.has_work:
        order += [event.request_id for event in driver.step() if event.finish_reason]
    assert order == [ids[2], ids[1], ids[3], ids[0]]
    driver = Driver(FakeEngine(num_blocks=17, max_sequences=2))
    params = SamplingParams(temperature=0.0, max_tokens=50)
    low = driver.add(Request(prompt_ids=[1], params=params, priority=5))
    high = driver.add(Request(prompt_ids=[2], params=params, priority=1))
    events = run_all(driver, [low, high])
    assert events[low][-1].timings.preemptions > 0
    assert events[high][-1].timings.preemptions == 0
    assert tokens_of(events[low]) == greedy_answer([1], 50)


def test_a_deadline_ends_running_and_waiting_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(FakeEngine(max_sequences=1))
    params = SamplingParams(temperature=0.0, max_tokens=50)
    run = driver.add(Request(prompt_ids=[1], params=params, deadline_s=1000.0))
    wait = driver.add(Request(prompt_ids=[2], params=params, deadline_s=1000.0))
    free = driver.add(Request(prompt_ids=[3], params=params))
    events = {run: driver.step(), wait: [], free: []}
    for sequence in driver._with_deadline.values():
        sequence.deadline_s = 0.0
    while driver.has_work:
        for event in driver.step():
            events[event.request_id].append(event)
    assert [event.finish_reason for event in events[run]] == [None, "deadline"]
    assert tokens_of(events[run]) == greedy_answer([1], 1)
    assert [event.finish_reason for event in events[wait]] == ["deadline"]
    assert tokens_of(events[free]) == greedy_answer([3], 50)
    assert driver.stats.deadlines == 2
    assert driver.stats.num_free_blocks == driver.stats.num_blocks
