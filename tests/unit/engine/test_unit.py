from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.engine import unit


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("--tp-size", "--tp-size"),
        (8, "8"),
        ("", '""'),
        ("two words", '"two words"'),
        ('{"a":1}', '"{\\"a\\":1}"'),
        ("100%", '"100%%"'),
        ("$HOME", '"$$HOME"'),
        ("a#b;c", '"a#b;c"'),
        ("back\\slash", '"back\\\\slash"'),
        ("it's", '"it\'s"'),
    ],
)
def test_words_of_exec_start(value, written):
    assert unit.argument(value) == written


def test_a_dollar_means_nothing_in_environment():
    assert unit.assignment("X", "$a 5%") == '"X=$a 5%%"'


@pytest.mark.parametrize("bad", ["a\nb", "a\0b", "\x1b[0m", "a\x85b", "a\u2028b"])
def test_control_characters_are_refused(bad):
    with pytest.raises(unit.UnitError, match="control character"):
        unit.argument(bad)
    with pytest.raises(unit.UnitError, match="control character"):
        unit.assignment("X", bad)


def read_back(word: str) -> str:
    """One word as systemd.syntax(7) and systemd.service(5) say it is read, for ExecStart."""
    quoted = word.startswith('"')
    text = word[1:-1] if quoted else word
    out, index = [], 0
    while index < len(text):
        if quoted and text[index] == "\\":
            index += 1
            out.append(text[index])
        elif text[index] in "%$":
            assert text[index : index + 2] == text[index] * 2
            out.append(text[index])
            index += 1
        else:
            out.append(text[index])
        index += 1
    return "".join(out)


@given(st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"))))
def test_any_value_arrives_as_it_was_written(value):
    assert read_back(unit.argument(value)) == value
