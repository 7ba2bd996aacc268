"""Text and token ids of the simulated engine: no meaning, but repeatable, and the two agree about lengths.

A token is a space and a word of three syllables that spells its id, so that text made of tokens reads back as
the same ids. Any other text is cut into short pieces whose ids are hashes.
"""

from __future__ import annotations

import hashlib
import random
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

_SYLLABLES = [first + second for first in "bdfghjklmnprst" for second in "aeiou"]
_NUMBERS = {syllable: number for number, syllable in enumerate(_SYLLABLES)}
_BASE = len(_SYLLABLES)
_WORD = re.compile(r" ?[bdfghjklmnprst][aeiou][bdfghjklmnprst][aeiou][bdfghjklmnprst][aeiou](?![a-z])")
_PIECE = re.compile(_WORD.pattern + r"| ?[^\W_]{1,6}|\s+|.", re.DOTALL)
_FIRST_WORD = 16
"""Ids below it are special; 2 ends an answer."""
END = 2


def word(token: int) -> str:
    """The text of a token: ` badefi`."""
    high, low = divmod(token, _BASE * _BASE)
    middle, low = divmod(low, _BASE)
    return f" {_SYLLABLES[high % _BASE]}{_SYLLABLES[middle]}{_SYLLABLES[low]}"


def decode(tokens: Sequence[int]) -> str:
    """Token ids as text; special ids have none."""
    return "".join(word(token) for token in tokens if token >= _FIRST_WORD)


def encode(text: str, vocabulary: int) -> list[int]:
    """Text as token ids below `vocabulary`."""
    tokens = []
    for piece in _PIECE.findall(text):
        if _WORD.fullmatch(piece):
            bare = piece.strip()
            token = _NUMBERS[bare[0:2]] * _BASE * _BASE + _NUMBERS[bare[2:4]] * _BASE + _NUMBERS[bare[4:6]]
            if _FIRST_WORD <= token < vocabulary:
                tokens.append(token)
                continue
        tokens.append(_FIRST_WORD + zlib.crc32(piece.encode("utf-8", "replace")) % (vocabulary - _FIRST_WORD))
    return tokens


def encode_chat(messages: Sequence[Mapping[str, Any]], vocabulary: int) -> list[int]:
    """A conversation as token ids: three for the frame of each message and three that open the answer."""
    tokens: list[int] = []
    for message in messages:
        tokens += [3, 4 + zlib.crc32(str(message.get("role", "")).encode()) % 8, 12]
        tokens += encode(_content_text(message.get("content")), vocabulary)
    return [*tokens, 3, 13, 14]


def _content_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [part.get("text", "") for part in content if isinstance(part, Mapping)]
        return "\n".join(part for part in parts if isinstance(part, str))
    return ""


class Answer:
    """The tokens that follow a prompt: the same for the same prompt and seed, of a length of its own."""

    def __init__(self, prompt: Sequence[int], vocabulary: int, seed: int):
        digest = hashlib.blake2b(repr((seed, tuple(prompt))).encode(), digest_size=8).digest()
        self._random = random.Random(int.from_bytes(digest, "big"))
        self._words = vocabulary - _FIRST_WORD
        self.natural_length = int(self._random.lognormvariate(5.0, 0.7)) + 2
        """Tokens after which the model would end by itself (median about 150)."""

    def next(self) -> int:
        """The next token id."""
        return _FIRST_WORD + int(self._random.random() * self._words)
