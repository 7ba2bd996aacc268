"""Text of anybody's, without the secrets in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.engine.lifecycle.failure import LONGEST_LINE, shown
from benchmark.engine.secrets import is_secret, masked

SECRET = "hunter2-Planted"


@pytest.mark.parametrize(
    "text",
    [
        f"python train.py --api-key {SECRET} --epochs 3",
        f"python train.py --api-key={SECRET}",
        f"python train.py --api-key '{SECRET}'",
        f"['serve', '--api-key', '{SECRET}', '--port', '1']",
        f"env AWS_SECRET_ACCESS_KEY={SECRET} python train.py",
        f"PGPASSWORD={SECRET} psql",
        f"proxy http://me:{SECRET}@proxy:3128 refused",
        f'{{"token": "{SECRET}"}}',
        f'{{\\"token\\": \\"{SECRET}\\"}}',
        f"{{'hf_token': '{SECRET}'}}",
        f"X-Api-Key: {SECRET}",
        f"Authorization: Basic {SECRET}",
        f"authorization: Bearer {SECRET}",
        f"'Authorization': 'Bearer {SECRET}'",
        f"-H 'Authorization: Basic {SECRET}'",
        f"ServerArgs(model_path='/m', api_key='{SECRET}', tp_size=8)",
        f"curl --proxy-password {SECRET}",
        f"dbpassword: {SECRET}",
    ],
)
def test_a_secret_is_removed_in_each_spelling(text):
    said = masked(text)
    assert SECRET not in said
    assert "REMOVED" in said
    assert masked(said) == said


@pytest.mark.parametrize(
    "token", ["hf_abcdefgh1234", "sk-abcdefgh1234", "ghp_abcdefghijklmnop1234", "AKIAABCDEFGHIJKL"]
)
def test_what_looks_like_a_token_is_removed_wherever_it_stands(token):
    assert masked(f"401 for {token}!") == "401 for REMOVED!"


@pytest.mark.parametrize(
    "text",
    [
        "Prefill batch, #new-seq: 1, #new-token: 8192, #cached-token: 0, token usage: 0.00",
        "ServerArgs(api_key=None, admin_api_key=None, tp_size=8)",
        "max_total_num_tokens=4096, time_per_token: fast, tokenizer_path='/m'",
        "See http://127.0.0.1:30001/health and user@host",
        "--api-key --tp-size 8",
        "KeyError: 'experts'",
    ],
)
def test_what_is_none_stays(text):
    assert masked(text) == text


@given(
    st.sampled_from(["api_key", "HF_TOKEN", "X-Api-Key", "db-password", "credentials"]),
    st.sampled_from(["{}={}", "{}: {}", '"{}": "{}"', "--{} {}", "--{}={}"]),
    st.text("abcdefXYZ0123456789+/._~$%-", min_size=6).filter(lambda value: not value.startswith("-")),
    st.text(max_size=30),
)
def test_whatever_stands_around_it(name, form, value, around):
    value = f"q{value}Q"
    assert is_secret(name)
    assert value not in masked(f"{around} {form.format(name, value)} {around}")


@pytest.mark.parametrize("form", ["--api-key {}", "https://user:{}@mirror/", "HF_TOKEN={}"])
@pytest.mark.parametrize("longest", [LONGEST_LINE, 8 * LONGEST_LINE])
def test_no_half_of_a_secret_stays_where_a_line_is_cut(form, longest):
    """The cut falls on each of its characters in turn."""
    planted = form.format(SECRET)
    for before in range(longest - len(planted), longest + 1):
        line = ("x" * 9 + " ") * (before // 10) + "y" * (before % 10 - 1) + " " + planted + " after" * 9
        said = shown(line)
        assert len(said) <= LONGEST_LINE
        assert SECRET[:4] not in said


def test_a_line_of_little_but_secrets_ends_before_the_half_of_one():
    line = f"--api-key {SECRET * 100} " * 20
    said = shown(line)
    assert said.startswith("--api-key REMOVED --api-key REMOVED ")
    assert SECRET not in said


def test_one_endless_word_is_shown_as_far_as_a_line_goes():
    assert shown("x" * 100_000) == "x" * LONGEST_LINE
