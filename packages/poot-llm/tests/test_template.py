from datetime import datetime

import pytest

from poot_core import RequestError
from poot_llm.text import ChatTemplate, TemplateLimits

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are helpful<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
DOUBLING = (
    "{% set ns = namespace(t='aaaa') %}"
    "{% for i in range(90) %}{% set ns.t = ns.t OP ns.t %}{% endfor %}"
)
LOOP = "{% for i in range(99999) %}"
COUNT = "{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}"
USER = [{"role": "user", "content": "Hi <&> 🦊"}]


def test_chatml() -> None:
    assert ChatTemplate(CHATML).render(USER) == (
        "<|im_start|>system\nYou are helpful<|im_end|>\n"
        "<|im_start|>user\nHi <&> 🦊<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (
        not ChatTemplate(CHATML).render(USER, add_generation_prompt=False).endswith("assistant\n")
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),  # trim_blocks and lstrip_blocks
        ("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "Hi <&> 🦊"}]'),
        ("{{ {'a': 1} | tojson(indent=1) }}", '{\n "a": 1\n}'),
        ("{{ strftime_now('%d %b %Y') }}", "03 Feb 2024"),
        ("{{ bos_token }}{% generation %}a{% endgeneration %}{{ nothing }}", "<s>a"),
        ("{% set ns = namespace(n=0) %}" + COUNT + "{{ ns.n }}", "1"),
        ("{% for k, v in {'b': 1, 'a': 2} | dictsort %}{{ k ~ v }}{% endfor %}", "a2b1"),
        ("{% for k in messages[0] %}{{ k }}{{ loop.last }} {% endfor %}", "roleFalse contentTrue "),
        ("{% for c in messages[0].content[:2] %}{{ loop.length }}{{ c }}{% endfor %}", "2H2i"),
        ("{% for x in nothing %}a{% else %}none{% endfor %}", "none"),
        ("{{ extra }}", "more"),
        ("{{ '%s-%d' % ('a', 3) }}{{ '%s' | format(1) }}", "a-31"),
        ("{{ 'x' * 3 ~ 2 ** 3 }}", "xxx8"),
        ("{{ tools is none }}{{ messages[0].content.split(' ')[0] }}", "TrueHi"),
    ],
)  # fmt: skip
def test_dialect(source, expected) -> None:
    template = ChatTemplate(source, special_tokens={"bos_token": "<s>"}, now=datetime(2024, 2, 3))
    assert template.render(USER, variables={"extra": "more"}) == expected


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('only users') }}", "only users"),
        ("{{ messages[0].content + 1 }}", "str"),
        ("{{ messages.append(1) }}", "not safely callable|unsafe"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ missing.field }}", "undefined"),
        ("{{ 1 // 0 }}", "zero"),
        ("{{ messages[0].content | int('x', 'y', 'z') }}", ""),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ 'a' * 1000000000 }}", "more than"),
        ("{{ 'a' | center(1000000000) }}", "1000000000"),
        ("{{ '%1000000000d' | format(1) }}", "width"),
        ("{{ 2 ** 99 }}", "power"),
        ("{{ 'a'.ljust(100000000000) }}", "asks for"),
        ("{% for i in range(100) %}{{ 'abcdefgh' * 100000 }}{% endfor %}", "more than"),
        (DOUBLING.replace("OP", "~"), "more than"),
        (DOUBLING.replace("OP", "+"), "more than"),
        (f"{LOOP}{LOOP}{{% endfor %}}{{% endfor %}}", "longer than"),
        ("{% for i in range(999999999) %}{% endfor %}", "Range too big"),
    ],
)  # fmt: skip
def test_failures_are_request_errors(source, reason) -> None:
    limits = TemplateLimits(output_characters=1_000_000, seconds=0.3)
    template = ChatTemplate(source, limits=limits)
    with pytest.raises(RequestError, match=f"(?i)(?s)does not render.*({reason})") as caught:
        template.render(USER)
    assert caught.value.field == "messages"


def test_malformed_source_names_its_line() -> None:
    with pytest.raises(RequestError, match=r"malformed.*line 2"):
        ChatTemplate("{% if true %}\n{% endfor %}")


@pytest.mark.parametrize(
    "messages", [[], "hello", {"role": "user"}, [1], [{"content": "x"}], [{"role": 3}]]
)
def test_malformed_messages_are_refused(messages) -> None:
    with pytest.raises(RequestError, match="messages"):
        ChatTemplate("x").render(messages)
