"""Text and tokens: repeatable, and of agreeing lengths."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from benchmark.simulator.serve import tokens

VOCABULARY = 163_840


@given(st.lists(st.integers(16, VOCABULARY - 1), max_size=50))
def test_text_made_of_tokens_reads_back_as_them(ids: list[int]) -> None:
    assert tokens.encode(tokens.decode(ids), VOCABULARY) == ids


@given(st.text(max_size=200), st.sampled_from([64, 32_000, VOCABULARY]))
def test_any_text_has_ids_inside_the_vocabulary(text: str, vocabulary: int) -> None:
    ids = tokens.encode(text, vocabulary)
    assert all(16 <= token < vocabulary for token in ids)
    assert bool(ids) == bool(text)
    assert ids == tokens.encode(text, vocabulary)


def test_words_are_json_as_they_are() -> None:
    for token in (16, 4_900, 70_000, VOCABULARY - 1):
        assert tokens.word(token).isascii()
        assert tokens.word(token)[1:].isalpha()


def test_an_answer_depends_on_prompt_and_seed_alone() -> None:
    def start(prompt: list[int], seed: int) -> list[int]:
        answer = tokens.Answer(prompt, VOCABULARY, seed)
        return [answer.natural_length, *(answer.next() for _ in range(20))]

    assert start([1, 2, 3], 0) == start([1, 2, 3], 0)
    assert start([1, 2, 3], 0) != start([1, 2, 4], 0)
    assert start([1, 2, 3], 0) != start([1, 2, 3], 1)


def test_a_conversation_costs_three_tokens_a_message_and_three_for_the_answer() -> None:
    messages = [{"role": "system", "content": "one"}, {"role": "user", "content": [{"type": "text", "text": "two"}]}]
    assert len(tokens.encode_chat(messages, VOCABULARY)) == 3 + 1 + 3 + 1 + 3
    assert len(tokens.encode_chat([{"role": "user"}], VOCABULARY)) == 6
