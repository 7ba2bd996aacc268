"""Failures that need more than a sentence: ports, processes that died, widths that do not divide, unknown flags."""

from __future__ import annotations

import difflib
import re
from dataclasses import replace

from .failure import LONGEST_LINE, Case, Failure, shown

_SHARES_MEMORY = re.compile(r"custom_all_?reduce", re.IGNORECASE)
_BUILDS_LINES = 400
"""Lines of a build that are looked back at."""
_BUILDS_ERROR = re.compile(r"(?:^|[:\s])(?:fatal )?error\s*: |undefined reference to ")
_BUILDS_KILLED = re.compile(r"^(?:\S{1,100}: line \d+: +\d+ )?Killed\b|^FAILED: \[code=137\]")
_READS_THE_MODEL = re.compile(r'File "[^"]{0,400}/(?:model_loader|transformers|tokenizers)/')
_FILE = re.compile(r'\s*File "')
_JSONS_OWN = re.compile(r'File "[^"]{0,400}/json/')


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


def killed(case: Case) -> Failure:
    number, pid, code = case.match.groups()
    signalled = code.startswith("-")
    how = f"was killed by signal {code[1:]}" if signalled else f"ended with exit code {code}"
    return Failure(
        "killed" if signalled and code in ("-9", "-15") else "crash",
        case.stage,
        f"Scheduler {number} (pid {pid}) {how} and left no traceback.",
        advice="Look in the kernel's log for the out-of-memory killer (journalctl -k | grep -i oom) and for Xid lines; "
        "then try again.",
        may_pass=True,
    )


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
    frames = [text for text in case.block if _FILE.match(text) and not _JSONS_OWN.search(text)]
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
