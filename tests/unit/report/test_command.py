"""The command and the unit that people copy, and what must not be in them."""

from __future__ import annotations

import msgspec
import pytest

from benchmark.report import command
from tests.data.campaigns import made


def with_arguments(*arguments, environment=None):
    record = made.record("ep8")
    configuration = msgspec.structs.replace(
        record.configuration, arguments=list(arguments), environment=environment or {}
    )
    return msgspec.structs.replace(record, configuration=configuration)


def test_one_flag_a_line_with_its_values():
    record = with_arguments("python", "-m", "x", "--tp-size", "8", "--cuda-graph-bs", "1", "2", "--trust-remote-code")
    assert command.launch_command(record) == (
        "python -m x \\\n  --tp-size 8 \\\n  --cuda-graph-bs 1 2 \\\n  --trust-remote-code"
    )


def test_the_environment_comes_before_the_command_and_is_quoted():
    record = with_arguments("python", environment={"NCCL_ALGO": "Ring", "A": "x y"})
    assert command.launch_command(record) == "A='x y' \\\n  NCCL_ALGO=Ring \\\n  python"


def test_flags_alone_get_their_program():
    assert command.launch_command(with_arguments("--tp-size", "8")).startswith("python3 -m sglang.launch_server")


def test_secrets_are_removed_in_both_spellings():
    record = with_arguments(
        "python",
        "--api-key",
        "sk-1",
        "--admin-api-key=sk-2",
        "--ssl-keyfile-password",
        "sk-3",
        "--url",
        "https://user:sk-4@host/",
        environment={"HF_TOKEN": "sk-5", "NCCL_DEBUG": "INFO"},
    )
    for told in (command.launch_command(record), command.unit(record)):
        assert "sk-" not in told
        assert "NCCL_DEBUG" in told
        assert "REMOVED" in told


@pytest.mark.parametrize(
    "name",
    ["--api-key", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "--admin-api-key", "DB_PASSWORD", "--ssl-keyfile-password"],
)
def test_names_of_secrets(name):
    assert command.is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "--tokenizer-path",
        "--max-total-tokens",
        "--speculative-num-draft-tokens",
        "--speculative-token-map",
        "--bucket-time-to-first-token",
        "--kt-max-deferred-experts-per-token",
        "--ssl-keyfile",
        "--skip-tokenizer-init",
        "NCCL_P2P_LEVEL",
    ],
)
def test_flags_that_only_sound_like_secrets_are_shown(name):
    assert not command.is_secret(name)


def test_the_unit_follows_systemds_quoting():
    record = with_arguments("/bin/x", "--json", '{"a": "50%"}', "--cost", "$5", environment={"A": "b c"})
    lines = command.unit(record).splitlines()
    assert 'Environment="A=b c"' in lines
    assert '  --json "{\\"a\\": \\"50%%\\"}" \\' in lines
    assert '  --cost "$$5"' in lines


def test_a_command_that_no_unit_can_carry_gives_none():
    assert command.unit(with_arguments("/bin/x", "--name", "a\nb")) == ""
    assert command.unit(with_arguments()) == ""
    assert command.launch_command(with_arguments()) == ""


def test_log_lines_lose_their_secrets():
    line = "server_args=ServerArgs(model_path='/m', api_key='sk-1', admin_api_key=None, tp_size=8) --api-key sk-2"
    told = command.hide_in_text(line)
    assert "sk-" not in told
    assert "tp_size=8" in told
    assert "model_path='/m'" in told
