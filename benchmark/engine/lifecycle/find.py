"""Finding the first cause in a log, and naming an exit that left no word.

One rank's failure makes the others' communication fail, and the server's last line only says that a child failed; so
consequences are looked at only where no cause is found.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .causes import CAUSES, CONSEQUENCES
from .failure import FRAME, LEFT_OUT, LONGEST_LINE, Case, Failure, Line, shown
from .memory import place

_EVIDENCE_LINES = 12
_FURTHEST_BLOCK = 400
"""Lines of one traceback that are read at most."""
_FURTHEST_AFTER = 2000
"""Lines behind a cause that are read at most: the frames of all threads of a process."""

_IGNORED = re.compile(
    r"Ignore import error|UserWarning|FutureWarning|DeprecationWarning|server_args=|^\s*warnings\.warn"
)
_ANY_CAUSE = re.compile("|".join(f"(?:{pattern.pattern})" for pattern, _ in CAUSES), re.IGNORECASE)
_ANY_CONSEQUENCE = re.compile("|".join(f"(?:{pattern.pattern})" for pattern, _ in CONSEQUENCES), re.IGNORECASE)
_FATAL_WHEN_READY = re.compile(
    r"hit an exception|sigquit|crashed with exit code|Fatal Python error|terminate called|core dumped", re.IGNORECASE
)
_ENDED = re.compile(
    _FATAL_WHEN_READY.pattern + r"|already in use|died during initialization|Initialization failed|^Killed\b",
    re.IGNORECASE,
)
_FATAL = re.compile(
    _ENDED.pattern + r"|Traceback \(most recent|\berror: (?:unrecognized|argument|ambiguous|the following|one of)",
    re.IGNORECASE,
)
_SERIOUS = re.compile(
    r"hit an exception|\berror\b|fail|already in use|out of memory|NCCL WARN|crashed|died|timeout|timed out|oom-kill",
    re.IGNORECASE,
)
_REFUSALS = r"(?:ValueError|AssertionError|NotImplementedError|ZeroDivisionError)"
"""What the engine raises for a configuration it cannot run; the same start would raise it again."""
_MISTAKES = r"(?:TypeError|KeyError|AttributeError|IndexError)"
"""What code raises that was not written for what it got: a refusal only where the engine reads its settings."""
_ENGINES_OWN = re.compile(r"/(?:sglang|sgl_kernel|transformers)/")
_READS_SETTINGS = re.compile(r"/(?:server_args|arg_groups|configs?|configuration_\w+|model_config)(?:\.py$|/)")
_WHERE = {"distributed": " while its ranks met", "weights": " while loading weights", "kv": " at the KV pool",
          "graphs": " while capturing graphs", "kernels": " while compiling kernels"}  # fmt: skip
_NOTHING = re.compile("").search("")
_TRACEBACK = "Traceback (most recent call last)"


def find_failure(lines: Sequence[Line], figures: Mapping[str, Any]) -> Failure | None:
    """The first cause in a log; None where nothing failed (a warning is no failure)."""
    lines, fatal = _deadly_part(lines)
    if not fatal:
        return None
    for group, quick in ((CAUSES, _ANY_CAUSE), (CONSEQUENCES, _ANY_CONSEQUENCE)):
        for number, line in enumerate(lines):
            head = line.text[:LONGEST_LINE]
            if not quick.search(head) or _IGNORED.search(head) or not _serious(line):
                continue
            for pattern, build in group:
                if not (match := pattern.search(head)):
                    continue
                block = _block(lines, number)
                if failure := build(Case(line, match, block, figures, lines[:number], _after(lines, number))):
                    return _with_evidence(failure, line, block)
    return _unnamed(lines)


def _deadly_part(lines: Sequence[Line]) -> tuple[Sequence[Line], bool]:
    """(where to look, whether anything there ended the engine).

    Once it is ready only what ends the engine counts: a request's own traceback does not.
    """
    ready = next((number for number, line in enumerate(lines) if line.stage == "ready"), None)
    if ready is not None:
        lines = lines[ready + 1 :]
    fatal = _FATAL if ready is None else _FATAL_WHEN_READY
    return lines, any(fatal.search(line.text[:LONGEST_LINE]) for line in lines)


def says_its_end(lines: Sequence[Line]) -> bool:
    """Whether a line is the last of a process of the engine; a traceback alone may have been caught."""
    return any(_ENDED.search(line.text[:LONGEST_LINE]) for line in lines)


def _serious(line: Line) -> bool:
    """Whether a line is a failure's and not a remark: no stamp (it ends a traceback), or the words of one."""
    if not line.stamped:
        return True
    head = line.text[:LONGEST_LINE]
    return bool(_SERIOUS.search(head)) and not re.match(r"(?:WARNING|INFO)\b", head)


def _after(lines: Sequence[Line], number: int) -> Sequence[Line]:
    return lines[number + 1 : number + 1 + _FURTHEST_AFTER]


def _block(lines: Sequence[Line], number: int) -> list[str]:
    """The traceback around a line: back to its `Traceback` (nothing if there is none near)."""
    for back in range(number, max(-1, number - _FURTHEST_BLOCK), -1):
        if _TRACEBACK in lines[back].text:
            end = min(len(lines), number + 1)
            return [line.text for line in lines[back:end]]
        if back < number and lines[back].stamped:
            break
    return []


def _with_evidence(failure: Failure, line: Line, block: Sequence[str]) -> Failure:
    tail = [text for text in block[:-1] if text.strip()][-(_EVIDENCE_LINES - 1) :]
    evidence = dict.fromkeys((*failure.evidence, *(shown(text) for text in (line.text, *tail))))
    return replace(failure, evidence=tuple(evidence)[:_EVIDENCE_LINES])


def _unnamed(lines: Sequence[Line]) -> Failure | None:
    """The first traceback that no pattern knows."""
    for number, line in enumerate(lines):
        if _TRACEBACK not in line.text:
            continue
        for end in range(number + 1, min(len(lines), number + _FURTHEST_BLOCK)):
            text = lines[end].text
            if text == LEFT_OUT:
                break
            if text[:1] in (" ", "\t", "") or lines[end].stamped:
                continue
            return _traceback_failure(line, text, _block(lines, end))
    return None


def _traceback_failure(first: Line, last: str, block: Sequence[str]) -> Failure:
    stage = place(Case(first, _NOTHING, block, {}))
    name, _, said = last.partition(":")
    if not said.strip() and len(block) > 1:
        # A bare assertion says nothing; its source line does.
        said = block[-2]
    text = shown(said).strip()[:300] or "no text"
    file, number = _innermost(block)
    where = f" ({file}:{number})" if file else ""
    if stage not in ("warmup", "ready") and _refuses(name, file):
        failure = Failure(
            "refused",
            stage,
            f"The engine refuses the configuration: {text}.",
            advice="Change what the message names; trying again changes nothing.",
        )
    else:
        failure = Failure(
            "crash",
            stage,
            f"The engine failed{_WHERE.get(stage, '')} with {name[:100]}: {text}{where}.",
            advice="Read the evidence; the first traceback is the cause."
            if not file or _ENGINES_OWN.search(file)
            else f"The mistake is in {file}, which is not the engine's own: mend or remove it.",
            may_pass=True,
        )
    return _with_evidence(failure, Line(last), block)


def _innermost(block: Sequence[str]) -> tuple[str, str]:
    """(file, line) of the frame that raised; empty where the block shows none."""
    frames = [found for text in block if (found := FRAME.match(text[:LONGEST_LINE]))]
    return (frames[-1].group(1), frames[-1].group(2)) if frames else ("", "")


def _refuses(name: str, file: str) -> bool:
    """Whether an exception is the engine's word on the configuration, and not a mistake in some code."""
    if re.fullmatch(_REFUSALS, name):
        return not file or bool(_ENGINES_OWN.search(file))
    return bool(re.fullmatch(_MISTAKES, name) and _READS_SETTINGS.search(file) and _ENGINES_OWN.search(file))


def failure_from_exit(signal: int | None, status: int | str | None, stage: str, last_lines: Sequence[str]) -> Failure:
    """A process that ended and left no word of why."""
    evidence = tuple(last_lines[-_EVIDENCE_LINES:])
    if signal == 9:
        return Failure(
            "killed",
            stage,
            "The engine was killed (SIGKILL) and left no word of why.",
            evidence,
            "Look for the out-of-memory killer (journalctl -k | grep -i oom), a stop from outside, or a memory limit.",
            may_pass=True,
        )
    if signal in (15, 2, 1):
        return Failure(
            "stopped_from_outside",
            stage,
            f"The engine was told to end (signal {signal}) by something else than this tool.",
            evidence,
            "Look who stops it: a service manager, a shutdown, a person.",
            may_pass=True,
        )
    if signal is not None:
        return Failure(
            "crash",
            stage,
            f"The engine crashed (signal {signal}).",
            evidence,
            "Look in the kernel's log and for a core file.",
            may_pass=True,
        )
    if status == 2:
        return Failure(
            "unknown_flag",
            "process",
            "The engine refused its command line (exit 2).",
            evidence,
            "Run the unit's command by hand to see its message.",
        )
    if status in (126, 127):
        # The shell's own, of a launch script (POSIX, XCU 2.8.2).
        why = "is not there" if status == 127 else "may not be executed"
        return Failure(
            "not_started",
            "process",
            f"The engine's program {why} (exit {status}).",
            evidence,
            "Run playbooks/install.yml, and look at the end of the launch script.",
        )
    return Failure(
        "unknown",
        stage,
        f"The engine ended{'' if status is None else f' with exit status {status}'} and left no word of why.",
        evidence,
        "Read the end of the engine's log.",
        may_pass=True,
    )
