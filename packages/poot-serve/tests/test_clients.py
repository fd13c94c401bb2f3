"""Real client libraries against the real server.

The model is tiny and its weights are random, so answers that have to say something are forced by a
constraint: what is tested is the way from the engine to the client.
"""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Iterator

import numpy as np
import openai
import pytest
from serve_process import Server, start, stop

from poot_llm import LLM

pytestmark = [pytest.mark.client, pytest.mark.xdist_group("clients")]  # its server starts once
MESSAGES = [{"role": "user", "content": "Add 2 and 3."}]
PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": PARAMETERS}}]
CALL = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'
FORCED = {"guided_choice": ["<think>Sum.</think>Adding." + CALL + CALL]}


@pytest.fixture(scope="module")
def tools_server(checkpoint) -> Iterator[Server]:
    running = start(
        str(checkpoint), "--backend", "cpu", "--precision", "f32", "--served-model-name", "tiny",
        "--tool-format", "hermes", "--reasoning-format", "think",
        "--api-key", "first-key", "--api-key", "secret",
    )  # fmt: skip
    yield running
    stop(running)


@pytest.fixture
def client(tools_server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=tools_server.url + "/v1", api_key="secret", max_retries=0) as found:
        yield found


def test_openai_tool_calls_whole_and_streamed(client) -> None:
    asked = {"model": "tiny", "messages": MESSAGES, "tools": TOOLS, "extra_body": FORCED}
    whole = client.chat.completions.create(**asked).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert whole.message.content == "Adding."
    assert whole.message.model_extra["reasoning"] == "Sum."
    assert [json.loads(c.function.arguments) for c in whole.message.tool_calls] == [
        {"a": 2, "b": 3}
    ] * 2
    assert len({call.id for call in whole.message.tool_calls}) == 2
    with client.chat.completions.stream(**asked) as stream:
        events = list(stream)
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    assert final.message.content == "Adding."
    assert [c.function.arguments for c in final.message.tool_calls] == [
        c.function.arguments for c in whole.message.tool_calls
    ]
    deltas = [e for e in events if e.type == "tool_calls.function.arguments.delta"]
    assert len(deltas) > 4  # they come piece by piece


def test_openai_forced_tools(client) -> None:
    named = {"type": "function", "function": {"name": "add"}}
    for choice in (named, "required"):
        answer = client.chat.completions.create(
            model="tiny", messages=MESSAGES, tools=TOOLS, tool_choice=choice, max_tokens=200, seed=1,
            parallel_tool_calls=False,
        ).choices[0]  # fmt: skip
        assert answer.finish_reason == "tool_calls"
        (call,) = answer.message.tool_calls
        assert call.function.name == "add"
        assert set(json.loads(call.function.arguments)) == {"a", "b"}
    none = client.chat.completions.create(
        model="tiny", messages=MESSAGES, tools=TOOLS, tool_choice="none", extra_body=FORCED
    )
    assert none.choices[0].message.tool_calls is None
    assert CALL in none.choices[0].message.content


def test_openai_strict_tools(client) -> None:
    """The model may answer as it likes; a schema that cannot be kept is refused by its field."""
    tool = {"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}
    asked = {"model": "tiny", "messages": MESSAGES, "temperature": 0.8}
    free = client.chat.completions.create(**asked, tools=[tool], max_tokens=8, seed=1)
    assert free.choices[0].message.tool_calls is None
    bad = {"type": "function", "function": {"name": "add", "strict": True,
           "parameters": {"type": "nothing"}}}  # fmt: skip
    with pytest.raises(openai.BadRequestError, match="cannot be compiled") as caught:
        client.chat.completions.create(**asked, tools=[bad], max_tokens=8)
    assert caught.value.param == "tools"


def test_openai_takes_the_results_of_tools(client) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    turns = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "5"},
        {"role": "user", "content": "Well?"},
    ]
    answer = client.chat.completions.create(
        model="tiny", messages=turns, max_tokens=2, extra_body={"ignore_eos": True}
    )
    assert answer.usage.completion_tokens == 2


def test_openai_structured_outputs(client) -> None:
    pydantic = pytest.importorskip("pydantic")

    class Sum(pydantic.BaseModel):
        a: int
        is_exact: bool

    answer = client.chat.completions.parse(
        model="tiny", messages=MESSAGES, response_format=Sum, max_tokens=200, seed=3
    )
    assert isinstance(answer.choices[0].message.parsed, Sum)
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, response_format={"type": "json_object"},
        max_tokens=300, seed=1, temperature=0.1, extra_body={"guided_regex": None},
    )  # fmt: skip
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)


def test_openai_responses(client) -> None:
    whole = client.responses.create(
        model="tiny", input="Hello", max_output_tokens=5, temperature=0.0
    )
    assert whole.status == "incomplete"
    assert whole.usage.output_tokens == 5
    tool = {"type": "function", "name": "add", "parameters": PARAMETERS, "strict": True}
    with client.responses.stream(
        model="tiny", input=[{"role": "user", "content": "Hello"}], tools=[tool],
        tool_choice={"type": "function", "name": "add"}, max_output_tokens=200,
    ) as stream:  # fmt: skip
        numbers = [event.sequence_number for event in stream]
        final = stream.get_final_response()
    assert numbers == list(range(len(numbers)))
    (call,) = final.output
    assert (call.type, call.name) == ("function_call", "add")
    assert set(json.loads(call.arguments)) == {"a", "b"}
    # What came back goes in again, with what the tool gave.
    again = [
        {"role": "user", "content": "Hello"},
        {
            "type": "function_call",
            "call_id": call.call_id,
            "name": "add",
            "arguments": call.arguments,
        },
        {"type": "function_call_output", "call_id": call.call_id, "output": "5"},
        {"role": "user", "content": [{"type": "input_text", "text": "So?"}]},
    ]
    fine = {"structured_outputs": {"choice": ["Fine."]}}
    with client.responses.stream(model="tiny", input=again, extra_body=fine) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        assert stream.get_final_response().output_text == text == "Fine."
    with pytest.raises(openai.BadRequestError, match="keeps no answers"):
        client.responses.create(model="tiny", input="x", previous_response_id="resp_1")


def test_openai_async_streams_at_once(tools_server) -> None:
    async def ask(client: openai.AsyncOpenAI, seed: int) -> str:
        stream = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, max_tokens=12, seed=seed, stream=True
        )
        return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])

    async def main() -> None:
        async with openai.AsyncOpenAI(
            base_url=tools_server.url + "/v1", api_key="secret", max_retries=0
        ) as client:
            alone = [await ask(client, seed) for seed in range(6)]
            together = await asyncio.gather(*(ask(client, seed) for seed in range(6)))
        assert together == alone

    asyncio.run(main())


def test_openai_embeddings_are_refused_by_a_model_that_has_none(client) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="tiny", input="x")
    assert caught.value.code == "unsupported_task"


def test_openai_sees_errors_as_its_own_types(tools_server, client) -> None:
    with pytest.raises(openai.NotFoundError, match="served: tiny"):
        client.chat.completions.create(model="other", messages=MESSAGES)
    with (
        openai.OpenAI(
            base_url=tools_server.url + "/v1", api_key="wrong", max_retries=0
        ) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "word " * 900}]
        )
    assert caught.value.code == "context_length_exceeded"


def test_anthropic(tools_server) -> None:
    anthropic = pytest.importorskip("anthropic")
    with anthropic.Anthropic(base_url=tools_server.url, api_key="secret", max_retries=0) as client:
        tools = [{"name": "add", "description": "Adds.", "input_schema": PARAMETERS}]
        asked = {"model": "tiny", "max_tokens": 200, "messages": MESSAGES}
        greedy = {"temperature": 0.0}  # the library has no argument for it any more
        counted = client.messages.count_tokens(model="tiny", messages=MESSAGES, system="Be brief.")
        plain = client.messages.create(
            model="tiny", max_tokens=4, messages=MESSAGES, system="Be brief.", extra_body=greedy
        )
        assert plain.stop_reason == "max_tokens"
        used = plain.usage.input_tokens + plain.usage.cache_read_input_tokens
        assert used == counted.input_tokens
        whole = client.messages.create(
            **asked, tools=tools, tool_choice={"type": "tool", "name": "add"}, extra_body=greedy
        )
        assert whole.stop_reason == "tool_use"
        assert set(whole.content[-1].input) == {"a", "b"}
        with client.messages.stream(
            **asked, tools=tools, tool_choice={"type": "any"}, extra_body=greedy
        ) as stream:
            final = stream.get_final_message()
        assert final.content[-1].name == "add"
        result = {
            "type": "tool_result", "tool_use_id": final.content[-1].id,
            "content": [{"type": "text", "text": "5"}],
        }  # fmt: skip
        turns = [
            *MESSAGES,
            {"role": "assistant", "content": [block.model_dump() for block in final.content]},
            {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
        ]
        with client.messages.stream(model="tiny", max_tokens=8, messages=turns) as stream:
            text = "".join(stream.text_stream)
            assert stream.get_final_text() == text
        image = {"type": "image", "source": {"type": "url", "url": "https://example.org/x"}}
        with pytest.raises(anthropic.BadRequestError, match="this model reads text"):
            client.messages.create(
                model="tiny", max_tokens=4, messages=[{"role": "user", "content": [image]}]
            )
        with pytest.raises(anthropic.NotFoundError):
            client.messages.create(model="other", max_tokens=4, messages=MESSAGES)


def test_anthropic_stop_sequences(tools_server) -> None:
    anthropic = pytest.importorskip("anthropic")
    with anthropic.Anthropic(base_url=tools_server.url, api_key="secret") as client:
        asked = {
            "model": "tiny", "max_tokens": 40, "messages": MESSAGES,
            "extra_body": {"temperature": 0.0},
        }  # fmt: skip
        text = client.messages.create(**asked).content[0].text
        cut = client.messages.create(**asked, stop_sequences=[text[3:5]])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", text[3:5])
    assert cut.content[0].text == text[: text.index(text[3:5])]


def test_litellm(tools_server) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        litellm = pytest.importorskip("litellm")
        asked = {
            "model": "openai/tiny", "api_base": tools_server.url + "/v1", "api_key": "secret",
            "messages": MESSAGES,
        }  # fmt: skip
        whole = litellm.completion(**asked, tools=TOOLS, extra_body=FORCED)
        parts = list(litellm.completion(**asked, tools=TOOLS, extra_body=FORCED, stream=True))
        built = litellm.stream_chunk_builder(parts, messages=MESSAGES)
    for found in (whole, built):
        message = found.choices[0].message
        assert message.content == "Adding."
        assert message.reasoning_content == "Sum."
        assert [json.loads(c.function.arguments) for c in message.tool_calls] == [
            {"a": 2, "b": 3}
        ] * 2
        assert found.choices[0].finish_reason == "tool_calls"


def test_langchain(tools_server) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        langchain_openai = pytest.importorskip("langchain_openai")
        pydantic = pytest.importorskip("pydantic")

        class Sum(pydantic.BaseModel):
            """A sum."""

            a: int
            b: int

        model = langchain_openai.ChatOpenAI(
            model="tiny",
            base_url=tools_server.url + "/v1",
            api_key="secret",
            max_tokens=300,
            seed=3,
        )
        by_schema = model.with_structured_output(Sum, method="json_schema").invoke("Add 2 and 3.")
        by_call = model.with_structured_output(Sum, method="function_calling").invoke("Add 2, 3.")
        text = "".join(chunk.content for chunk in model.bind(max_tokens=5).stream("Hello"))
    assert isinstance(by_schema, Sum)
    assert isinstance(by_call, Sum)
    assert text


def test_lm_eval_scores_a_task(checkpoint, tmp_path) -> None:
    """The harness asks for token ids with echo and logprobs, and tokenizes through the server."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lm_eval = pytest.importorskip("lm_eval")
        from lm_eval.models.openai_completions import LocalCompletionsAPI
        from lm_eval.tasks import TaskManager

        texts = ["The sun is", "Water is", "Grass is"]
        rows = [{"text": text, "options": [" hot", " wet", " green"], "at": i}
                for i, text in enumerate(texts)]  # fmt: skip
        (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
        (tmp_path / "tiny_task.yaml").write_text(
            "task: tiny_task\ndataset_path: json\ndataset_kwargs:\n  data_files:\n"
            f"    test: {tmp_path / 'rows.jsonl'}\ntest_split: test\n"
            "output_type: multiple_choice\ndoc_to_text: '{{text}}'\ndoc_to_choice: '{{options}}'\n"
            "doc_to_target: at\ntarget_delimiter: ''\nmetric_list:\n  - metric: acc\n"
        )
        running = start(str(checkpoint), "--backend", "cpu", "--precision", "f32")
        try:
            model = LocalCompletionsAPI(
                model="tiny-llama", base_url=running.url + "/v1/completions", batch_size=2,
                max_length=512, num_concurrent=1,
            )  # fmt: skip
            found = lm_eval.simple_evaluate(
                model, tasks=["tiny_task"], bootstrap_iters=0,
                task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
            )  # fmt: skip
            asked = [row["text"] + tail for row in rows for tail in ("", *row["options"])]
            ids_of = {text: model.tok_encode(text) for text in asked}
        finally:
            stop(running)
    with LLM(str(checkpoint), backend="oracle", precision="f32") as llm:
        for sample, row in zip(found["samples"]["tiny_task"], rows, strict=True):
            context = ids_of[row["text"]]
            for (score, _), option in zip(sample["filtered_resps"], row["options"], strict=True):
                whole = ids_of[row["text"] + option]
                assert score == pytest.approx(logprob_after(llm, whole, len(context)), abs=2e-3)


def logprob_after(llm, option_ids, count) -> float:
    """Log-probability of the ids after ``count``, by plain NumPy from the logits of every position."""
    logits = llm.logits(option_ids).astype(np.float64)
    most = logits.max(axis=-1, keepdims=True)
    logprobs = logits - most - np.log(np.exp(logits - most).sum(axis=-1, keepdims=True))
    return float(sum(logprobs[i - 1, option_ids[i]] for i in range(count, len(option_ids))))
