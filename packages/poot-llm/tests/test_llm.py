import gc
import threading
import time

import numpy as np
import pytest
from llm_fakes import FakeEngine, greedy_answer, logits_of
from llm_tokenizers import byte_level

from poot_core import DeviceError, RequestError, UnsupportedError
from poot_llm import LLM, ContextLengthError, SamplingParams, Tokenizer
from poot_llm._fair_lock import FairLock

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
BACKEND = byte_level(vocab_limit=300)
SIZE = BACKEND.get_vocab_size()
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def open_llm(*, text: bool = True, template: str | None = TEMPLATE, eos=(), **options) -> LLM:
    tokenizer = Tokenizer(BACKEND, chat_template=template) if text else None
    engine = FakeEngine(vocab_size=SIZE, **options)
    return LLM.from_engine(engine, tokenizer=tokenizer, eos_token_ids=eos)


def test_text_in_text_out() -> None:
    with open_llm() as llm:
        [output] = llm.generate("The capital", GREEDY)
        ids = BACKEND.encode("The capital").ids
        assert output.prompt_ids == ids
        assert output.output_ids == greedy_answer(ids, 12, SIZE)
        assert output.text == BACKEND.decode(output.output_ids)
        assert output.finish_reason == "length"
        assert output.timings.output_tokens == 12
        assert output.logprobs is None


def test_every_form_of_prompts() -> None:
    with open_llm() as llm:
        one = llm.generate([7, 8, 9], GREEDY)
        many = llm.generate([[7, 8, 9], "The", np.array([4, 5])], GREEDY)
        texts = llm.generate(["The", "is"], [GREEDY, SamplingParams(temperature=0, max_tokens=2)])
        assert llm.generate([]) == []
    assert [o.output_ids for o in one] == [greedy_answer([7, 8, 9], 12, SIZE)]
    assert many[0].output_ids == one[0].output_ids
    assert many[2].output_ids == greedy_answer([4, 5], 12, SIZE)
    assert texts[0].output_ids == many[1].output_ids
    assert len(texts[1].output_ids) == 2


def test_a_stream_adds_up_to_the_answer() -> None:
    with open_llm() as llm:
        [output] = llm.generate("The", GREEDY)
        deltas = list(llm.stream("The", GREEDY))
    assert "".join(d.text for d in deltas) == output.text
    assert [i for d in deltas for i in d.token_ids] == output.output_ids
    assert [d.finish_reason for d in deltas] == [None] * 11 + ["length"]
    assert deltas[-1].timings.output_tokens == 12


def test_a_stop_string_ends_the_answer_and_frees_its_blocks() -> None:
    with open_llm() as llm:
        [whole] = llm.generate("The", GREEDY)
        stop = whole.text[4:7]
        params = SamplingParams(temperature=0.0, max_tokens=12, stop=(stop,))
        [output] = llm.generate("The", params)
        streamed = list(llm.stream("The", params))
        assert output.text == whole.text[: whole.text.index(stop)]
        assert output.finish_reason == streamed[-1].finish_reason == "stop"
        assert "".join(d.text for d in streamed) == output.text
        assert len(output.output_ids) < 12
        assert output.timings.output_tokens == len(output.output_ids)
        assert llm.stats.num_free_blocks == llm.stats.num_blocks


def test_an_end_token_is_in_the_ids_and_not_in_the_text() -> None:
    answer = greedy_answer([5], 12, SIZE)
    with open_llm(eos=[answer[3]]) as llm:
        [output] = llm.generate([5], GREEDY)
    assert output.output_ids == answer[:4]
    assert output.text == BACKEND.decode(answer[:3])
    assert output.finish_reason == "stop"


def test_chat_renders_the_template() -> None:
    messages = [{"role": "user", "content": "Hi"}]
    text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    with open_llm() as llm:
        output = llm.chat(messages, GREEDY)
        assert output.prompt_ids == BACKEND.encode(text, add_special_tokens=False).ids
        assert output.prompt_ids[0] == BACKEND.token_to_id("<|im_start|>")
        assert "".join(d.text for d in llm.stream_chat(messages, GREEDY)) == output.text
    with open_llm(template=None) as llm, pytest.raises(UnsupportedError, match="no chat template"):
        llm.chat(messages, GREEDY)


def test_logits_of_every_position() -> None:
    ids = [3, 1, 4, 1, 5, 9, 2, 6]
    with open_llm() as llm:
        got = llm.logits(ids)
        full = llm.logits([1] * 64)
    assert got.shape == (8, SIZE)
    assert got.dtype == np.float32
    for place in range(8):
        np.testing.assert_array_equal(got[place], logits_of(ids[: place + 1], SIZE))
    assert full.shape == (64, SIZE)


def test_ids_alone_without_a_tokenizer() -> None:
    with open_llm(text=False) as llm:
        [output] = llm.generate([[5, 6]], GREEDY)
        assert output.text is None
        assert [d.text for d in llm.stream([5, 6], GREEDY)] == [None] * 12
        with pytest.raises(UnsupportedError, match="no tokenizer"):
            llm.generate("text", GREEDY)
        with pytest.raises(UnsupportedError, match="stop strings need a tokenizer"):
            llm.generate([5], SamplingParams(stop="a"))


def test_refusals_leave_nothing_behind() -> None:
    with open_llm() as llm:
        with pytest.raises(ContextLengthError, match="70 tokens and the context holds 64"):
            llm.generate([[1, 2], [1] * 70], GREEDY)
        with pytest.raises(ContextLengthError):
            llm.stream([1] * 70)
        with pytest.raises(RequestError, match="empty"):
            llm.generate("", GREEDY)
        with pytest.raises(RequestError, match="2 prompts and 1 params"):
            llm.generate(["a", "b"], [GREEDY])
        with pytest.raises(RequestError, match="not valid Unicode"):
            llm.generate("\ud800", GREEDY)
        for prompts in (None, 5):
            with pytest.raises(RequestError, match="token ids"):
                llm.generate(prompts, GREEDY)
        for params in ({"max_tokens": 3}, [{"max_tokens": 3}], "greedy"):
            with pytest.raises(RequestError, match="must be SamplingParams"):
                llm.generate("a", params)
        with pytest.raises(RequestError, match="token ids"):
            llm.generate([[1.5]], GREEDY)
        assert llm.stats.num_waiting == llm.stats.num_running == 0
        assert len(llm.generate([1], GREEDY)) == 1


def test_a_stream_that_is_left_is_cancelled() -> None:
    with open_llm() as llm:
        stream = llm.stream([5], GREEDY)
        next(stream)
        assert llm.stats.num_running == 1
        stream.close()
        assert llm.stats.num_running == 0
        assert llm.stats.num_free_blocks == llm.stats.num_blocks


def test_streams_that_are_open_at_once_do_not_mix() -> None:
    with open_llm() as llm:
        streams = [llm.stream([i], GREEDY) for i in (3, 4, 5)]
        got: list[list[int]] = [[], [], []]
        for _ in range(12):
            for tokens, stream in zip(got, streams, strict=True):
                tokens += next(stream).token_ids
    assert got == [greedy_answer([i], 12, SIZE) for i in (3, 4, 5)]


def test_threads_share_the_steps() -> None:
    got: dict[int, list[int]] = {}
    with open_llm() as llm:

        def work(token_id: int) -> None:
            got[token_id] = llm.generate([token_id], GREEDY)[0].output_ids

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert got == {i: greedy_answer([i], 12, SIZE) for i in range(8)}


def test_a_long_answer_does_not_starve_another_thread() -> None:
    with open_llm(context_tokens=4096, num_blocks=1100) as llm:
        long = SamplingParams(temperature=0.0, max_tokens=400)
        seen: list[int] = []

        def work() -> None:
            llm.generate([2], SamplingParams(temperature=0.0, max_tokens=3))
            seen.append(llm.stats.steps)

        stream = llm.stream([1], long)
        next(stream)
        thread = threading.Thread(target=work)
        thread.start()
        total = 1 + sum(1 for _ in stream)
        thread.join()
    assert total == 400
    assert seen[0] < 300, "the short answer had to wait for the long one"


def test_the_lock_is_handed_on_in_order() -> None:
    lock = FairLock()
    order: list[int] = []

    def work(number: int) -> None:
        with lock:
            order.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(5)]
    with lock:
        for count, thread in enumerate(threads, start=1):
            thread.start()
            while len(lock._waiters) < count:
                time.sleep(0.001)
    for thread in threads:
        thread.join()
    with lock:
        assert order == [0, 1, 2, 3, 4]


def test_closing_twice_is_fine_and_using_it_then_is_not() -> None:
    llm = open_llm()
    stream = llm.stream([5], GREEDY)
    next(stream)
    llm.close()
    llm.close()
    assert llm.engine.closed == 1
    with pytest.raises(DeviceError, match="closed"):
        llm.generate([1], GREEDY)
    with pytest.raises(DeviceError, match="closed"):
        next(stream)
    stream.close()


def test_one_that_nobody_closed_is_closed_when_it_goes() -> None:
    llm = open_llm()
    engine = llm.engine
    llm.generate([1], GREEDY)
    del llm
    gc.collect()
    assert engine.closed == 1


def test_fifty_leave_no_threads_and_no_objects() -> None:
    def once() -> None:
        with open_llm() as llm:
            llm.generate("The", GREEDY)

    once()
    gc.collect()
    threads = threading.active_count()
    objects = len(gc.get_objects())
    for _ in range(50):
        once()
    gc.collect()
    assert threading.active_count() == threads
    assert len(gc.get_objects()) - objects < 200


def test_a_device_that_fails_says_so_to_everyone() -> None:
    with open_llm() as llm:
        llm.engine.fail_next = True
        with pytest.raises(DeviceError, match="on fire"):
            llm.generate([1], GREEDY)
        with pytest.raises(DeviceError, match="opened anew"):
            llm.generate([1], GREEDY)


def test_a_fault_is_an_error_of_that_answer() -> None:
    with open_llm() as llm:
        llm.engine.faults = {0: "a bad slot"}
        first, second = llm.generate([[1], [2]], SamplingParams(temperature=0.0, max_tokens=1))
    assert (first.finish_reason, first.error, first.output_ids) == ("error", "a bad slot", [])
    assert second.finish_reason == "length"


def test_prompt_logprobs_alone_and_with_an_answer() -> None:
    with LLM.from_engine(FakeEngine()) as llm:
        scores = SamplingParams(max_tokens=0, prompt_logprobs=1)
        both = SamplingParams(max_tokens=3, prompt_logprobs=1, temperature=0.0)
        [only, answer] = llm.generate([[5, 6, 7], [5, 6, 7]], [scores, both])
        assert (only.output_ids, only.finish_reason) == ([], "length")
        assert answer.output_ids == greedy_answer([5, 6, 7], 3)
        assert only.prompt_logprobs == answer.prompt_logprobs
        assert [entry and entry.token_id for entry in only.prompt_logprobs] == [None, 6, 7]
        assert llm.generate([[5]], both)[0].prompt_logprobs == [None]
