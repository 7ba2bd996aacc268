"""Reading starts from logs: the captures, public reports (F2 to F4 of the project's case list), and wild input."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmark.engine import lifecycle

CAPTURES = Path(__file__).parents[2] / "captures"
STARTS = Path(__file__).parents[2] / "data" / "starts"
GIB = 1 << 30


def read(name: str) -> lifecycle.Lifecycle:
    return lifecycle.read_log((CAPTURES / name).read_text(encoding="utf-8"))


def failure_of(text: str) -> lifecycle.Failure:
    failure = lifecycle.read_log(text).failure
    assert failure is not None
    return failure


def crash(*lines: str, rank: str = "TP1") -> str:
    """A log in which a scheduler fails with these last lines."""
    body = "\n".join(lines)
    return (
        f"[2026-11-29 11:49:23] server_args=ServerArgs(model_path='/m', tp_size=8, ep_size=8, "
        f"mem_fraction_static=0.88, chunked_prefill_size=8192)\n"
        f"[2026-11-29 11:49:52 {rank}] Init torch distributed begin.\n"
        f"[2026-11-29 11:49:55 {rank}] Scheduler hit an exception: Traceback (most recent call last):\n"
        f'  File "/opt/sglang/srt/managers/scheduler.py", line 3918, in run_scheduler_process\n'
        f"    scheduler = Scheduler(\n{body}\n\n"
        "[2026-11-29 11:49:55] Received sigquit from a child process. It usually means the child failed.\n"
    )


class TestCapturedStarts:
    def test_a_whole_start_with_the_times_of_its_stages(self) -> None:
        seen = read("start-stop/mini.log")
        assert seen.stage == "ready"
        assert seen.failure is None
        # The log's own offsets (seconds since launch) less that of its first line, 13.71.
        assert dict(seen.stages) == {
            "process": 0.0,
            "distributed": pytest.approx(36.79 - 13.71),
            "weights": pytest.approx(39.03 - 13.71),
            "kv": pytest.approx(39.17 - 13.71),
            "graphs": pytest.approx(39.31 - 13.71),
            "kernels": pytest.approx(84.57 - 13.71),
            "warmup": pytest.approx(105.10 - 13.71),
            "ready": pytest.approx(118.72 - 13.71),
        }

    def test_its_figures(self) -> None:
        figures = read("start-stop/mini.log").figures
        # The table at the end of tests/captures/README.md.
        assert figures["weights_bytes"] == pytest.approx(5.062 * GIB, abs=0.005 * GIB)
        assert figures["kv_bytes"] == pytest.approx(92.305 * GIB, abs=0.006 * GIB)
        assert figures["kv_tokens"] == figures["max_total_num_tokens"] == 7_169_518
        assert figures["graph_bytes"] == pytest.approx(0.176 * GIB, abs=0.005 * GIB)
        assert figures["prefill_graph_bytes"] == int(0.47 * GIB)
        assert figures["available_before_load_bytes"] == int(139.13 * GIB)
        assert figures["available_after_load_bytes"] == int(134.06 * GIB)
        assert figures["max_running_requests"] == 64
        assert figures["context_length"] == 8192
        assert figures["server_args"]["mem_fraction_static"] == 0.7
        assert figures["server_args"]["host"] == "127.0.0.1"
        assert figures["server_args"]["port"] == 30001

    def test_one_kernel_that_compiled_for_405_seconds(self) -> None:
        seen = read("k2slice/k2slice.log")
        assert seen.stage == "ready"
        stages = dict(seen.stages)
        assert stages["warmup"] - stages["graphs"] == pytest.approx(459.99 - 54.06)
        assert seen.figures["weights_bytes"] == int(69.48 * GIB)
        assert seen.figures["kv_tokens"] == 5_679_122
        assert seen.figures["graph_bytes"] == int(0.22 * GIB)

    def test_two_ranks_with_prefixes(self) -> None:
        for name in ("two-gpus/tp2.log", "two-gpus/tp2ep2.log"):
            seen = read(name)
            assert seen.stage == "kv"
            assert seen.figures["weights_bytes"] == int(2.57 * GIB)
            assert seen.figures["kv_tokens"] == 5_170_605
            assert seen.figures["kv_bytes"] == int(66.57 * GIB)
            assert seen.figures["available_before_load_bytes"] == int(138.28 * GIB)

    def test_stages_of_a_pipeline_differ_and_the_fullest_counts(self) -> None:
        """pp2 and attention DP 2 of docs/evidence/several-gpus (fourth machine), NCCL's lines left out."""
        seen = lifecycle.read_log((STARTS / "pp2.log").read_text())
        assert seen.stage == "ready"
        assert seen.figures["weights_bytes"] == int(2.70 * GIB)
        assert seen.figures["kv_tokens"] == 10_323_157
        later_first = lifecycle.read_log("\n".join(reversed((STARTS / "pp2.log").read_text().splitlines())))
        assert later_first.figures["weights_bytes"] == int(2.70 * GIB)

    def test_attention_dp_tells_what_one_rank_runs(self) -> None:
        figures = lifecycle.read_log((STARTS / "dp2.log").read_text()).figures
        assert (figures["max_running_requests"], figures["kv_tokens"]) == (128, 5_146_635)
        assert figures["chunked_prefill_size"] == 4096

    def test_a_start_that_was_stopped_has_no_failure_of_its_own(self) -> None:
        seen = read("start-stop/k2slice_interrupted_jit.log")
        assert (seen.stage, seen.failure) == ("graphs", None)
        assert lifecycle.classify_exit(seen, -15, requested_stop=True) is None
        from_outside = lifecycle.classify_exit(seen, -15, requested_stop=False)
        assert from_outside is not None and from_outside.kind == "stopped_from_outside"

    def test_stages_early_in_a_start(self) -> None:
        assert lifecycle.read_log("") == lifecycle.Lifecycle(stage="process", stages=())
        seen = read("two-gpus/pp2.log")
        assert (seen.stage, seen.failure) == ("distributed", None)


class TestCapturedFailures:
    @pytest.mark.parametrize(
        ("name", "status", "kind", "stage", "may_pass"),
        [
            ("bad_flag", 2, "unknown_flag", "process", False),
            ("ep_not_dividing", 1, "ep_does_not_divide", "process", False),
            ("tp2_one_gpu", -9, "too_few_gpus", "distributed", False),
            ("oom_weights", -9, "out_of_memory_weights", "weights", False),
            ("oom_kv", -9, "out_of_memory_kv", "kv", False),
            ("graph_oom", -9, "out_of_memory_graphs", "graphs", False),
            ("load_oom", -9, "out_of_memory_running", "ready", False),
            ("killed", -9, "killed", "ready", True),
            ("no_model", 1, "no_model", "process", False),
            ("port_taken", None, "port_taken", "warmup", True),
        ],
    )
    def test_is_named_with_its_stage(self, name: str, status: int, kind: str, stage: str, may_pass: bool) -> None:
        seen = read(f"failures/{name}.log")
        failure = lifecycle.classify_exit(seen, status, requested_stop=False)
        assert failure is not None
        assert (failure.kind, failure.stage, failure.may_pass) == (kind, stage, may_pass)
        assert failure == seen.failure
        assert failure.evidence and failure.advice and failure.sentence.endswith(".")
        assert lifecycle.classify_exit(seen, status, requested_stop=True) is None

    @pytest.mark.parametrize(
        ("name", "evidence", "words"),
        [
            ("bad_flag", "unrecognized arguments: --no-such-flag 1", "--no-such-flag"),
            ("ep_not_dividing", "ZeroDivisionError", "tp 1, ep 2"),
            ("tp2_one_gpu", "invalid device ordinal", "takes 2 GPUs (tp 2 x pp 1), more than the engine can see"),
            ("oom_weights", "Tried to allocate 21.00 GiB", "11.57 GiB of 139.80 GiB were free"),
            ("oom_kv", "Please try to increase --mem-fraction-static", "weights take 5.06 of 139.13 GiB"),
            ("graph_oom", "torch.OutOfMemoryError", "20.00 MiB on GPU 0"),
            ("load_oom", "Tried to allocate 2.00 GiB", "in a prefill"),
            ("killed", "crashed with exit code -9", "pid 2671"),
            ("no_model", "HFValidationError", "/models/absent"),
            ("port_taken", "address already in use", "Port 30001"),
        ],
    )
    def test_shows_the_cause_first_and_says_it_in_words(self, name: str, evidence: str, words: str) -> None:
        failure = read(f"failures/{name}.log").failure
        assert failure is not None
        assert evidence in failure.evidence[0]
        assert words in failure.sentence

    def test_memory_at_start_and_under_load_get_opposite_advice(self) -> None:
        kv, graphs, running = (read(f"failures/{name}.log").failure for name in ("oom_kv", "graph_oom", "load_oom"))
        assert kv and graphs and running
        # 1 - 134.06/139.13 = 0.0364; two hundredths more, rounded up.
        assert kv.advice == "Raise --mem-fraction-static above 0.036, for example to 0.06."
        assert graphs.advice.startswith("Lower --mem-fraction-static from 0.995 to 0.97")
        assert running.advice.startswith(
            "Lower --mem-fraction-static from 0.97 to 0.93, or --chunked-prefill-size from 131072 to 8192"
        )

    def test_a_split_over_too_many_gpus_and_a_port_that_is_taken_get_the_next_in_numbers(self) -> None:
        gpus, port = (read(f"failures/{name}.log").failure for name in ("tp2_one_gpu", "port_taken"))
        assert gpus and gpus.advice.endswith("or take fewer (--tp-size 1).")
        assert port and "sglang_service_port to another, for example 30002" in port.advice

    def test_weights_that_do_not_fit_ask_for_more_gpus_and_leave_the_fraction_alone(self) -> None:
        failure = read("failures/oom_weights.log").failure
        assert failure is not None
        assert "--tp-size 2" in failure.advice
        assert "changes nothing" in failure.advice


MAY_PASS = {
    "blocked_by_others", "internal_port_taken", "nccl", "shared_memory", "gpu_fault", "disk_full", "host_memory",
    "crash",
}  # fmt: skip


class TestReportedFailures:
    """Messages of public reports and of newer releases, in the frame of a scheduler's failure."""

    @pytest.mark.parametrize(
        ("line", "kind"),
        [
            ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: "
             "mem_fraction_static=0.7", "out_of_memory_kv"),
            ("RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. "
             "pre_model_load_memory=19.22, local_gpu_memory=30.54, local_gpu_memory * 0.9=27.49",
             "blocked_by_others"),
            ("torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
             "address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE", "internal_port_taken"),
            ("AssertionError: Pipeline Parallel is not compatible with this model.", "unsupported"),
            ("NotImplementedError: Runner backend marlin requires a fused func for a2a backend deepep, but none is "
             "registered.", "unsupported"),
            ("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:93, unhandled cuda error",
             "nccl"),
            ("RuntimeError: NCCL error: failed to extend /dev/shm/nccl-03v824 to 4194660 bytes", "shared_memory"),
            ("OSError: unlink shared memory /dev/shm/nccl-d5rTd0 failed", "shared_memory"),
            ("FileNotFoundError: [Errno 2] No such file or directory: 'ninja'", "kernel_tool_missing"),
            ("RuntimeError: Ninja is required to load C++ extensions", "kernel_tool_missing"),
            ("/usr/bin/ld: cannot find -lcudart: No such file or directory", "kernel_compile"),
            ("fatal error: curand_kernel.h: No such file or directory", "kernel_compile"),
            ("RuntimeError: flashinfer-cubin version (0.6.8) does not match flashinfer version (0.6.9)",
             "version_mismatch"),
            ("huggingface_hub.errors.LocalEntryNotFoundError: Cannot find the requested files in the disk cache",
             "no_model"),
            ("OSError: /models/k2 does not appear to have a file named tiktoken.model.", "no_model"),
            ("safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge", "model_corrupt"),
            ("RuntimeError: CUDA driver version is insufficient for CUDA runtime version", "driver_mismatch"),
            ("RuntimeError: Failed to initialize NVML: Driver/library version mismatch", "driver_mismatch"),
            ("RuntimeError: No CUDA GPUs are available", "no_gpu"),
            ("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", "gpu_fault"),
            ("PermissionError: [Errno 13] Permission denied: '/opt/venv/bin/nvcc'", "permission_denied"),
            ("OSError: [Errno 28] No space left on device", "disk_full"),
            ("ModuleNotFoundError: No module named 'tiktoken'", "package_missing"),
            ("ValueError: Weight output_partition_size = 96 is not divisible by weight quantization block_n = 128.",
             "does_not_divide"),
            ("RuntimeError: CUDA error: peer access is not supported between these two devices", "p2p"),
            ("/bin/sh: 1: ninja: not found", "kernel_tool_missing"),
            ("/bin/sh: 1: /usr/local/cuda/bin/nvcc: not found", "kernel_tool_missing"),
            ("bash: line 1: nvcc: command not found", "kernel_tool_missing"),
            ("/bin/sh: 1: /opt/venv/bin/nvcc: Permission denied", "permission_denied"),
            ("FileNotFoundError: No such file or directory: /m/model-00031-of-00062.safetensors", "no_model"),
            ('FileNotFoundError: No such file or directory: "/m/model-00031-of-00062.safetensors"', "no_model"),
            ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display "
             "driver / cuda driver combination", "driver_mismatch"),
            ("Exception: flashinfer_python is installed with version 0.6.10, which is less than the minimum required "
             "version 0.6.12. Please uninstall the old version", "version_mismatch"),
            ("Exception: flashinfer_python with minimum required version 0.6.1 is not installed. Please",
             "version_mismatch"),
            ("Exception: sglang-kernel is installed with version 0.4.1, which is less than the minimum required "
             "version 0.4.2. Please reinstall", "version_mismatch"),
            ("torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device",
             "version_mismatch"),
            ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 304: OS call failed or operation not "
             "supported on this OS", "no_gpu"),
            ("RuntimeError: Failed to find C compiler. Please specify via CC environment variable or set "
             "triton.knobs.build.impl.", "kernel_tool_missing"),
            ("OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.",
             "kernel_tool_missing"),
            ("RuntimeError: Cannot find ptxas", "kernel_tool_missing"),
            ("OSError: It looks like the config file at '/m/config.json' is not a valid JSON file.", "model_corrupt"),
            ("ValueError: Following weights were not initialized from checkpoint: {'model.layers.60.mlp.up.weight'}",
             "no_model"),
            ("RuntimeError: CUDART error: invalid argument", "crash"),
            ("RuntimeError: something that nobody has seen before", "crash"),
        ],
    )  # fmt: skip
    def test_is_named(self, line: str, kind: str) -> None:
        failure = failure_of(crash(line))
        assert failure.kind == kind
        assert failure.may_pass is (kind in MAY_PASS)
        assert line[:60] in failure.evidence[0]

    @pytest.mark.parametrize(
        ("line", "sentence"),
        [
            ("/bin/sh: 1: /usr/local/cuda/bin/nvcc: not found",
             "A tool to build kernels is missing: /usr/local/cuda/bin/nvcc."),
            ("/bin/sh: 1: /opt/venv/bin/nvcc: Permission denied",
             "The service's user may not use /opt/venv/bin/nvcc."),
        ],
    )  # fmt: skip
    def test_a_build_that_stops_is_told_by_what_stopped_it(self, line: str, sentence: str) -> None:
        build = ("RuntimeError: Ninja build failed. Ninja output:", "[1/2] /opt/nvcc -c a.cu", "FAILED: a.o", line)
        assert failure_of(crash(*build, "ninja: build stopped: subcommand failed.")).sentence == sentence

    @pytest.mark.parametrize(
        ("line", "kind", "words"),
        [
            ('/f/x.cu(12): error: identifier "foo" is undefined', "kernel_compile", 'identifier "foo" is undefined'),
            ("/f/x.cpp:7:3: error: expected ';'", "kernel_compile", "expected ';'"),
            ("ptxas error   : Entry function uses too much shared data", "kernel_compile", "too much shared data"),
            ("/usr/bin/ld: x.o: undefined reference to `f'", "kernel_compile", "undefined reference to `f'"),
            ("c++: fatal error: Killed signal terminated program cc1plus", "host_memory", "(cc1plus) was killed"),
            ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)", "host_memory", "(cicc) was killed"),
            ("Killed", "host_memory", "a compiler was killed"),
            ("/tmp/x.s: fatal error: error writing to /tmp/cc.s: No space left on device", "disk_full", "disk is full"),
        ],
    )
    @pytest.mark.parametrize("logged", [True, False])
    def test_the_first_error_of_a_build_is_the_cause(self, line: str, kind: str, words: str, logged: bool) -> None:
        """In the exception's text, or in the log before it."""
        build = ("[1/2] /opt/nvcc -c x.cu", "FAILED: x.o", line, "1 error detected in the compilation of x.cu.",
                 "ninja: build stopped: subcommand failed.")  # fmt: skip
        log = "\n".join(build) + "\n" + crash("RuntimeError: Ninja build failed.")
        failure = failure_of(log if logged else crash("RuntimeError: Ninja build failed. Ninja output:", *build))
        assert (failure.kind, failure.may_pass) == (kind, kind in MAY_PASS)
        assert words in failure.sentence
        assert failure.evidence[0] == line
        assert ("MAX_JOBS=4" in failure.advice) == (kind == "host_memory")

    def test_a_build_that_names_nothing_is_told_without_empty_brackets(self) -> None:
        assert failure_of(crash("ninja: build stopped: subcommand failed.")).sentence == "A kernel did not compile."

    @pytest.mark.parametrize(
        ("file", "kind"),
        [
            ("sglang/srt/model_loader/weight_utils.py", "model_corrupt"),
            ("transformers/configuration_utils.py", "model_corrupt"),
            ("sglang/srt/configs/load_config.py", "crash"),
        ],
    )
    def test_json_that_is_cut_is_the_models_where_its_loader_reads_it(self, file: str, kind: str) -> None:
        frames = (f'  File "/v/{file}", line 7, in get', "    json.load(f)",
                  '  File "/usr/lib/python3.12/json/decoder.py", line 354, in raw_decode', "    raise x")  # fmt: skip
        line = "json.decoder.JSONDecodeError: Unterminated string starting at: line 1 column 3 (char 2)"
        failure = failure_of(crash(*frames, line))
        assert (failure.kind, failure.may_pass) == (kind, kind == "crash")

    def test_a_shard_that_is_missing_is_named(self) -> None:
        failure = failure_of(crash("FileNotFoundError: No such file or directory: /m/model-00031-of-00062.safetensors"))
        assert "(/m/model-00031-of-00062.safetensors)" in failure.sentence

    @pytest.mark.parametrize(
        ("line", "sentence"),
        [
            ("NVRM: Xid (PCI:0000:41:00): 79, pid=1234, GPU has fallen off the bus.", "A GPU failed (Xid 79)."),
            ("RuntimeError: Xid 119 GSP timeout", "A GPU failed (Xid 119)."),
            ("RuntimeError: GPU is lost", "A GPU failed (GPU is lost)."),
            ("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",
             "A GPU failed (uncorrectable ECC error)."),
        ],
    )  # fmt: skip
    def test_a_gpu_that_failed_is_told_with_its_xid(self, line: str, sentence: str) -> None:
        assert failure_of(crash(line)).sentence == sentence

    def test_an_argument_that_cuda_refuses_under_the_custom_all_reduce_is_a_peers_memory(self) -> None:
        frame = '  File "/opt/sglang/srt/distributed/device_communicators/custom_all_reduce.py", line 300, in create'
        failure = failure_of(
            crash(frame, "    lib.cudaIpcOpenMemHandle(h)", "RuntimeError: CUDART error: invalid argument")
        )
        assert (failure.kind, failure.may_pass) == ("p2p", False)

    @pytest.mark.parametrize(
        "line",
        [
            "torch.AcceleratorError: CUDA error: out of memory",
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `x`",
        ],
    )
    @pytest.mark.parametrize(
        ("frame", "kind", "stage", "may_pass"),
        [
            ("model_loader/loader.py", "out_of_memory_weights", "weights", False),
            ("mem_cache/memory_pool.py", "out_of_memory_pool", "kv", False),
            ("model_executor/cuda_graph_runner.py", "out_of_memory_graphs", "graphs", False),
            ("distributed/parallel_state.py", "blocked_by_others", "distributed", True),
        ],
    )
    def test_a_lack_of_memory_without_an_amount_is_named_by_its_place(self, line, frame, kind, stage, may_pass) -> None:
        failure = failure_of(crash(f'  File "/opt/sglang/srt/{frame}", line 1, in load', "    x()", line))
        assert (failure.kind, failure.stage, failure.may_pass) == (kind, stage, may_pass)

    def test_also_in_an_engine_that_ran(self) -> None:
        log = (
            "[2026-11-29 11:50:30] The server is fired up and ready to roll!\n"
            "[2026-11-29 11:50:55 TP1] Scheduler hit an exception: Traceback (most recent call last):\n"
            '  File "/opt/sglang/srt/managers/scheduler.py", line 1, in event_loop_overlap\n'
            "torch.AcceleratorError: CUDA error: out of memory\n"
        )
        failure = failure_of(log)
        assert (failure.kind, failure.stage, failure.may_pass) == ("out_of_memory_running", "ready", False)

    def test_the_first_prefill_is_the_warm_ups_and_not_under_load(self) -> None:
        """The frames of the event loop are the same; the log says that it was not ready."""
        log = (
            "[2026-11-29 11:50:00] server_args=ServerArgs(mem_fraction_static=0.9, chunked_prefill_size=8192)\n"
            "[2026-11-29 11:50:20 TP1] max_total_num_tokens=100, max_running_requests=3\n"
            "{}"
            "[2026-11-29 11:50:25 TP1] Scheduler hit an exception: Traceback (most recent call last):\n"
            '  File "/opt/sglang/srt/managers/scheduler.py", line 1, in event_loop_overlap\n'
            '  File "/opt/sglang/srt/model_executor/model_runner.py", line 1, in forward_extend\n'
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of "
            "94.97 GiB of which 432.31 MiB is free.\n"
        )
        first = failure_of(log.format(""))
        assert (first.kind, first.stage, first.may_pass) == ("out_of_memory_prefill", "warmup", False)
        assert "in its first prefill: an allocation of 2.00 GiB on GPU 1" in first.sentence
        # 0.9 - 0.04, and half of the chunk.
        assert "--mem-fraction-static from 0.9 to 0.86, or --chunked-prefill-size from 8192 to 4096" in first.advice
        later = failure_of(log.format("[2026-11-29 11:50:24] The server is fired up and ready to roll!\n"))
        assert (later.kind, later.stage) == ("out_of_memory_running", "ready")
        assert "in a prefill" in later.sentence
        # The end of a long log, without its start.
        assert failure_of("\n".join(log.format("").splitlines()[2:])).kind == "out_of_memory_running"

    def test_a_bare_assertion_is_told_by_its_source_line(self) -> None:
        failure = failure_of(crash("    assert num_heads % attn_tp_size == 0", "AssertionError"))
        assert (failure.kind, failure.may_pass) == ("refused", False)
        assert "assert num_heads % attn_tp_size == 0" in failure.sentence

    def test_a_mistake_in_somebody_elses_code_is_no_refusal(self) -> None:
        # As a hook of a user's own sitecustomize.py failed on one stage of a pipeline.
        log = (
            "[2026-11-29 18:00:32 PP0] Load weight begin. avail mem=138.84 GB\n"
            "[2026-11-29 18:00:32 PP0] Scheduler hit an exception: Traceback (most recent call last):\n"
            '  File "/opt/venv/site-packages/sglang/srt/managers/scheduler.py", line 3918, in run_scheduler_process\n'
            "    scheduler = Scheduler(\n"
            '  File "/opt/venv/site-packages/sglang/srt/model_loader/loader.py", line 682, in load_model\n'
            "    model = _initialize_model(\n"
            '  File "/opt/hooks/sitecustomize.py", line 41, in patched\n'
            "    width = self.embed_tokens.weight\n"
            "AttributeError: 'PPMissingLayer' object has no attribute 'weight'\n"
        )
        failure = failure_of(log)
        assert (failure.kind, failure.stage, failure.may_pass) == ("crash", "weights", True)
        assert "while loading weights with AttributeError" in failure.sentence
        assert "/opt/hooks/sitecustomize.py:41" in failure.sentence
        assert failure.evidence[0] == "AttributeError: 'PPMissingLayer' object has no attribute 'weight'"
        assert "not the engine's own" in failure.advice

    def test_a_key_that_the_engines_settings_do_not_have_is_a_refusal(self) -> None:
        log = (
            "[2026-11-29 18:00:32] Traceback (most recent call last):\n"
            '  File "/opt/venv/site-packages/sglang/srt/server_args.py", line 12, in __post_init__\n'
            "    table[name]\n"
            "KeyError: 'no_such_parser'\n"
        )
        assert failure_of(log).kind == "refused"

    def test_an_expert_group_that_leaves_ranks_out(self) -> None:
        failure = failure_of(crash("    assert self.cpu_group is not None", "AssertionError"))
        assert failure.kind == "ep_does_not_divide"

    def test_a_block_that_the_quantization_cannot_split(self) -> None:
        failure = failure_of(
            crash(
                "ValueError: For quantized MoE models, please make sure (moe_intermediate_size=1536 / moe_tp_size=8) % "
                "weight_block_size_n=128 == 0 where moe_tp_size is tp_size (8) divided by ep_size (1)."
            )
        )
        assert (failure.kind, failure.may_pass) == ("does_not_divide", False)
        # 1536 / 8 = 192 is one block of 128 and a half; 1536 / 4 = 384 is three: moe_tp 4 is tp 8 by ep 2.
        assert failure.sentence == "The engine refuses the split: 1536 / 8 is no multiple of 128."
        assert "a larger --ep-size, for example 2:" in failure.advice

    @pytest.mark.parametrize(
        ("line", "sentence", "advice"),
        [
            # 96 x 4 = 384 = 3 x 128: two ranks a stage, and ep 8 no longer fits into them.
            ("ValueError: Weight output_partition_size = 96 is not divisible by weight quantization block_n = 128.",
             "a rank's part of 96 is no multiple of 128", "4 times less: --tp-size 2 --ep-size 2 --pp-size 4."),
            ("AssertionError: Attention heads 64 must be divisible by tensor parallel size 3",
             "3 does not divide 64", "divides 64: 2 or 4."),
            ("AssertionError: 60 is not divisible by 8", "8 does not divide 60", "divides 60: 6 or 10."),
            ("AssertionError: chunked_prefill_size must be divisible by page_size",
             "chunked_prefill_size 8192 is no multiple of page_size 60", "--chunked-prefill-size that is a multiple of "
             "60, for example 8220."),
            ("AssertionError: tp_size must be divisible by dp_size", "tp_size 8 is no multiple of dp_size 3",
             "Use a --dp-size that divides 8: 2 or 4."),
            ("AssertionError: 0 is not divisible by 0", "a width does not divide what it splits", "choose widths"),
            ("AssertionError: num_heads must be divisible by width", "a width does not divide", "choose widths"),
        ],
    )  # fmt: skip
    def test_a_split_that_does_not_divide_is_told_with_one_that_does(self, line, sentence, advice) -> None:
        log = crash(line).replace("ep_size=8", "ep_size=8, page_size=60, dp_size=3")
        failure = failure_of(log)
        assert failure.kind == "does_not_divide"
        assert sentence in failure.sentence
        assert advice in failure.advice

    def test_the_newer_words_for_no_room_name_the_least_fraction_themselves(self) -> None:
        failure = failure_of(
            crash(
                "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.758. "
                "Raise --mem-fraction-static above 0.7652 (minimum viable = 1 - available/pre = 0.7652)."
            )
        )
        assert failure.kind == "out_of_memory_kv"
        assert "above 0.765" in failure.advice

    def test_another_process_is_named_by_its_pid_and_may_end(self) -> None:
        failure = failure_of(
            crash(
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 672.00 MiB. GPU 2 has a total capacity "
                "of 94.97 GiB of which 136.94 MiB is free. Process 4242 has 60.00 GiB memory in use. Including "
                "non-PyTorch memory, this process has 34.80 GiB memory in use."
            )
        )
        assert (failure.kind, failure.may_pass) == ("blocked_by_others", True)
        assert "60.00 GiB of GPU 2 (pid 4242)" in failure.sentence

    def test_the_first_traceback_counts_not_what_follows_from_it(self) -> None:
        first = crash("safetensors_rust.SafetensorError: Error while deserializing header", rank="TP3")
        then = crash("torch.distributed.DistBackendError: NCCL error: unhandled system error", rank="TP0")
        assert failure_of(first + then).kind == "model_corrupt"
        assert failure_of(then + first).kind == "model_corrupt", "a rank's NCCL error follows from another's failure"

    def test_a_rank_that_the_host_killed_while_loading(self) -> None:
        failure = failure_of(
            "[2026-11-29 11:49:55 TP0] Load weight begin. avail mem=93.89 GB\nTraceback (most recent call last):\n"
            '  File "engine.py", line 1, in x\n'
            "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), "
            "a common cause is the OS OOM killer.\n"
        )
        assert (failure.kind, failure.may_pass) == ("killed", True)
        assert "out-of-memory killer" in failure.sentence

    READY = "[2026-11-29 11:50:30] The server is fired up and ready to roll!\n"
    SEGMENTATION_FAULT = (
        "Fatal Python error: Segmentation fault\n\n"
        "Thread 0x00007f0000000001 (most recent call first):\n"
        '  File "/usr/lib/python3.12/threading.py", line 359 in wait\n\n'
        "Current thread 0x00007f0000000002 (most recent call first):\n"
        '  File "/opt/sglang/srt/layers/moe/fused_moe.py", line 77 in forward\n'
        '  File "/opt/sglang/srt/managers/scheduler.py", line 12 in event_loop_overlap\n\n'
        "Extension modules: numpy._core (total: 1)\n"
    )
    CRASHED = "[2026-11-29 11:50:31] Subprocess scheduler_2 (pid=12) crashed with exit code {}. Triggering SIGQUIT\n"

    def test_a_crash_of_native_code_is_told_with_the_frames_of_its_thread(self) -> None:
        noticed = self.CRASHED.format(-11)
        for log in (self.SEGMENTATION_FAULT + noticed, noticed + self.SEGMENTATION_FAULT):
            failure = failure_of(self.READY + log)
            assert (failure.kind, failure.stage, failure.may_pass) == ("crash", "ready", True)
            where = "/opt/sglang/srt/layers/moe/fused_moe.py:77"
            assert failure.sentence == f"The engine crashed (Segmentation fault) in {where}."
            assert failure.evidence[0] == "Fatal Python error: Segmentation fault"
            assert failure.evidence[1].endswith("line 77 in forward") and len(failure.evidence) == 3
            assert "out-of-memory" not in failure.advice

    @pytest.mark.parametrize(("code", "kind"), [(-9, "killed"), (-15, "killed"), (-11, "crash"), (-6, "crash")])
    def test_the_memory_killer_is_named_for_signal_9_alone(self, code: int, kind: str) -> None:
        failure = failure_of(self.CRASHED.format(code))
        assert (failure.kind, failure.may_pass) == (kind, True)
        assert ("out-of-memory killer" in failure.advice) == (code == -9)

    @pytest.mark.parametrize("code", [-6, -9])
    def test_an_abort_that_follows_from_an_exception_is_told_as_that(self, code: int) -> None:
        aborted = "terminate called after throwing an instance of 'c10::Error'\nFatal Python error: Aborted\n"
        line = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
        failure = failure_of(crash(line) + aborted + self.CRASHED.format(code))
        assert failure.kind == "crash"
        assert failure.evidence[0] == line

    def test_a_collective_that_timed_out(self) -> None:
        failure = failure_of(
            crash("RuntimeError: [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4)")
        )
        assert failure.kind == "communication_hang"

    def test_the_nearest_flag_of_the_usage_is_offered(self) -> None:
        usage = "usage: sglang serve [-h] --model-path MODEL_PATH\n     [--mem-fraction-static MEM_FRACTION_STATIC]\n"
        failure = failure_of(usage + "sglang serve: error: unrecognized arguments: --mem-fraction 0.8\n")
        assert "The nearest that it knows is --mem-fraction-static." in failure.sentence


class TestWhatIsNoFailure:
    @pytest.mark.parametrize(
        "line",
        [
            "[2026-11-29 11:34:31] Ignore import error when loading sglang.srt.models.x: No module named 'y'",
            "[2026-11-29 11:34:31 TP0] The memory capacity is unbalanced. Some GPUs may be occupied by others.",
            "host:1:1 [0] NCCL WARN NET/Plugin: Could not find: libnccl-net.so.",
            "[2026-11-29 11:34:31] WARNING: ninja not found, falling back",
            "[2026-11-29 11:34:31] Fail to set RLIMIT_NOFILE: current limit exceeds maximum limit",
            "UserWarning: peer access is not supported",
        ],
    )
    def test_a_remark(self, line: str) -> None:
        assert lifecycle.read_log(line + "\n").failure is None

    def test_a_requests_traceback_in_a_running_engine(self) -> None:
        text = (
            "[2026-11-29 11:35:51] The server is fired up and ready to roll!\n"
            "ERROR:    Exception in ASGI application\nTraceback (most recent call last):\n"
            '  File "x.py", line 1, in y\nRuntimeError: CUDA out of memory, said the client\n'
        )
        seen = lifecycle.read_log(text)
        assert (seen.stage, seen.failure) == ("ready", None)


class TestOddLogs:
    def test_progress_bars_escape_codes_and_stamps_behind_a_bar(self) -> None:
        text = (
            "[2026-11-29 11:34:10 TP0 EP0] Load weight begin. avail mem=93.89 GB\n"
            "Loading safetensors checkpoint shards:   0% Completed | 0/64 [00:00<?, ?it/s]\r"
            "\x1b[32mLoading safetensors checkpoint shards:  41% Completed | 26/64 [00:10<00:12]\x1b[0m\r"
            "Loading safetensors checkpoint shards:  42% Completed | 27/64[2026-11-29 11:34:55 TP1 EP1] Load weight "
            "end. elapsed=45.0 s, type=X, avail mem=22.02 GB, mem usage=71.87 GB.\r\n"
        )
        seen = lifecycle.read_log(text)
        assert seen.figures["weights_percent"] == 42
        assert seen.figures["weights_bytes"] == int(71.87 * GIB)
        assert dict(seen.stages) == {"process": 0.0, "weights": 0.0, "kv": 45.0}
        assert not any("\x1b" in line for line in seen.last_lines)

    def test_words_of_newer_releases_and_of_models_with_two_caches(self) -> None:
        seen = lifecycle.read_log(
            "Nov 29 11:34:00 gpu1 sglang[77]: [2026-11-29 11:34:00 TP0] Init parallel begin.\n"
            "Nov 29 11:34:10 gpu1 sglang[77]: [2026-11-29 11:34:10 TP0] KV Cache is allocated. dtype: torch.bfloat16, "
            "#tokens: 1000, K size: 1.50 GB, V size: 2.50 GB\n"
            "[2026-11-29 11:34:20 TP0] Capture target prefill CUDA graph begin. backend=x, avail mem=9\n"
            "[2026-11-29 11:34:21 TP0] Capture target prefill CUDA graph end. mem usage=0.50 GB, avail mem=8\n"
            "[2026-11-29 11:34:22 TP0] Capture target decode CUDA graph begin. bs=[1], avail mem=8\n"
            "[2026-11-29 11:34:29 TP0] Capture target decode CUDA graph end. mem usage=0.25 GB, avail mem=8\n"
        )
        assert [name for name, _ in seen.stages] == ["process", "distributed", "kv", "graphs"]
        assert seen.figures["kv_bytes"] == 4 * GIB
        assert seen.figures["graph_bytes"] == GIB // 4
        assert seen.figures["prefill_graph_bytes"] == GIB // 2

    def test_transports_are_counted(self) -> None:
        lines = [f"h:1:2 [0] NCCL INFO Channel 0{i}/0 : 0[0] -> 1[1] via P2P/CUMEM" for i in range(4)]
        lines += ["h:1:2 [0] NCCL INFO Channel 00 : 3[3] -> 4[4] via SHM/direct/direct"]
        lines += ["h:1:2 [0] NCCL INFO Channel 00/0 : 0[2] -> 1[3] [receive] via NET/Socket/0"]
        assert lifecycle.read_log("\n".join(lines)).transports == {"P2P/CUMEM": 4, "SHM": 1, "NET": 1}

    def test_no_secret_is_kept(self) -> None:
        text = crash("ValueError: bad api_key='s3cret' and token=t0ken1 in Bearer abcd.efgh, hf_AbCdEfGhIj")
        text += "[2026-11-29 11:35:00] server_args=ServerArgs(api_key='s3cret', admin_api_key=\"adm1n\")\n"
        shown = repr(lifecycle.read_log(text))
        for secret in ("s3cret", "adm1n", "t0ken1", "abcd.efgh", "hf_AbCdEfGhIj"):
            assert secret not in shown
        assert "#new-token: 8" in repr(lifecycle.read_log("Prefill batch, #new-token: 8"))

    def test_a_huge_log_is_bounded_in_what_is_kept_and_in_time(self) -> None:
        text = "[2026-11-29 11:34:10 TP0] Decode batch, #running-req: 1\n" * 200_000 + "x" * 3_000_000
        began = time.process_time()
        seen = lifecycle.read_log(text)
        assert time.process_time() - began < 5
        assert len(seen.last_lines) <= lifecycle.log.LAST_LINES
        assert all(len(line) <= 2000 for line in seen.last_lines)

    def test_half_a_line_and_what_follows_a_cut_are_no_sentence(self) -> None:
        head = crash("x").split("\nx\n")[0] + "\n    half of a sour"
        tail = "ce line\nmodel.layers.1 was loaded\n[2026-11-29 11:49:55 TP1] Process ended\n"
        text = lifecycle.joined(head, tail)
        assert text.splitlines()[-4:] == [
            "    scheduler = Scheduler(",
            "... (the middle of the log is left out) ...",
            "model.layers.1 was loaded",
            "[2026-11-29 11:49:55 TP1] Process ended",
        ]
        assert lifecycle.read_log(text).failure is None
        # Each half is cut where a line ends, a progress bar's among them.
        assert lifecycle.joined("a\rb", "c\r\nd") == f"a\r{lifecycle.LEFT_OUT}\n\nd"
        assert lifecycle.joined("a", "b") == f"{lifecycle.LEFT_OUT}\n"

    def test_a_stage_that_is_known_counts_from_the_cut_on(self) -> None:
        text = lifecycle.joined("[2026-11-29 11:49:52 TP0] Load weight begin. avail mem=93 GB\n", "\nstill here\n")
        assert lifecycle.read_log(text).stage == "weights"
        assert lifecycle.read_log(text, "graphs").stage == "graphs"
        assert lifecycle.read_log(text, "distributed").stage == "weights"
        # Nothing was left out.
        assert lifecycle.read_log("still here\n", "graphs").stage == "process"

    def test_the_first_traceback_is_found_before_ten_thousand_lines_of_noise(self) -> None:
        noise = '[2026-11-29 11:50:00] INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 503 Service Unavailable\n'
        assert failure_of(crash("OSError: [Errno 28] No space left on device") + noise * 10_000).kind == "disk_full"

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(
            st.one_of(
                st.text(max_size=60),
                st.sampled_from(
                    [
                        "Traceback (most recent call last):",
                        "[2026-11-29 11:34:10 TP0] ",
                        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate",
                        "\x1b[", "\r", "server_args=ServerArgs(", "KV Cache is allocated. #tokens: 9e9",
                        "[9999-99-99 99:99:99 TP0] Load weight begin. avail mem=--1", "NCCL INFO Channel 0/0 : via ",
                        "memory capacity is unbalanced =1.2.3, local_gpu_memory=..", "sigquit", "hit an exception",
                    ]
                ),
            )
        ),
        st.sampled_from(["\n", "\r", "\r\n", ""]),
    )  # fmt: skip
    def test_wild_text_never_raises(self, parts: list[str], joint: str) -> None:
        seen = lifecycle.read_log(joint.join(parts))
        assert seen.stage in lifecycle.STAGES
        assert lifecycle.classify_exit(seen, 1, requested_stop=False) is not None


class TestExits:
    @pytest.mark.parametrize(
        ("status", "kind"),
        [
            (-9, "killed"), (137, "killed"), (9, "killed"), ("SIGKILL", "killed"), ("KILL", "killed"),
            (-15, "stopped_from_outside"), (143, "stopped_from_outside"), (15, "stopped_from_outside"),
            (-11, "crash"), (139, "crash"), ("SEGV", "crash"),
            (2, "unknown_flag"), (0, "unknown"), (1, "unknown"), (None, "unknown"), ("exited", "unknown"),
            (126, "not_started"), (127, "not_started"),
        ],
    )  # fmt: skip
    def test_without_a_word_in_the_log(self, status: int | str | None, kind: str) -> None:
        failure = lifecycle.classify_exit(lifecycle.read_log(""), status, requested_stop=False)
        assert failure is not None and failure.kind == kind
        assert lifecycle.classify_exit(lifecycle.read_log(""), status, requested_stop=True) is None
