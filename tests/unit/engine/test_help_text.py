"""An engine's help, parsed as argparse prints it, against the flag tables."""

from __future__ import annotations

import argparse
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.engine import flags
from benchmark.engine.help_text import HelpFlag, NoHelp, compare_help, parse_help

# Lines of `python -m sglang.launch_server --help`, SGLang 0.5.11.
HELP = """\
usage: sglang serve [-h] --model-path MODEL_PATH
                    [--tokenizer-mode {auto,slow}]

options:
  -h, --help            show this help message and exit
  --model-path MODEL_PATH, --model MODEL_PATH
                        The path of the model weights. This can be a local
                        folder or a Hugging Face repo ID.
  --tokenizer-mode {auto,slow}
                        Tokenizer mode. 'auto' will use the fast tokenizer if
                        available, and --slow is no flag here.
  --skip-tokenizer-init
                        If set, skip init tokenizer and pass input_ids in
  --warmups WARMUPS     Specify custom warmup functions (csv) to run before
  --bucket-time-to-first-token BUCKET_TIME_TO_FIRST_TOKEN [BUCKET_TIME_TO_FIRST_TOKEN ...]
                        The buckets of time to first token
  --lora-strict-loading, --no-lora-strict-loading
                        Enable strict loading for LoRA adapters.
"""


def test_lines_of_a_real_help():
    assert parse_help(HELP) == {
        "--model-path": HelpFlag(takes_value=True),
        "--model": HelpFlag(takes_value=True),
        "--tokenizer-mode": HelpFlag(takes_value=True, choices=("auto", "slow")),
        "--skip-tokenizer-init": HelpFlag(takes_value=False),
        "--warmups": HelpFlag(takes_value=True),
        "--bucket-time-to-first-token": HelpFlag(takes_value=True, several=True),
        "--lora-strict-loading": HelpFlag(takes_value=False),
        "--no-lora-strict-loading": HelpFlag(takes_value=False),
    }


def test_colours_and_one_value_for_all_names():
    # Python 3.14 colours its help; from 3.13 on the value stands behind the last name only.
    text = "options:\n  \x1b[1;36m--model\x1b[0m, \x1b[1;36m--model-path\x1b[0m \x1b[1;33mPATH\x1b[0m  where\n"
    assert parse_help(text) == {
        "--model": HelpFlag(takes_value=True),
        "--model-path": HelpFlag(takes_value=True),
    }


@pytest.mark.parametrize("text", ["", "Traceback (most recent call last):\nImportError: no module named torch\n"])
def test_no_help(text):
    with pytest.raises(NoHelp):
        parse_help(text)


def test_no_help_says_what_it_was():
    with pytest.raises(NoHelp, match="ImportError: no module named torch"):
        parse_help("Traceback (most recent call last):\n  x\nImportError: no module named torch\n\n")


def made_help(release: str, leave_out=(), add=(), other=None) -> str:
    """What argparse itself prints for the flag table of a release, in the ways in which SGLang declares flags."""
    parser = argparse.ArgumentParser(prog="sglang serve")
    for name, spec in flags.flag_table(release).items():
        if name in leave_out or spec.get("hidden"):
            continue
        if spec["kind"] == "switch":
            parser.add_argument(name, action="store_true", help="words")
        elif spec["kind"] == "list":
            parser.add_argument(name, nargs="+", help="words")
        else:
            parser.add_argument(name, choices=(other or {}).get(name, spec.get("choices")), help="--words of it")
    for name in add:
        parser.add_argument(name)
    return parser.format_help()


@pytest.mark.parametrize("release", ["0.5.11", "0.5.23"])
def test_a_help_that_agrees(release):
    found = compare_help(made_help(release), release)
    assert (found.missing, found.unexpected, found.changed) == ((), (), ())
    assert found.sentence == f"The engine's flags are those of {release}."


def test_flags_of_a_plugin_are_known_and_not_missed():
    # The launcher loads the lock's smg-grpc-servicer before it prints its help, `sglang serve --help` does not.
    plugin = ("--metrics-host", "--metrics-port", "--servicer-impl")
    found = compare_help(made_help("0.5.23", add=plugin), "0.5.23")
    assert found.sentence == "The engine's flags are those of 0.5.23."
    assert flags.launch_lines({"metrics_port": 9000}, "0.5.23") == [["--metrics-port", "9000"]]


def test_the_negative_form_of_a_flag_is_known():
    # argparse.BooleanOptionalAction prints both; 0.5.11 has it for three flags, 0.5.9 for none.
    text = made_help("0.5.11")
    assert "--no-record-nolora-graph" in text
    assert flags.launch_lines({"no_record_nolora_graph": True}, "0.5.11") == [["--no-record-nolora-graph"]]
    with pytest.raises(flags.FlagError, match="one flag"):
        flags.launch_lines({"no_lora_strict_loading": True, "lora_strict_loading": True}, "0.5.11")
    with pytest.raises(flags.FlagError, match="has no flag"):
        flags.launch_lines({"no_lora_strict_loading": True}, "0.5.9")


def test_a_flag_that_the_engine_hides_is_not_missed_and_can_be_set():
    assert "--forward-pass-metrics-worker-id" not in made_help("0.5.23")
    assert flags.launch_lines({"forward_pass_metrics_worker_id": "w"}, "0.5.23") == [
        ["--forward-pass-metrics-worker-id", "w"]
    ]


def test_a_help_that_differs():
    text = made_help(
        "0.5.11",
        leave_out=["--tp-size", "--enable-metrics"],
        add=["--brand-new"],
        other={"--tokenizer-mode": ["auto", "fresh"]},
    )
    found = compare_help(text, "0.5.11")
    assert found.missing == ("--enable-metrics", "--tp-size")
    assert found.unexpected == ("--brand-new",)
    assert found.changed == ("--tokenizer-mode takes no longer slow and also fresh",)
    assert found.sentence == (
        "The engine's flags differ from those of 0.5.11: it lacks --enable-metrics, --tp-size; it also has "
        "--brand-new; --tokenizer-mode takes no longer slow and also fresh."
    )


def test_a_value_where_there_was_none():
    text = "  --enable-metrics HOW\n  --tp-size\n"
    assert compare_help(text, "0.5.11").changed == ("--enable-metrics takes a value", "--tp-size takes no value")


def test_an_unknown_release_is_held_against_the_one_below():
    assert compare_help(made_help("0.5.11"), "0.5.11.post2").release == "0.5.11"


@given(st.text(max_size=200))
def test_any_text_is_parsed_or_refused(text):
    with contextlib.suppress(NoHelp):
        assert all(name.startswith("-") for name in parse_help(text))
