"""Generated programs: a kernel's varying control flow gives what Python gives for each lane."""

import importlib.util
import itertools
import textwrap

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

NAMES = ("a", "b", "c")
LANES = 4
HEADER = """
from poot_core import i64
from poot_kernel.language import Out, kernel, local_id

@kernel(level="lane", grid=[1], workgroup_size=4)
def program(start: i64, out: Out[i64, 4, 3]):
    a = start + local_id()
    b = start - 2 * local_id()
    c = 7
"""
FOOTER = """
    out[local_id(), 0] = a
    out[local_id(), 1] = b
    out[local_id(), 2] = c
"""


def expressions(names):
    leaves = st.one_of(st.sampled_from(names), st.integers(0, 9).map(str))

    def extend(inner):
        pair = st.tuples(inner, inner)
        return st.one_of(
            st.tuples(pair, st.sampled_from(["+", "-", "*"])).map(
                lambda t: f"({t[0][0]} {t[1]} {t[0][1]})"
            ),
            st.tuples(inner, st.sampled_from(["//", "%"]), st.integers(1, 7)).map(
                lambda t: f"({t[0]} {t[1]} {t[2]})"
            ),
            pair.map(lambda t: f"min({t[0]}, {t[1]})"),
            st.tuples(conditions(inner), inner, inner).map(
                lambda t: f"({t[1]} if {t[0]} else {t[2]})"
            ),
        )

    return st.recursive(leaves, extend, max_leaves=4)


def conditions(inner):
    simple = st.tuples(inner, st.sampled_from(["<", "<=", "==", "!=", ">"]), inner).map(
        lambda t: f"({t[0]} {t[1]} {t[2]})"
    )
    return st.one_of(
        simple,
        st.tuples(simple, st.sampled_from(["and", "or"]), simple).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        simple.map(lambda c: f"(not {c})"),
    )


@st.composite
def blocks(draw, depth=2, names=NAMES):
    lines = []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["set", "add", "if", "for", "while"] if depth else ["set"]))
        value = draw(expressions(names))
        target = draw(st.sampled_from(NAMES))
        inner = textwrap.indent(draw(blocks(depth - 1, names)), "    ") if depth else ""
        if kind == "set":
            lines.append(f"{target} = ({value}) % 1009 + 0 * a")
        elif kind == "add":
            lines.append(f"{target} += {value} % 11")
        elif kind == "if":
            lines.append(f"if {draw(conditions(expressions(names)))}:\n{inner}")
            if draw(st.booleans()):
                other = textwrap.indent(draw(blocks(depth - 1, names)), "    ")
                lines.append(f"else:\n{other}")
        elif kind == "for":
            index = f"i{depth}"
            lines.append(f"for {index} in range({value} % 4):\n{inner}")
            lines.append(f"    {target} = ({target} + {index}) % 1009")
        else:
            count = f"n{depth}"
            lines.append(f"{count} = {value} % 4 + 0 * a")
            lines.append(f"while {count} > 0 and {target} != 3:\n{inner}")
            lines.append(f"    {count} -= 1")
    return "\n".join(lines)


_numbers = itertools.count()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=blocks(), start=st.integers(-50, 50))
def test_control_flow_agrees_with_python(tmp_path_factory, body, start):
    text = HEADER + textwrap.indent(body, "    ") + FOOTER
    path = tmp_path_factory.mktemp("programs") / f"program{next(_numbers)}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    got = np.zeros((LANES, 3), np.int64)
    module.program(start, got)
    for lane in range(LANES):
        names = {"a": start + lane, "b": start - 2 * lane, "c": 7}
        exec(body, {}, names)  # the same text, as Python
        np.testing.assert_array_equal(got[lane], [names[name] for name in NAMES])
