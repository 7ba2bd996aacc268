"""The environment of a configuration, checked and rendered: above all NCCL's variables.

NCCL reads integers with strtoll and words with strcmp, and says nothing when it cannot: `True` is 0, `32M`
is 32 bytes, `sys` is ignored. So a value is either rendered as NCCL will read it, or refused.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from .layout import Layout
from .unit import has_control_character
from .verdict import Rule, Verdict

ALLOW_LL128 = "SHARDSWEEP_ALLOW_LL128"
"""Set to true in a configuration's environment to allow LL128. It is not passed on to the engine."""

LEVELS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
# Old integers (NCCL 2.30.7, src/graph/paths.cc:243): 4 and everything above mean SYS.
_OLD_LEVELS = ("LOC", "PIX", "PXB", "PHB", "SYS")
_LEVEL_KEYS = ("NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_C2C_LEVEL")

_SWITCHES = frozenset(
    f"NCCL_{name}"
    for name in (
        "P2P_DISABLE", "P2P_DIRECT_DISABLE", "SHM_DISABLE", "IB_DISABLE", "CUMEM_HOST_ENABLE", "CUMEM_ENABLE",
        "GRAPH_REGISTER", "LOCAL_REGISTER", "IGNORE_CPU_AFFINITY", "IGNORE_DISABLED_P2P", "RAS_ENABLE",
        "NET_SHARED_BUFFERS", "NET_GDR_READ", "RUNTIME_CONNECT", "SET_THREAD_NAME", "TOPO_DUMP_FILE_RANK_ALL",
        "CHECKS_DISABLE", "CHECK_POINTERS", "GRAPH_MIXING_SUPPORT", "DMABUF_ENABLE", "WIN_ENABLE", "PXN_DISABLE",
        "COLLNET_ENABLE", "SHM_USE_CUDA_MEMCPY", "ALLOC_P2P_NET_LL_BUFFERS", "COMM_BLOCKING",
    )
)  # fmt: skip
_SIZES = frozenset(
    f"NCCL_{name}"
    for name in (
        "BUFFSIZE", "LL_BUFFSIZE", "LL128_BUFFSIZE", "P2P_NET_CHUNKSIZE", "P2P_PCI_CHUNKSIZE", "P2P_NVL_CHUNKSIZE",
        "MIN_NCHANNELS", "MAX_NCHANNELS", "MIN_CTAS", "MAX_CTAS", "MIN_P2P_NCHANNELS", "MAX_P2P_NCHANNELS",
        "NTHREADS", "NCHANNELS_PER_NET_PEER", "NSOCKS_PERTHREAD", "SOCKET_NTHREADS", "CGA_CLUSTER_SIZE",
        "MAX_NRINGS", "MIN_NRINGS", "NVLS_CHUNKSIZE",
    )
)  # fmt: skip
_NUMBERS = frozenset(
    f"NCCL_{name}"
    for name in (
        "NVLS_ENABLE", "SHM_MODE", "SHM_LOCALITY", "CROSS_NIC", "IB_TIMEOUT", "IB_RETRY_CNT", "IB_GID_INDEX",
        "IB_SL", "IB_TC", "IB_QPS_PER_CONNECTION", "IB_SPLIT_DATA_ON_QPS", "IB_AR_THRESHOLD",
        "IB_RELAXED_ORDERING", "IB_ADAPTIVE_ROUTING", "IB_PCI_RELAXED_ORDERING", "IB_CUDA_SUPPORT",
        "LL_THRESHOLD", "P2P_LL_THRESHOLD", "P2P_USE_CUDA_MEMCPY", "P2P_READ_ENABLE", "WORK_FIFO_BYTES",
        "WORK_FIFO_DEPTH", "CUMEM_MNNVL_ENABLE", "MNNVL_ENABLE", "NVB_DISABLE", "NVB_PRECONNECT",
        "LAUNCH_ORDER_IMPLICIT", "PROGRESS_APPENDOP_FREQ", "PROTO_FORCE", "LEGACY_CUDA_REGISTER",
    )
)  # fmt: skip
_TEXTS = frozenset(
    f"NCCL_{name}"
    for name in (
        "DEBUG_FILE", "DEBUG_SUBSYS", "GRAPH_FILE", "GRAPH_DUMP_FILE", "TOPO_FILE", "TOPO_DUMP_FILE", "CONF_FILE",
        "SOCKET_IFNAME", "SOCKET_FAMILY", "IB_HCA", "NET", "NET_PLUGIN", "TUNER_PLUGIN", "TUNER_CONFIG_FILE",
        "PROFILER_PLUGIN", "COMM_ID", "HOSTID", "LAUNCH_MODE", "RAS_ADDR", "CUMEM_HANDLE_TYPE",
        "IB_MERGE_NICS", "DEBUG_TIMESTAMP_FORMAT",
    )
)  # fmt: skip
_WORDS = {"NCCL_ALGO", "NCCL_PROTO", "NCCL_DEBUG", *_LEVEL_KEYS}
KNOWN = frozenset({*_SWITCHES, *_SIZES, *_NUMBERS, *_TEXTS, *_WORDS})

_ALGORITHMS = ("Ring", "Tree", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
_PROTOCOLS = ("LL", "LL128", "Simple")
_FUNCTIONS = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce", "alltoall", "gather", "scatter")
_DEBUG_LEVELS = ("VERSION", "WARN", "INFO", "ABORT", "TRACE")
_SAID_YES = frozenset({"true", "yes", "on"})
_SAID_NO = frozenset({"false", "no", "off"})

_NAME = Rule(
    "environment-name",
    "A variable's name",
    "A systemd unit takes names of letters, digits and underscores. NCCL's names are upper case.",
    "systemd.exec(5), Environment=",
    None,
    "Write the name in upper case, with underscores.",
)
_CONTROL = Rule(
    "environment-control-character",
    "No control characters in a value",
    "A line break in a value would start another line of the unit, and so another setting.",
    "systemd.exec(5), Environment=",
    None,
    "Take the line break or tab out of the value.",
)
_VALUE = Rule(
    "environment-value",
    "A value is text, a number or true/false",
    "The environment of a process holds text; a list or a mapping has none.",
    "environ(7)",
    None,
    "Write the text that the program should see.",
)
_BOOLEAN = Rule(
    "nccl-boolean",
    "NCCL's switches are 0 and 1",
    "NCCL reads `True` with strtoll and gets 0: the switch stays off, with no error. So true and false are "
    "rendered as 1 and 0.",
    "NCCL 2.30.7 src/misc/param.cc; ansible-collections/community.docker#156",
    "set by environment to 0",
    "Write 1 or 0.",
)
_NUMBER = Rule(
    "nccl-number",
    "NCCL's sizes are plain numbers",
    "NCCL reads `32M` as 32 bytes, `0x10` as 16 and `010` as 8, with no error. Sizes are bytes.",
    "NCCL 2.30.7 src/misc/param.cc; docs/userguide/source/env.rst",
    None,
    "Write the whole number of bytes or channels, in digits: 32 MiB is 33554432.",
)
_LEVEL = Rule(
    "nccl-level-word",
    "NCCL_P2P_LEVEL is a word in upper case",
    "NCCL compares the word letter by letter and ignores any other, with no log line: the default (PXB) then "
    "holds, and pairs of GPUs across a host bridge go through host memory. NODE is nvidia-smi's word, not NCCL's.",
    "NCCL 2.30.7 src/graph/paths.cc:243; docs/userguide/source/env.rst",
    None,
    "Write SYS to let all GPUs of the host talk directly.",
)
_OLD_LEVEL = Rule(
    "nccl-level-number",
    "Numbers of NCCL_P2P_LEVEL are legacy",
    "NCCL still reads numbers (0 LOC, 1 PIX, 2 PXB, 3 PHB, 4 and above SYS) and says that their meaning may "
    "change. The word is rendered instead.",
    "NCCL 2.30.7 src/graph/paths.cc:243; docs/userguide/source/env.rst",
    None,
    "Write the word.",
)
_P2P_CONTRADICTION = Rule(
    "nccl-p2p-contradiction",
    "P2P off and a P2P level",
    "NCCL_P2P_DISABLE is read first and wins: the level is then read by nothing.",
    "NCCL 2.30.7 src/graph/paths.cc:243",
    None,
    "Keep one: NCCL_P2P_LEVEL=SYS for direct transfers, or NCCL_P2P_DISABLE=1 as an experiment of its own.",
)
_ALGO = Rule(
    "nccl-algo",
    "NCCL_ALGO has a fixed set of words",
    "Since NCCL 2.24 an unknown word fails the start, and there is no way back to Ring: Tree alone leaves "
    "all-gather without an algorithm.",
    "NCCL docs/userguide/source/env.rst, NCCL_ALGO",
    "Unrecognized element token ... / No algorithm/protocol available for function ...",
    "Leave NCCL_ALGO unset, or write allreduce:tree to change one operation.",
)
_PROTO = Rule(
    "nccl-proto",
    "NCCL_PROTO has a fixed set of words",
    "LL, LL128 and Simple. An unknown word fails the start. LL alone is slow for long prompts.",
    "NCCL docs/userguide/source/env.rst, NCCL_PROTO",
    "Unrecognized element token ...",
    "Leave NCCL_PROTO unset.",
)
_LL128 = Rule(
    "nccl-ll128",
    "LL128 on PCIe may corrupt data",
    "NCCL leaves LL128 off over PCIe; naming it in NCCL_PROTO forces it on. NVIDIA warns of data corruption on "
    f"platforms that do not support it. `^LL` and `^Simple` force it, too. Allow it with {ALLOW_LL128}: true and check "
    "the answers.",
    "NCCL 2.30.7 src/graph/tuning.cc:515-540; docs/userguide/source/env.rst, NCCL_PROTO",
    None,
    f"Take LL128 out of NCCL_PROTO (^LL128, or Simple), or add {ALLOW_LL128}: true and compare answers with a run "
    "without it.",
)
_DEBUG = Rule(
    "nccl-debug",
    "NCCL_DEBUG has a fixed set of words",
    "VERSION, WARN, INFO or TRACE. Any other word is ignored and nothing is logged.",
    "NCCL docs/userguide/source/env.rst, NCCL_DEBUG",
    None,
    "Write INFO to record the transports once, WARN otherwise.",
)
_HOME = Rule(
    "nccl-file-home",
    "A file's whole path",
    "Only a shell makes a home folder of `~`. NCCL opens the path as it is written, and no folder has that name.",
    "NCCL docs/userguide/source/env.rst, NCCL_DEBUG_FILE",
    None,
    "Write the path from the root on, such as /var/log/nccl.%h.%p.log.",
)
_GRAPH_FILE = Rule(
    "nccl-graph-file",
    "A graph file needs every group to span all its GPUs",
    "NCCL applies NCCL_GRAPH_FILE to every communicator. A GPU of the file that is not in a group fails that "
    "group: tp4, an expert group of 2, context groups of 4 or data parallelism of attention or experts on 8 GPUs all "
    "have smaller groups, and the stages of a pipeline talk in pairs.",
    "NCCL 2.30.7 src/graph/search.cc:919",
    "XML Import Channel : dev ... not found. / ncclSystemError",
    "Use the graph file only with one group over all GPUs (tp8 with ep1 or ep8, no pp), or take it out.",
)
_SOCKETS = Rule(
    "nccl-shm-off",
    "Shared memory off",
    "Without shared memory (and without P2P between two GPUs) NCCL uses network sockets inside the host, which "
    "are far slower.",
    "NCCL docs/userguide/source/env.rst, NCCL_SHM_DISABLE",
    "via NET/Socket",
    "Leave NCCL_SHM_DISABLE unset.",
)
_CHANNELS = Rule(
    "nccl-channels",
    "Channel limits",
    "NCCL has at most 64 channels (since 2.25), and the smallest number cannot be above the largest.",
    "NCCL docs/userguide/source/env.rst, NCCL_MIN_NCHANNELS",
    None,
    "Set NCCL_MIN_NCHANNELS=8 alone, or neither.",
)
_UNKNOWN = Rule(
    "nccl-unknown",
    "A variable that NCCL does not have",
    "NCCL ignores names that it does not know, so a typing error changes nothing and measures nothing.",
    "NCCL docs/userguide/source/env.rst",
    None,
    "Check the spelling.",
)

RULES = (
    _NAME, _CONTROL, _VALUE, _BOOLEAN, _NUMBER, _LEVEL, _OLD_LEVEL, _P2P_CONTRADICTION, _ALGO, _PROTO, _LL128,
    _DEBUG, _HOME, _GRAPH_FILE, _SOCKETS, _CHANNELS, _UNKNOWN,
)  # fmt: skip


def transport(via: str) -> str:
    """What NCCL says after `via` in its log, in four words and P2P's rarer kinds.

    `P2P/CUMEM/read` -> P2P/CUMEM, `P2P/IPC` -> P2P/IPC, `SHM/direct/direct` -> SHM, `NET/Socket/0` -> NET.
    Source: NCCL 2.30.7 src/transport/{p2p,shm,net}.cc, the lines `Channel %02d ... via ...`.
    """
    kind, _, rest = via.partition("/")
    return f"{kind}/{rest.partition('/')[0]}" if kind == "P2P" and rest else kind


def visible_gpus(environment: Mapping[str, Any]) -> int | None:
    """GPUs that CUDA_VISIBLE_DEVICES names on each node; None if it is not set."""
    text = str(environment.get("CUDA_VISIBLE_DEVICES") or "").strip()
    return len({part.strip() for part in text.split(",") if part.strip()}) if text else None


def normalise_environment(
    environment: Mapping[str, Any] | None, layout: Layout | None = None, gpus_there: int | None = None
) -> tuple[dict[str, str], list[Verdict]]:
    """A configuration's environment as a unit should have it, and what is wrong with it.

    Empty values and null are left out (an empty NCCL_GRAPH_FILE fails the start), booleans become 0 and 1, old
    P2P levels become words. A refused value has a `reject` verdict and is left out.

    Args:
        layout: whose groups a graph file must suit; without one a graph file is a doubt.
        gpus_there: GPUs that the host has, which a graph file describes; the layout's number without it.
    """
    rendered: dict[str, str] = {}
    verdicts: list[Verdict] = []
    for name, value in (environment or {}).items():
        text, found = _render(str(name), value)
        verdicts += found
        if text and str(name) != ALLOW_LL128:
            rendered[str(name)] = text
    verdicts += _together(rendered, environment or {}, layout, gpus_there)
    refused = _refused_together(verdicts)
    return {name: text for name, text in rendered.items() if name not in refused}, verdicts


def _render(name: str, value: Any) -> tuple[str, list[Verdict]]:
    """One variable as text ("" to leave it out) and the verdicts on it alone."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        return "", [_NAME.verdict("reject", f"{name!r} is not a variable's name.")]
    if value is None:
        return "", []
    if isinstance(value, (Mapping, list, tuple, set)):
        return "", [_VALUE.verdict("reject", f"{name} is a {type(value).__name__}, not one value.")]
    text = ("1" if value else "0") if isinstance(value, bool) else str(value)
    if has_control_character(text):
        return "", [_CONTROL.verdict("reject", f"The value of {name} has a control character in it.")]
    if not text.strip():
        return "", []
    if not name.upper().startswith("NCCL_"):
        return text, []
    if name != name.upper():
        return "", [_NAME.verdict("reject", f"NCCL does not read {name}.", advice=f"Write {name.upper()}.")]
    return _nccl_value(name, value, text)


def _nccl_value(name: str, value: Any, text: str) -> tuple[str, list[Verdict]]:
    if name in _LEVEL_KEYS:
        return _level(name, value, text)
    if name in _SWITCHES or name in _NUMBERS:
        return _integer(name, text)
    if name in _SIZES:
        return _size(name, value, text)
    if name == "NCCL_ALGO":
        return _elements(name, text, _ALGORITHMS, _ALGO)
    if name == "NCCL_PROTO":
        return _elements(name, text, _PROTOCOLS, _PROTO)
    if name in _TEXTS and name.endswith("_FILE") and text.startswith("~"):
        return "", [_HOME.verdict("reject", f"{name}='{text}': NCCL does not read ~ as a home folder.")]
    if name == "NCCL_DEBUG":
        if text.strip().upper() in _DEBUG_LEVELS:
            return text.strip().upper(), []
        return "", [_DEBUG.verdict("reject", f"NCCL_DEBUG has no level '{text}'.")]
    if name not in KNOWN:
        # Of NCCL's variables that are not in the tables most are numbers; none is a word for yes, or has a suffix.
        if text.strip().lower() in _SAID_YES | _SAID_NO:
            return _integer(name, text)
        if re.fullmatch(r"\d+[kKmMgG](?:i?[bB])?", text):
            return _size(name, value, text)
        near = difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.88)
        if near:
            sentence = f"{name} is not one of NCCL's variables as far as known; {near[0]} is."
            return text, [_UNKNOWN.verdict("doubt", sentence, advice=f"Write {near[0]} if you meant it.")]
    return text, []


def _level(name: str, value: Any, text: str) -> tuple[str, list[Verdict]]:
    if text in LEVELS:
        return text, []
    if isinstance(value, int) and not isinstance(value, bool):
        text = str(value)
    if re.fullmatch(r"[0-9]+", text) and not isinstance(value, bool):
        word = _OLD_LEVELS[min(int(text), len(_OLD_LEVELS) - 1)]
        sentence = f"{name}={text} is an old number that means {word}; {word} is written instead."
        return word, [_OLD_LEVEL.verdict("note", sentence, advice=f"Write {name}: {word}.")]
    word = text.strip().strip("'\"").upper()
    advice = f"Write {name}: {word}." if word in LEVELS else f"Write one of {', '.join(LEVELS)}."
    shown = str(value) if isinstance(value, bool) else text
    return "", [_LEVEL.verdict("reject", f"NCCL would ignore {name}='{shown}' and say nothing.", advice=advice)]


def _integer(name: str, text: str) -> tuple[str, list[Verdict]]:
    """A switch or another number: words for true and false are taken, anything else that is no number is not."""
    word = text.strip().lower()
    if word in _SAID_YES or word in _SAID_NO:
        digit = "1" if word in _SAID_YES else "0"
        return digit, [_BOOLEAN.verdict("note", f"NCCL would read {name}='{text}' as 0; {digit} is written instead.")]
    if re.fullmatch(r"-?(0|[1-9][0-9]*)", text):
        if name in _SWITCHES and int(text) not in (-2, -1, 0, 1):
            return "", [_BOOLEAN.verdict("reject", f"{name} is a switch: 0 or 1, not {text}.")]
        return text, []
    rule, kind = (_BOOLEAN, "0 or 1") if name in _SWITCHES else (_NUMBER, "a plain number")
    return "", [rule.verdict("reject", f"{name}='{text}' is not {kind}; NCCL would read something else.")]


def _size(name: str, value: Any, text: str) -> tuple[str, list[Verdict]]:
    if isinstance(value, bool) or not re.fullmatch(r"[1-9][0-9]*", text):
        digits = re.match(r"\d+", text)
        read = f"NCCL would read {int(digits.group())}" if digits else "NCCL would read 0"
        if text.lower().startswith("0x"):
            read = "NCCL would read it as hexadecimal"
        return "", [_NUMBER.verdict("reject", f"{name}='{text}' is not a plain number above zero; {read}.")]
    return text, []


def _elements(name: str, text: str, words: tuple[str, ...], rule: Rule) -> tuple[str, list[Verdict]]:
    """NCCL_ALGO and NCCL_PROTO: `ring,tree`, `^tree`, `allreduce:tree;broadcast:ring`; case does not matter."""
    by_lower = {word.lower(): word for word in words}
    groups = []
    for group in text.split(";"):
        function, colon, tokens = group.rpartition(":")
        if colon and function.strip().lower() not in _FUNCTIONS:
            return "", [rule.verdict("reject", f"{name}='{text}': NCCL has no operation '{function.strip()}'.")]
        tokens = tokens.strip()
        sign = "^" if tokens.startswith("^") else ""
        chosen = [token.strip().lower() for token in tokens.removeprefix("^").split(",")]
        unknown = [token for token in chosen if token not in by_lower]
        if unknown:
            sentence = f"{name}='{text}' has '{unknown[0]}' in it; the words are {', '.join(words)}."
            return "", [rule.verdict("reject", sentence)]
        prefix = function.strip() + ":" if colon else ""
        groups.append(prefix + sign + ",".join(by_lower[token] for token in chosen))
    return ";".join(groups), []


def _together(
    rendered: Mapping[str, str], environment: Mapping[str, Any], layout: Layout | None, gpus_there: int | None
) -> Iterator[Verdict]:
    """What two variables, or one and the layout, make of each other."""
    if rendered.get("NCCL_P2P_DISABLE") == "1" and "NCCL_P2P_LEVEL" in rendered:
        level = rendered["NCCL_P2P_LEVEL"]
        sentence = f"NCCL_P2P_DISABLE=1 turns off what NCCL_P2P_LEVEL={level} allows; one of them is a mistake."
        yield _P2P_CONTRADICTION.verdict("reject", sentence)
    if rendered.get("NCCL_SHM_DISABLE") == "1":
        yield _SOCKETS.verdict("doubt", "NCCL_SHM_DISABLE=1 leaves sockets between GPUs without P2P.")
    yield from _protocols(rendered.get("NCCL_PROTO", ""), environment)
    yield from _algorithms(rendered.get("NCCL_ALGO", ""))
    yield from _channels(rendered)
    if "NCCL_GRAPH_FILE" in rendered:
        yield from _graph_file(layout, gpus_there)


def _protocols(text: str, environment: Mapping[str, Any]) -> Iterator[Verdict]:
    """`^LL` is no way around: it turns on, and so forces, every protocol that it does not name (NCCL 2.30.7
    src/graph/tuning.cc, parseList)."""
    named = []
    for part in filter(None, text.split(";")):
        words = part.rpartition(":")[2]
        listed = set(words.removeprefix("^").split(","))
        named.append(set(_PROTOCOLS) - listed if words.startswith("^") else listed)
    if any("LL128" in words for words in named):
        allowed = str(environment.get(ALLOW_LL128, "")).strip().lower() in ("1", *_SAID_YES)
        severity = "doubt" if allowed else "reject"
        yield _LL128.verdict(severity, f"NCCL_PROTO={text} forces LL128 on, which may corrupt data over PCIe.")
    if any(words == {"LL"} for words in named):
        yield _PROTO.verdict("doubt", f"NCCL_PROTO={text} leaves LL alone, which is slow for large messages.")


def _algorithms(text: str) -> Iterator[Verdict]:
    if text and ";" not in text and ":" not in text and not text.startswith("^") and "Ring" not in text.split(","):
        sentence = f"NCCL_ALGO={text} leaves all-gather and broadcast without an algorithm; the engine uses both."
        yield _ALGO.verdict("doubt", sentence)


def _channels(rendered: Mapping[str, str]) -> Iterator[Verdict]:
    for low, high in (("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"), ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS")):
        for name in (low, high):
            if name in rendered and int(rendered[name]) > 64:
                yield _CHANNELS.verdict("doubt", f"{name}={rendered[name]} is above NCCL's 64.")
        if low in rendered and high in rendered and int(rendered[low]) > int(rendered[high]):
            yield _CHANNELS.verdict("reject", f"{low}={rendered[low]} is above {high}={rendered[high]}.")


def _graph_file(layout: Layout | None, gpus_there: int | None) -> Iterator[Verdict]:
    if layout is None:
        yield _GRAPH_FILE.verdict("doubt", "NCCL_GRAPH_FILE fails every group that has not all GPUs of the file.")
        return
    everyone = max(layout.gpus, gpus_there or 0)
    sizes = {
        "tensor-parallel": layout.tp,
        # Neighbours send and receive in a communicator of their own, however many stages there are.
        "pipeline": 2 if layout.pp > 1 else 1,
        "expert": layout.ep,
        "expert data-parallel": layout.moe_dp,
        "expert tensor-parallel": layout.tp // max(1, layout.ep * layout.moe_dp),
        "attention context": layout.attention_cp,
        "attention tensor-parallel": layout.tp // max(1, layout.attention_dp * layout.attention_cp),
        "decode context": layout.dcp,
    }
    small = [f"{kind} groups of {size}" for kind, size in sizes.items() if 1 < size < everyone]
    if small:
        sentence = f"NCCL_GRAPH_FILE describes {everyone} GPUs, and this split has {', '.join(small)}."
        yield _GRAPH_FILE.verdict("reject", sentence)


def _refused_together(verdicts: list[Verdict]) -> set[str]:
    """Variables that must not be rendered because of what they are together."""
    refused = {verdict.rule for verdict in verdicts if verdict.severity == "reject"}
    names: set[str] = set()
    names |= {"NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"} if _P2P_CONTRADICTION.id in refused else set()
    names |= {"NCCL_PROTO"} if _LL128.id in refused else set()
    names |= {"NCCL_GRAPH_FILE"} if _GRAPH_FILE.id in refused else set()
    return names
