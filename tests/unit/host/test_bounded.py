"""Commands that hang, talk without end, or are not there."""

from __future__ import annotations

import sys
import time

import pytest

from benchmark.host import bounded


def python(program: str, **options) -> bounded.Answer:
    return bounded.run([sys.executable, "-c", program], **options)


def test_both_streams_and_the_status_are_told():
    answer = python("import sys; print('a\\r\\nb'); sys.stderr.write('\\udcff é'); sys.exit(3)")
    assert (answer.state, answer.code, answer.text) == ("failed", 3, "a\nb\n")
    assert answer.error.endswith("é")
    assert python("print(1)") == bounded.Answer("ok", "1\n", "", 0)
    assert bounded.run(["/nowhere/at-all"]).state == "absent"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_one_that_talks_without_end_is_ended(monkeypatch, stream):
    monkeypatch.setattr(bounded, "MOST_BYTES", 1 << 20)
    began = time.monotonic()
    answer = python(f"import sys\nwhile True: sys.{stream}.write('x' * 65536)", seconds=30)
    assert (answer.state, answer.text) == ("failed", "")
    assert "MiB, and was ended" in answer.error
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    "program",
    [
        "import time; print('so far', flush=True); time.sleep(60)",
        "import sys, time, os; os.close(1); os.close(2); time.sleep(60)",
        "import subprocess, sys; subprocess.Popen(['sleep', '60'])",
    ],
)
def test_one_that_does_not_end_or_leaves_its_streams_open_is_not_waited_for(program):
    began = time.monotonic()
    assert python(program, seconds=1.5).state == "hung"
    assert time.monotonic() - began < 6
