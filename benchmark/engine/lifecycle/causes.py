"""The taxonomy: patterns of the log, and the failure that each of them is.

Each id is stable. Sources: the captures of this project, SGLang 0.5.11 and 0.5.23, and public issues.
"""

from __future__ import annotations

import re

from . import memory, special, widths
from .failure import Builder, plain

# In the order of their trust where one line fits several.
CAUSES: tuple[tuple[re.Pattern[str], Builder], ...] = (
    (
        re.compile(r"^(?:[\w. -]+: )?error: unrecognized arguments: (.+)"),
        special.unknown_flag,
    ),
    (
        re.compile(r"^(?:[\w. -]+: )?error: ((?:argument|ambiguous option|the following arguments|one of).+)"),
        plain(
            "bad_flag_value",
            "The engine refuses its command line: {0}.",
            "Correct the flag or its value.",
            stage="process",
        ),
    ),
    (
        re.compile(r"address \('[^']*', (\d+)[^)]*\): (?:\[errno 98\] )?address already in use", re.IGNORECASE),
        special.port,
    ),
    (
        re.compile(
            r"(?:EADDRINUSE|Address already in use|server socket has failed to listen).{0,200}?(?:port:? ?(\d+))?",
            re.IGNORECASE,
        ),
        plain(
            "internal_port_taken",
            "A port between the engine's own processes is in use ({0}).",
            "Set --nccl-port or --dist-init-addr outside net.ipv4.ip_local_port_range, then start again.",
            may_pass=True,
        ),
    ),
    (
        re.compile(
            r"memory capacity is unbalanced.*?(?:=(\d{1,9}(?:\.\d+)?), local_gpu_memory=(\d{1,9}(?:\.\d+)?))?(?:,|$)",
            re.IGNORECASE,
        ),
        memory.unbalanced,
    ),
    (
        re.compile(
            r"Not enough memory\. Please try to increase|leave no GPU memory for the KV pool"
            r"|leave no GPU memory for the KV cache",
            re.IGNORECASE,
        ),
        memory.no_room_for_kv,
    ),
    (memory.OUT_OF_MEMORY, memory.out_of_memory),
    (memory.OUT_OF_MEMORY_UNSIZED, memory.out_of_memory_unsized),
    (
        re.compile(r"^ZeroDivisionError: integer (?:division or )?modulo by zero|^ZeroDivisionError: integer division"),
        special.zero_division,
    ),
    (re.compile(r"^\s*assert self\.cpu_group is not None"), special.group_missing),
    (
        re.compile(r"invalid device ordinal|GPU device may be out of range", re.IGNORECASE),
        widths.too_few_gpus,
    ),
    (
        re.compile(
            r"must be (?:an? )?divisible|is not divisible by|please make sure \(.*\) ?% ?\w+(?:=\d+)? == 0",
            re.IGNORECASE,
        ),
        widths.does_not_divide,
    ),
    (
        re.compile(
            r"Pipeline Parallel(?:ism)? is not compatible|does not support pipeline parallel"
            r"|requires a fused func for a2a backend|NotImplementedError: (.+)",
            re.IGNORECASE,
        ),
        plain(
            "unsupported",
            "The engine does not support this combination for this model. {0}",
            "Use another backend or split, or a release that supports it; trying again changes nothing.",
        ),
    ),
    (
        re.compile(
            r"SafetensorError: (.+)|(incomplete metadata, file not fully covered)|(PytorchStreamReader failed.+)"
            r"|(Error while deserializing header.+)"
            r"|looks like the config file at '([^']{1,300})' is not a valid JSON file",
            re.IGNORECASE,
        ),
        plain(
            "model_corrupt",
            "A file of the model cannot be read: {0}{1}{2}{3}{4}.",
            "Compare the files with model.safetensors.index.json and their checksums; fetch what is short again.",
            stage="weights",
        ),
    ),
    (re.compile(r"^(?:json\.decoder\.)?JSONDecodeError: (.+)|^Exception: (EOF while parsing .+)"), special.broken_json),
    (
        re.compile(
            r"HFValidationError: |is not a local folder and is not a valid model identifier"
            r"|^OSError: (?:Repo id must be|.* does not appear to have|Can't load|We couldn't connect)"
            r"|LocalEntryNotFoundError|OfflineModeIsEnabled|Cannot find any model weights|RepositoryNotFoundError"
            r"|Following weights were not initialized from checkpoint"
            # Without quotes as safetensors prints it since 0.8, with double ones before.
            r"|GatedRepoError|No such file or directory: [\"']?[^\"']*(?:config\.json|tokenizer|\.safetensors)",
        ),
        special.no_model,
    ),
    (
        re.compile(
            r"Driver/library version mismatch|forward compatibility was attempted on non supported HW"
            r"|CUDA driver version is insufficient|NVIDIA driver on your system is too old"
            r"|system has unsupported display driver",
            re.IGNORECASE,
        ),
        plain(
            "driver_mismatch",
            "The NVIDIA driver does not match: its kernel module and libraries differ, or it is too old.",
            "Reboot the host (an upgrade replaced the driver under a running kernel), or install a newer driver.",
        ),
    ),
    (
        re.compile(
            r"No CUDA GPUs are available|no CUDA-capable device|CUDA error: (?:initialization error"
            r"|unknown error|system not yet initialized)|cuInit.*failed|Found no NVIDIA driver"
            # Error 304, of a unit that hides /proc.
            r"|OS call failed or operation not supported on this OS",
            re.IGNORECASE,
        ),
        plain(
            "no_gpu",
            "The engine sees no usable GPU.",
            "Look at nvidia-smi as the service's user, CUDA_VISIBLE_DEVICES, and the unit's device settings "
            "(PrivateDevices, DeviceAllow, ProcSubset).",
        ),
    ),
    (
        re.compile(
            # The kernel's line names the GPU by its PCI address, and then the number.
            r"\bXid\b(?: \(PCI:[^)]{0,40}\))?\D{0,40}?(?P<xid>\d{1,3})\b"
            r"|(?P<word>GPU is lost|fallen off the bus|uncorrectable ECC error)",
            re.IGNORECASE,
        ),
        special.gpu_fault,
    ),
    (
        re.compile(
            # As Python says it, as a shell does (`/bin/sh: 1: ninja: not found`), as PyTorch and Triton do.
            r"(?:No such file or directory: '([^']*(?:ninja|nvcc|gcc|g\+\+)[^']*)'"
            r"|(?<![\w./+-])((?:[\w./+-]{0,300}/)?(?:ninja|nvcc|ptxas|cicc|gcc|[gc]\+\+))(?:: command|:)? not found"
            r"|(Ninja) is required|Could not find (nvcc)|Cannot find (ptxas))",
            re.IGNORECASE,
        ),
        plain(
            "kernel_tool_missing",
            "A tool to build kernels is missing: {0}{1}{2}{3}{4}.",
            "Put the venv's bin and CUDA's bin on the unit's PATH and set CUDA_HOME; check it with that environment.",
        ),
    ),
    (
        re.compile(r"Error: Failed to find C compiler"),
        plain(
            "kernel_tool_missing",
            "A tool to build kernels is missing: Triton finds no C compiler.",
            "Install gcc on the host, or set CC in the configuration's environment.",
        ),
    ),
    (
        re.compile(r"Error: CUDA_HOME environment variable is not set"),
        plain(
            "kernel_tool_missing",
            "A tool to build kernels is missing: CUDA_HOME is not set, so nvcc is not found.",
            "Set CUDA_HOME to CUDA's folder (the role cuda installs it), and put its bin on the unit's PATH.",
        ),
    ),
    (
        # As gcc says it of what it started, as nvcc does.
        re.compile(r"Killed signal terminated program (\S{1,100})|'([^']{1,100})' died due to signal 9"),
        special.compiler_killed,
    ),
    (
        re.compile(
            r"cannot find -l(\w+)|fatal error: (\S+): No such file|(\S+\.h): No such file or directory",
            re.IGNORECASE,
        ),
        plain(
            "kernel_compile",
            "A kernel did not compile ({0}{1}{2}).",
            "The first error line names what is missing: a CUDA library or header package, or a link to one.",
        ),
    ),
    (
        re.compile(
            r"flashinfer.*version.*(?:mismatch|does not match|>=|is required)"
            r"|sgl.?kernel.*(?:version|is installed with).*(?:required|less than|>=|mismatch)"
            # SGLang's own check, of any package.
            r"|: \S{1,99} is installed with version \S{1,99}, which is less than the minimum required"
            r"|: \S{1,99} with minimum required version \S{1,99} is not installed",
            re.IGNORECASE,
        ),
        plain(
            "version_mismatch",
            "Two of the engine's packages do not belong together.",
            "Install the engine again from its lock, so that all its kernels have the versions it was built with.",
        ),
    ),
    (
        re.compile(r"no kernel image is available for execution on the device", re.IGNORECASE),
        plain(
            "version_mismatch",
            "A kernel of the engine's packages was not built for this GPU.",
            "Install a release, or wheels, built for its compute capability (nvidia-smi --query-gpu=compute_cap "
            "--format=csv); where one backend's kernels alone are meant, choose another backend.",
        ),
    ),
    (
        re.compile(r"^(?:ModuleNotFoundError|ImportError): (.+)"),
        plain("package_missing", "A Python package is missing or broken: {0}.", "Install the engine from its lock."),
    ),
    (
        re.compile(
            r"(?:unlink shared memory|failed to (?:extend|open)|Error while creating shared memory|"
            r"while (?:attaching to|creating) shared memory).{0,40}(/dev/shm/\S*)",
            re.IGNORECASE,
        ),
        plain(
            "shared_memory",
            "NCCL could not use its shared memory ({0}).",
            "Make /dev/shm larger, or run as a system service: logind removes a user's segments at logout (RemoveIPC).",
            may_pass=True,
        ),
    ),
    (
        re.compile(
            r"(?:peer access is not supported|P2P.*(?:not supported|failed|disabled)|CUDA error: peer|"
            r"invalid argument.*custom_all_?reduce|custom_all_?reduce.*invalid argument)",
            re.IGNORECASE,
        ),
        special.p2p,
    ),
    (re.compile(r"CUD(?:A|ART) error: ?invalid argument", re.IGNORECASE), special.p2p_by_its_frames),
    (
        re.compile(r"MemoryError\b|Cannot allocate memory|oom-kill|Out of memory: Killed process", re.IGNORECASE),
        plain(
            "host_memory",
            "The host ran out of memory.",
            "Free host memory, or load with fewer threads; look at the unit's MemoryMax.",
            may_pass=True,
        ),
    ),
    (
        re.compile(r"No space left on device|Disk quota exceeded", re.IGNORECASE),
        plain(
            "disk_full", "A disk is full.", "Free space for caches, logs and kernels, then start again.", may_pass=True
        ),
    ),
    (
        re.compile(
            r"^PermissionError: (.+)|Permission denied: ?'?([^']*)|(?<!\S)(\S{1,300}): Permission denied",
            re.IGNORECASE,
        ),
        plain(
            "permission_denied",
            "The service's user may not use {0}{1}{2}.",
            "Check owner and mode as that user (a wheel's binaries may be executable by their owner only).",
        ),
    ),
    (
        re.compile(
            r"^\S{1,400}\.(?:cuh?|c|cc|cpp|cxx|h|hpp|inl)(?:\(\d+\)|:\d+(?::\d+)?): (?:catastrophic |fatal )?"
            r"error\b[^:]{0,20}: (.+)"
            r"|^(?:nvcc|ptxas|nvlink|cicc)\s+(?:fatal|error)\s*: (.+)"
        ),
        special.compile_error,
    ),
    (re.compile(r"ninja: build stopped"), special.build_stopped),
)

CONSEQUENCES: tuple[tuple[re.Pattern[str], Builder], ...] = (
    (
        re.compile(r"waiting for clients\. (\d+)/(\d+) clients joined"),
        plain(
            "nodes_missing",
            "Only {0} of {1} ranks met: the others never reached the first node.",
            "Look at the other nodes; see that the first one's address and port (sglang_service_node_address) are open "
            "to them.",
            may_pass=True,
        ),
    ),
    (
        re.compile(r"client socket has (?:timed out|failed).{0,200}?connect to \(([^)]+)\)", re.IGNORECASE),
        plain(
            "first_node_missing",
            "The first node does not answer at {0}.",
            "Look at the first node's log; see that its address and port (sglang_service_node_address) are open to the "
            "others.",
            may_pass=True,
        ),
    ),
    (
        re.compile(
            r"gloo.*Connection (?:closed|reset) by peer|ncclRemoteError"
            r"|remote process exited or there was a network error",
            re.IGNORECASE,
        ),
        plain(
            "peer_lost",
            "A rank on another node is gone, or the network between the nodes is.",
            "Look at the logs of the other nodes: the one that ended first says why.",
            may_pass=True,
        ),
    ),
    (
        re.compile(
            r"Watchdog caught collective operation timeout|(?:NCCL|collective).*time[d]? ?out"
            r"|Scheduler watchdog timeout|watchdog timeout",
            re.IGNORECASE,
        ),
        plain(
            "communication_hang",
            "A collective between the GPUs did not end.",
            "Check P2P between all pairs (ACS, IOMMU); try NCCL_P2P_DISABLE=1 or NCCL_NVLS_ENABLE=0.",
            may_pass=True,
        ),
    ),
    (
        re.compile(
            r"(?:DistBackendError|NCCL (?:error|WARN)|ncclUnhandledCudaError|ncclSystemError|ncclInternalError"
            r"|ncclInvalidUsage|unhandled (?:cuda|system) error)(.*)",
            re.IGNORECASE,
        ),
        plain(
            "nccl",
            "NCCL failed: {0}.",
            "Start once with NCCL_DEBUG=INFO; look at P2P, /dev/shm and the NCCL version.",
            may_pass=True,
        ),
    ),
    (re.compile(r"Error building extension '([^']{1,100})'"), special.compile_error),
    (re.compile(r"^Fatal Python error: (.+)"), special.fatal_error),
    (re.compile(r"Subprocess scheduler_?(\d*) \(pid=(\d+)\) crashed with exit code (-?\d+)"), special.killed),
    (re.compile(r"Rank (\d+) scheduler died during initialization \(exit code: (-?\d+)\)"), special.rank_died),
)
