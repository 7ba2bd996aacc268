"""Failures that need more than a sentence: ports, processes that died, widths that do not divide, unknown flags."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import replace

from .failure import FRAME, LONGEST_LINE, Case, Failure, Line, shown
from .memory import place

_SHARES_MEMORY = re.compile(r"custom_all_?reduce", re.IGNORECASE)
_BUILDS_LINES = 400
"""Lines of a build that are looked back at."""
_BUILDS_ERROR = re.compile(r"(?:^|[:\s])(?:fatal )?error\s*: |undefined reference to ")
_BUILDS_KILLED = re.compile(r"^(?:\S{1,100}: line \d+: +\d+ )?Killed\b|^FAILED: \[code=137\]")
_FATAL_ERROR = "Fatal Python error: "
_THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-f]{1,16}\b")
_NATIVE_CODE = (
    "Native code failed: look for Xid lines (journalctl -k | grep -i xid) and for a core file (coredumpctl); where it "
    "comes back, choose another backend for what was running."
)
_READS_THE_MODEL = re.compile(r'^\s*File "[^"]{0,400}/(?:model_loader|transformers|tokenizers)/')
_JSONS_OWN = re.compile(r'^\s*File "[^"]{0,400}/json/')


def port(case: Case) -> Failure:
    port = case.match.group(1) or case.setting("port") or "its port"
    number = int(port) if str(port).isdecimal() else 0
    another = f", for example {number + 1 if number < 65535 else number - 1}" if number else ""
    return Failure(
        "port_taken",
        "warmup",
        f"Port {port} is in use by another process. The engine loaded the model first, and now neither serves nor "
        "exits.",
        advice=f"Stop what listens on {port} (ss -ltnp), or set sglang_service_port to another{another}. This engine "
        "must be killed.",
        may_pass=True,
    )


def killed(case: Case) -> Failure | None:
    """A scheduler that is gone without a word; None where its word is elsewhere in the log."""
    number, pid, code = case.match.groups()
    if _raised(case) or any(line.text.startswith(_FATAL_ERROR) for line in case.after):
        return None
    signalled = code.startswith("-")
    how = f"was killed by signal {code[1:]}" if signalled else f"ended with exit code {code}"
    advice = {
        "-9": "Look in the kernel's log for the out-of-memory killer (journalctl -k | grep -i oom) and for Xid lines; "
        "then try again.",
        "-15": "Look who stops it: a service manager, a shutdown, a person.",
    }
    return Failure(
        "killed" if code in advice else "crash",
        case.stage,
        f"Scheduler {number} (pid {pid}) {how} and left no traceback.",
        advice=advice.get(code, _NATIVE_CODE if signalled else "Read the lines of that rank."),
        may_pass=True,
    )


def fatal_error(case: Case) -> Failure | None:
    """Python's own word of a signal, and where each thread was: its frames, the innermost first."""
    signal = case.match.group(1).strip()[:100]
    if signal == "Aborted" and _raised(case):
        return None  # C++ ends a process that its exception leaves; Python has told that one before
    frames = _threads_frames(case.after)
    found = FRAME.match(frames[0]) if frames else None
    where = f" in {found.group(1)}:{found.group(2)}" if found else ""
    mapped = "A mapped file was cut short, or /dev/shm is full (df /dev/shm). " if signal == "Bus error" else ""
    return Failure(
        "crash",
        place(replace(case, block=frames)),
        f"The engine crashed ({signal}){where}.",
        (shown(case.line.text), *(shown(frame) for frame in frames)),
        mapped + _NATIVE_CODE,
        may_pass=True,
    )


def _raised(case: Case) -> bool:
    return any("hit an exception" in line.text for line in case.before)


def _threads_frames(lines: Sequence[Line]) -> list[str]:
    """Of the thread that got the signal, else of the first that is told."""
    threads: list[tuple[bool, list[str]]] = []
    for line in lines:
        head = line.text[:LONGEST_LINE]
        if line.stamped or not head.strip():
            continue
        if found := _THREAD.match(head):
            threads.append((found.group(1) == "Current thread", []))
        elif threads and FRAME.match(head):
            threads[-1][1].append(head)
        elif threads:
            break
    return next((frames for current, frames in threads if current), threads[0][1] if threads else [])


def rank_died(case: Case) -> Failure:
    number, code = case.match.groups()
    host_memory = code == "-9"
    return Failure(
        "killed" if host_memory else "crash",
        case.stage,
        f"Rank {number} ended during start-up with exit code {code}"
        + ("; the host's out-of-memory killer is the usual cause." if host_memory else "."),
        advice="Look in the kernel's log (journalctl -k | grep -i oom) and at the free memory of the host."
        if host_memory
        else "Read the lines of that rank.",
        may_pass=True,
    )


def zero_division(case: Case) -> Failure:
    tp, ep = case.setting("tp_size"), case.setting("ep_size")
    widths = f" (tp {tp}, ep {ep})" if tp and ep else ""
    return Failure(
        "ep_does_not_divide",
        "process",
        f"--ep-size is larger than --tp-size{widths}: expert groups divide the tensor-parallel group.",
        advice=f"Use an --ep-size that divides {tp}." if tp else "Use an --ep-size that divides --tp-size.",
    )


def group_missing(case: Case) -> Failure:
    tp, ep = case.setting("tp_size"), case.setting("ep_size")
    return Failure(
        "ep_does_not_divide",
        "distributed",
        f"Some ranks are in no expert group: --ep-size {ep or '?'} does not divide --tp-size {tp or '?'}.",
        advice=f"Use an --ep-size that divides {tp}." if tp else "Use an --ep-size that divides --tp-size.",
    )


def gpu_fault(case: Case) -> Failure:
    word, xid = case.match["word"], case.match["xid"]
    return Failure(
        "gpu_fault",
        case.stage,
        f"A GPU failed ({f'Xid {xid}' if xid else word}).",
        advice="Read the Xid lines (journalctl -k | grep -i xid); the GPU needs a reset, or the host a reboot.",
        may_pass=True,
    )


def p2p(case: Case) -> Failure:
    return Failure(
        "p2p",
        case.stage,
        "The GPUs cannot reach each other's memory.",
        advice="Check ACS and IOMMU (redirects on the bridges); try --disable-custom-all-reduce or NCCL_P2P_DISABLE=1.",
    )


def p2p_by_its_frames(case: Case) -> Failure | None:
    """CUDA refuses an argument for many reasons; under the custom all-reduce it is a peer's memory, not opened."""
    return p2p(case) if any(_SHARES_MEMORY.search(frame[:LONGEST_LINE]) for frame in case.block) else None


def unknown_flag(case: Case) -> Failure:
    given = case.match.group(1).strip()
    known = {flag for line in case.before[-600:] for flag in re.findall(r"--[a-z0-9-]+", line.text[:LONGEST_LINE])}
    near = difflib.get_close_matches(given.partition(" ")[0].partition("=")[0], known, n=1, cutoff=0.6)
    nearest = f" The nearest that it knows is {near[0]}." if near else ""
    return Failure(
        "unknown_flag",
        "process",
        f"The engine does not know: {given[:300]}.{nearest}",
        advice="Remove or rename it; it may belong to another release.",
    )


def no_model(case: Case) -> Failure:
    paths = re.findall(r"""['"](/[^'"]{1,300})['"]|directory: (/\S{1,300})""", case.line.text[:LONGEST_LINE])
    paths = [quoted or bare for quoted, bare in paths]
    where = (paths[-1] if paths else None) or case.setting("model_path")
    return Failure(
        "no_model",
        case.stage,
        f"The model's files are not where the engine looks{f' ({where})' if where else ''}, or not complete.",
        advice="Look at the path and its files: config.json, tokenizer, every shard that the index names.",
    )


def broken_json(case: Case) -> Failure | None:
    """JSON that ends too early is the model's where its loader reads it; settings are JSON as well."""
    frames = [text for text in case.block if FRAME.match(text[:LONGEST_LINE]) and not _JSONS_OWN.search(text)]
    if not frames or not _READS_THE_MODEL.search(frames[-1]):
        return None
    said = (case.match.group(1) or case.match.group(2)).strip()
    return Failure(
        "model_corrupt",
        case.stage,
        f"A JSON file of the model cannot be read: {said[:300]}.",
        advice="Look at config.json, model.safetensors.index.json and the tokenizer's files (python -m json.tool "
        "FILE); fetch what is cut again.",
    )


def compile_error(case: Case) -> Failure:
    return _not_compiled(case, next((group for group in case.match.groups() if group), ""))


def compiler_killed(case: Case) -> Failure:
    program = case.match.group(1) or case.match.group(2)
    return _compiler_killed(case, f" ({program})")


def build_stopped(case: Case) -> Failure:
    """ninja's last line: what stopped the build is before it, in words that only a build's end makes an error."""
    for line in case.before[-_BUILDS_LINES:]:
        head = line.text[:LONGEST_LINE]
        if line.stamped:
            continue
        if _BUILDS_KILLED.search(head):
            return replace(_compiler_killed(case, ""), evidence=(shown(head),))
        if _BUILDS_ERROR.search(head):
            return replace(_not_compiled(case, head.strip()), evidence=(shown(head),))
    return _not_compiled(case, "")


def _not_compiled(case: Case, what: str) -> Failure:
    return Failure(
        "kernel_compile",
        case.stage,
        f"A kernel did not compile{f': {shown(what)[:300]}' if what else ''}.",
        advice="See that CUDA's toolkit is of the version that the engine's packages are for (nvcc --version), and "
        "install them again from their lock; or choose a backend that does not need this kernel.",
    )


def _compiler_killed(case: Case, program: str) -> Failure:
    return Failure(
        "host_memory",
        case.stage,
        f"The host ran out of memory while kernels were compiled: a compiler{program} was killed.",
        advice="Compile with fewer jobs at once, for example MAX_JOBS=4 in the configuration's environment (a job is "
        "some GB), or free host memory; look at the unit's MemoryMax.",
        may_pass=True,
    )
