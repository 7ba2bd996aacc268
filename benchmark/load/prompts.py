"""Prompts of a workload: the same for every configuration, new for each point and repeat."""

from __future__ import annotations

import dataclasses
import functools
import zlib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import zstandard

from .workload import Workload, WorkloadError

LOWEST_ID, HIGHEST_ID = 256, 30_000
"""Ids drawn at random: above the bytes and control tokens at the bottom of most vocabularies, below the smallest."""


@dataclass(frozen=True)
class Prompt:
    """One request's prompt (token ids, text, or chat messages) and the lengths asked for, in tokens."""

    content: list[int] | str | list[dict[str, Any]]
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Tokenization:
    """How text becomes tokens on the server that is measured.

    Attributes:
        ids: the corpus as token ids, if the server could tell them: lengths are then exact.
        characters_per_token, overhead_tokens: else, measured on two prompts (the overhead is the chat template's).
    """

    ids: np.ndarray | None = None
    characters_per_token: float = 4.0
    overhead_tokens: float = 0.0


@functools.cache
def corpus() -> str:
    """English prose in the public domain (data/README.md says which)."""
    packed = resources.files(__package__).joinpath("data", "corpus.txt.zst").read_bytes()
    return zstandard.ZstdDecompressor().decompress(packed).decode()


class PromptSource:
    """Draws the prompts of one point. Request `index` of a point is always the same, in whatever order it is asked."""

    def __init__(
        self,
        workload: Workload,
        point: tuple[int, int],
        tokenization: Tokenization | None = None,
        as_ids: bool = True,
        route: str | None = None,
    ) -> None:
        """Args:
            point: (concurrency, repeat), or any two numbers that tell this set of prompts from others.
            route: that a replayed file's lines must be fit for.

        Raises:
            WorkloadError: a line of the file cannot be sent, with its number.
        """
        self.workload = workload
        self.point = point
        self.tokenization = tokenization or Tokenization()
        self.as_ids = as_ids
        # The name too: an open loop's prompts are not its closed loop's, nor one workload's the start of another's.
        self._seed = [workload.seed, zlib.crc32(workload.name.encode()), *point]
        self._replay = _replay_lines(workload.file, route) if workload.file else []

    def prompt(self, index: int, first_wave_of: int | None = None) -> Prompt:
        """Prompt number `index`; `first_wave_of`: the size of the first wave that it belongs to.

        Answers of the first wave are asked to have lengths spread evenly over 1..n in random order, so that a closed
        loop starts as it goes on: ends and starts of requests spread over time, not in lock-step.
        """
        random = np.random.default_rng([*self._seed, index])
        if self._replay:
            line = self._replayed(index)
            return dataclasses.replace(line, output_tokens=self._spread(line.output_tokens, index, first_wave_of))
        output = _length(random, self.workload.output_tokens, self.workload.length_range)
        output = self._spread(output, index, first_wave_of)
        length = _length(random, self.workload.prompt_tokens, self.workload.length_range)
        return Prompt(self._content(random, length), length, output)

    def longest(self) -> Prompt:
        """The prompt and answer that are longest together (all are, but for those of a file)."""
        return max(self._replay, key=_tokens) if self._replay else self.prompt(0)

    def _spread(self, output: int, index: int, wave: int | None) -> int:
        return max(1, round(output * (self._place(index, wave) + 0.5) / wave)) if wave else output

    def _place(self, index: int, wave: int) -> int:
        """Where request `index` of the first wave stands in a shuffled order."""
        order = np.random.default_rng([*self._seed, 1 << 40]).permutation(wave)
        return int(order[index % wave])

    def _content(self, random: np.random.Generator, length: int) -> list[int] | str:
        shared = self.workload.shared_prefix_tokens
        if not shared:
            return self._fresh(random, length)
        first = self._fresh(np.random.default_rng([*self._seed, 1 << 41]), shared)
        rest = self._fresh(random, max(1, length - shared))
        return first + rest if isinstance(first, list) else f"{first} {rest}"

    def _fresh(self, random: np.random.Generator, length: int) -> list[int] | str:
        prose = self.workload.kind != "random_ids"
        if self.as_ids and (not prose or self.tokenization.ids is not None):
            return self._prose_ids(random, length) if prose else _random_ids(random, length)
        tokens = max(1.0, length - self.tokenization.overhead_tokens)
        characters = max(1, round(tokens * self.tokenization.characters_per_token))
        return (prose_text if prose else random_words)(random, characters)

    def _prose_ids(self, random: np.random.Generator, length: int) -> list[int]:
        """Passages of the corpus after a few random ids, which make the prefix unlike any other."""
        ids = self.tokenization.ids
        opening = min(4, length)
        found = _random_ids(random, opening)
        while len(found) < length:
            size = min(200, length - len(found), len(ids))
            start = int(random.integers(0, len(ids) - size + 1))
            found += ids[start : start + size].tolist()
        return found

    def _replayed(self, index: int) -> Prompt:
        order = np.random.default_rng(self._seed).permutation(len(self._replay))
        return self._replay[order[index % len(order)]]


def _tokens(prompt: Prompt) -> float:
    """Of prompt and answer; a text whose tokens a file does not tell is taken by its characters."""
    content = prompt.content
    text = content if isinstance(content, str) else "".join(str(part) for part in content)
    return (prompt.prompt_tokens or len(text) / Tokenization.characters_per_token) + prompt.output_tokens


def _length(random: np.random.Generator, longest: int, share: float) -> int:
    return longest if share >= 1 else int(random.integers(max(1, round(longest * share)), longest + 1))


def _random_ids(random: np.random.Generator, length: int) -> list[int]:
    return random.integers(LOWEST_ID, HIGHEST_ID, size=length).tolist()


def prose_text(random: np.random.Generator, characters: int) -> str:
    """Sentences of the corpus, passages in random order, after an opening that no other prompt has."""
    sentences = _sentences()
    parts = [f"Letter {int(random.integers(10**8))}."]
    size = len(parts[0])
    while size < characters:
        at = int(random.integers(len(sentences)))
        for sentence in sentences[at : at + 8]:
            parts.append(sentence)
            size += len(sentence) + 1
    return " ".join(parts)[:characters]


@functools.cache
def _sentences() -> list[str]:
    flat = " ".join(corpus().split())
    return [part.strip() + "." for part in flat.split(". ") if len(part) > 20]


@functools.cache
def _words() -> list[str]:
    return sorted({word for word in corpus().split() if word.isalpha()})


def random_words(random: np.random.Generator, characters: int) -> str:
    """Words of the corpus in random order: what stands in for random ids where a server takes text only."""
    words = _words()
    picked = [words[i] for i in random.integers(0, len(words), size=characters // 3 + 8)]
    return " ".join(picked)[:characters]


_TAKES = {"generate": "`prompt` or `input_ids`", "completions": "`prompt` or `input_ids`",
          "chat": "`messages` or `prompt`"}  # fmt: skip


def _replay_lines(file: str, route: str | None = None) -> list[Prompt]:
    """Lines of {"prompt" | "messages" | "input_ids", "output_tokens" | "max_tokens", "prompt_tokens"?}.

    Raises:
        WorkloadError: a line that is none of these, with its number.
    """
    found = []
    for number, line in enumerate(Path(file).read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            item = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise WorkloadError(f"{file}, line {number}, is no JSON: {error}") from error
        item = item if isinstance(item, dict) else {}
        content = item.get("input_ids") or item.get("messages") or item.get("prompt") or item.get("text")
        output = item.get("output_tokens") or item.get("max_tokens")
        if not content or not isinstance(output, int) or output < 1:
            raise WorkloadError(
                f"{file}, line {number}: a line needs `prompt`, `messages` or `input_ids`, and `output_tokens`."
            )
        wrong = "input_ids" if route == "chat" else "messages"
        if route is not None and content is item.get(wrong):
            raise WorkloadError(
                f"{file}, line {number}, has `{wrong}`, which the route {route} does not take; it takes "
                f"{_TAKES[route]}. Choose another route, or write the file for this one."
            )
        asked = item.get("prompt_tokens") or (len(content) if item.get("input_ids") else 0)
        found.append(Prompt(content, int(asked), output))
    if not found:
        raise WorkloadError(f"{file} holds no request.")
    return found
