"""Text of anybody's, without the secrets in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.engine import configuration, flags
from benchmark.engine.lifecycle.failure import LONGEST_LINE, shown
from benchmark.engine.secrets import is_secret, masked, secret_variable

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
        f"proxy http://me:p@{SECRET}@proxy:3128 refused",
        f"'http://me:p@'{SECRET}@proxy'",
        f"https_proxy=http://me:p@{SECRET}@proxy:3128",
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
        f"api_key=['{SECRET}']",
        f'"api_keys": ["none", "{SECRET}"]',
        f'"api_key": {{"value": "{SECRET}"}}',
        f"HF_TOKEN_1={SECRET}",
        f"b'api_key': b'{SECRET}'",
        f"Cookie: id=1; session={SECRET}",
        f"{{'set-cookie': 'session={SECRET}; path=/'}}",
        f"https://blob/m?sv=1&sig={SECRET}",
        f"https://bucket/m?X-Amz-Signature={SECRET}&x=1",
        f"curl -u me:{SECRET} http://x",
        f"['curl', '--user', 'me:{SECRET}']",
        f"POST https://hooks.slack.com/services/T0/B0/{SECRET}",
    ],
)
def test_a_secret_is_removed_in_each_spelling(text):
    said = masked(text)
    assert SECRET not in said
    assert "REMOVED" in said
    assert masked(said) == said


@pytest.mark.parametrize(
    "token",
    [
        *("hf_abcdefgh1234", "sk-abcdefgh1234", "ghp_abcdefghijklmnop1234", "AKIAABCDEFGHIJKL"),
        *("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJtZSJ9.abc-def_g", "AIza" + "Sy0123456789" * 3),
    ],
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
        "Missing key: model.layers.0.mlp, state_dict_key: lm_head",
        "the forward_pass: eager, eos_token: <|im_end|>",
        "see /srv/hf_checkpoints/x",
        "token=[101, 102], api_keys=[], docker run -u 1000:1000 image",
        "python -u run.py http://127.0.0.1:30000, the signature: (a, b)",
    ],
)
def test_what_is_none_stays(text):
    assert masked(text) == text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SGLANG_HEADERS", f"Authorization: Bearer {SECRET}"),
        ("MOONCAKE_X", "hf_PlantedPlanted123"),
        ("EXTRA", f'{{"password": "{SECRET}"}}'),
        ("HTTPS_PROXY", f"http://me:p@{SECRET}@proxy:3128"),
        ("CONNECTION", f"AccountName=a;AccountKey={SECRET}"),
        ("MODEL_URL", "https://bucket/m?X-Amz-Credential=AKIAABCDEFGHIJKLMNOP"),
        *((name, "x") for name in ("AZURE_STORAGE_KEY", "OPENAI_KEY", "SIGNING_KEY", "GITHUB_PAT", "DB_PASS")),
        *((name, "x") for name in ("MYSQL_PWD", "HF_TOKENS", "AZURE_STORAGE_CONNECTION_STRING")),
        *((name, "x") for name in ("SGLANG_API_KEYS", "DB_PASSWORDS", "HF_TOKEN_1", "REGISTRY_AUTH", "SGLANG_JWT")),
        *((name, "x") for name in ("SESSION_COOKIE", "SLACK_WEBHOOK_URL")),
        ("HOOK", f"https://hooks.slack.com/services/T0/B0/{SECRET}"),
        ("EXTRA", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJtZSJ9.abcdef"),
    ],
)
def test_a_variable_that_holds_a_secret_is_refused_by_name_or_value(name, value):
    with pytest.raises(configuration.ConfigurationError, match=f"sets the variable '{name}'") as refused:
        configuration.refuse_secrets("ep4", {"NCCL_DEBUG": "INFO", name: value})
    assert value == "x" or value not in str(refused.value)


def test_variables_that_only_sound_like_secrets_are_taken():
    harmless = {
        "NCCL_DEBUG_FILE": "/tmp/nccl.%h.%p",
        "NCCL_SOCKET_IFNAME": "=eth0",
        "NCCL_IB_PKEY": "0",
        "SGLANG_INIT_NEW_TOKEN_RATIO": "0.7",
        "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": "4096",
        "SGLANG_FORWARD_PASS": "eager",
        "SGLANG_CACHE_KEY": "v2",
        "MAX_TOKENS": "4096",
        "MAX_TOKENS_1": "4096",
        "TOKENIZER_PATH": "/srv/models/x",
        "NCCL_P2P_LEVEL": "SYS",
        "SGLANG_DISABLE_AUTH": "1",
        "KEY_VALUE_STORE": "etcd",
        "EOS_TOKEN": "<|im_end|>",
        "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
        "HF_HOME": "/srv/hf_checkpoints25",
        "PWD": "/srv",
        "OLDPWD": "/",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:512",
        "HF_ENDPOINT": "https://mirror:8080/hf",
    }
    assert secret_variable(harmless) is None


@pytest.mark.parametrize("part", ["description", "hypothesis"])
@pytest.mark.parametrize("text", [f"api_key={SECRET}", "with token: hf_Planted1234Abcd", f"at http://me:{SECRET}@x"])
def test_a_secret_in_what_is_said_of_a_configuration_is_refused_without_showing_it(part, text):
    with pytest.raises(configuration.ConfigurationError, match=f"'x': its {part} holds") as refused:
        configuration.merge_catalogues({"x": {part: f"Experts over 8, {text}.", "engine": {"tp_size": 8}}})
    assert text not in str(refused.value)


def test_what_is_said_of_tokens_is_taken():
    entry = {
        "description": "Fewer bytes a token: 8-way experts (NCCL_ALGO=Ring, max_total_tokens=4096).",
        "hypothesis": "Time per output token: lower at 1, as sk-learn says; tokenizer_path=/m stays.",
    }
    assert configuration.merge_catalogues({"x": entry}) == {"x": entry}


@pytest.mark.parametrize(
    "value", [f'{{"hub_token": "{SECRET}"}}', {"hub_token": SECRET}, "hf_PlantedPlanted123", f"http://a:b@{SECRET}@c/"]
)
def test_a_flag_that_is_given_a_secret_is_refused_without_showing_it(value):
    with pytest.raises(flags.FlagError, match="--model-loader-extra-config is given a secret") as refused:
        flags.launch_lines({"model_loader_extra_config": value}, "0.5.11")
    assert SECRET not in str(refused.value)


def test_a_flag_that_only_sounds_like_it_is_taken():
    engine = {
        "model_loader_extra_config": '{"enable_multithread_load": true, "num_threads": 8}',
        "json_model_override_args": '{"pad_token": "<pad>", "eos_token_id": 2}',
        "chat_template": "/srv/hf_templates2025/chat.jinja",
    }
    assert len(flags.launch_lines(engine, "0.5.11")) == 3


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
