"""The command line, the engine's texts, and what a command line comes to on a host."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmark.engine import flags, lifecycle
from benchmark.simulator import blueprint
from benchmark.simulator.launch import texts
from benchmark.simulator.launch.arguments import parse_arguments
from benchmark.simulator.launch.texts import EngineError, GpuMemory

CAPTURES = Path(__file__).parents[2] / "captures"
GIB = 1 << 30
MIB = 1 << 20
KIMI = ("--model-path", "kimi-k2.6", "--mem-fraction-static", "0.88", "--context-length", "32768")
HOST = "8x RTX PRO 6000 Blackwell"


class TestArguments:
    @pytest.mark.parametrize("release", flags.releases())
    def test_every_release_parses_the_campaigns_command_line(self, release: str) -> None:
        arguments = parse_arguments(
            [*KIMI, "--tp-size", "8", "--ep-size", "8", "--attention-backend", "triton", "--trust-remote-code",
             "--grammar-backend", "none", "--host", "127.0.0.1", "--port", "30001", "--max-running-requests", "64"],
            release,
        )  # fmt: skip
        assert (arguments["tp_size"], arguments["ep_size"], arguments["pp_size"]) == (8, 8, 1)
        assert arguments["trust_remote_code"] is True
        assert arguments["disable_cuda_graph"] in (False, None)
        assert arguments.engine()["mem_fraction_static"] == 0.88

    def test_an_alias_is_the_same_setting(self) -> None:
        for spelling in ("--tensor-parallel-size", "--tp-size", "--tp"):
            assert parse_arguments(["--model-path", "m", spelling, "4"], "0.5.11")["tp_size"] == 4

    def test_a_negative_form_turns_its_flag_off(self) -> None:
        for spelling, on in (("--record-nolora-graph", True), ("--no-record-nolora-graph", False)):
            assert parse_arguments(["--model-path", "m", spelling], "0.5.11")["record_nolora_graph"] is on

    def test_sizes_as_people_write_them(self) -> None:
        assert parse_arguments(["--model-path", "m", "--context-length", "128K"], "0.5.11")["context_length"] == 131072

    @pytest.mark.parametrize(
        ("arguments", "release", "words"),
        [
            (["--no-such-flag", "1"], "0.5.11", "sglang serve: error: unrecognized arguments: --no-such-flag 1"),
            (["--tp-size", "many"], "0.5.11", "invalid int value"),
            (["--attention-backend", "magic"], "0.5.11", "invalid choice: 'magic'"),
            (["--pp", "2"], "0.5.23", "ambiguous option: --pp"),
            (["--cuda-graph-max-bs", "8"], "0.5.23", "error:"),
        ],
    )
    def test_what_a_release_does_not_know_ends_with_2(
        self, arguments: list[str], release: str, words: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as end:
            parse_arguments(["--model-path", "m", *arguments], release)
        assert end.value.code == 2
        assert words in capsys.readouterr().err

    def test_the_line_of_all_arguments_is_read_back(self) -> None:
        arguments = parse_arguments([*KIMI, "--tp-size", "8", "--api-key", "s3cret"], "0.5.11")
        line = f"[2026-11-29 11:34:12] server_args={arguments.shown()}\n"
        assert "api_key='s3cret'" in line, "as the real engine prints it"
        seen = lifecycle.read_log(line)
        assert seen.figures["server_args"]["tp_size"] == 8
        assert seen.figures["server_args"]["mem_fraction_static"] == 0.88
        assert "s3cret" not in repr(seen)


class TestTexts:
    def test_out_of_memory_is_torchs_captured_line(self) -> None:
        lines = (CAPTURES / "failures/oom_weights.log").read_text().splitlines()
        captured = next(line.split("torch.OutOfMemoryError: ")[1] for line in lines if "OutOfMemoryError" in line)
        # The figures of the capture: 139.80 GiB, 128.22 in use, 127.51 of it by PyTorch, 45.79 MiB reserved.
        memory = GpuMemory(0, round(139.80 * GIB), round(0.71 * GIB), round(127.51 * GIB))
        ours = texts.out_of_memory(21 * GIB, memory, unallocated=round(45.79 * MIB))
        assert ours == captured.replace("11.57 GiB is free", "11.58 GiB is free")

    def test_other_processes_are_told_with_their_pids(self) -> None:
        memory = GpuMemory(2, 90 * GIB, GIB, 20 * GIB, ((77, 60 * GIB),), lost=8 * GIB)
        assert memory.free == GIB
        text = texts.out_of_memory(2 * GIB, memory)
        assert "1024.00 MiB is free. Process 77 has 60.00 GiB memory in use. Including non-PyTorch memory" in text

    @pytest.mark.parametrize(
        ("size", "text"), [(512, "512 bytes"), (704_643_072, "672.00 MiB"), (21 * GIB, "21.00 GiB"), (2048, "2.00 KiB")]
    )
    def test_sizes(self, size: int, text: str) -> None:
        assert texts.size_text(size) == text

    def test_every_place_gives_a_traceback_that_is_read_as_its_own(self) -> None:
        for where, stage in (("weights", "weights"), ("kv", "kv"), ("graphs", "graphs"), ("prefill", "ready")):
            error = EngineError(where, "torch.OutOfMemoryError: " + texts.out_of_memory(GIB, GpuMemory(0, GIB, 0, GIB)))
            log = f"[2026-11-29 11:49:55 TP0] Scheduler hit an exception: {error.traceback()}\n\n"
            failure = lifecycle.read_log(log).failure
            assert failure is not None and failure.stage == stage


def build(*arguments: str, release: str = "0.5.11", **environment: str) -> blueprint.Blueprint:
    return blueprint.build(parse_arguments([*KIMI, *arguments], release), HOST, environment)


class TestBlueprint:
    def test_ranks_of_a_split_in_sglangs_order(self) -> None:
        plan = build("--tp-size", "4", "--pp-size", "2", "--ep-size", "2")
        # sglang.md 1.2: stage 0 has GPUs 0 to 3; expert rank = tp rank // (tp/ep).
        assert [(rank.pp, rank.tp, rank.ep, rank.gpu) for rank in plan.ranks] == [
            (0, 0, 0, 0), (0, 1, 0, 1), (0, 2, 1, 2), (0, 3, 1, 3),
            (1, 0, 0, 4), (1, 1, 0, 5), (1, 2, 1, 6), (1, 3, 1, 7),
        ]  # fmt: skip
        assert plan.ranks[6].prefix == " PP1 TP2 EP1"
        assert plan.ranks[6].name == "sglang::scheduler_PP1_TP2_EP1"
        assert len(plan.stage_tensors) == 2
        assert build("--tp-size", "1").ranks[0].prefix == ""

    def test_visible_gpus_are_counted_and_ordered(self) -> None:
        plan = build("--tp-size", "2", CUDA_VISIBLE_DEVICES="6,3")
        assert [rank.gpu for rank in plan.ranks] == [6, 3]
        plan = build("--tp-size", "4", CUDA_VISIBLE_DEVICES="6,3")
        assert [rank.gpu for rank in plan.ranks] == [6, 3, -1, -1]
        assert [rank.gpu for rank in build("--tp-size", "8", "--pp-size", "2").ranks][7:10] == [7, -1, -1]

    def test_expert_groups_beyond_the_tensor_group(self) -> None:
        with pytest.raises(blueprint.Refused) as refused:
            build("--tp-size", "2", "--ep-size", "4")
        assert refused.value.args == ("spawn", "ZeroDivisionError: integer division or modulo by zero")

    def test_a_rule_of_the_arguments_and_one_of_the_ranks(self) -> None:
        with pytest.raises(blueprint.Refused, match="divisible by page_size"):
            build("--tp-size", "8", "--chunked-prefill-size", "100", "--page-size", "64")
        plan = build("--tp-size", "8", "--moe-a2a-backend", "deepep")
        assert plan.refusal is not None and "requires a fused func for a2a backend deepep" in plan.refusal
        assert build("--tp-size", "8").refusal is None

    def test_times_and_sizes_come_from_the_engine_model(self) -> None:
        plan = build("--tp-size", "8", "--ep-size", "8", "--max-running-requests", "64")
        assert plan.max_running_requests == 64
        assert 0 < plan.decode_seconds(1, 512) < plan.decode_seconds(64, 512)
        assert plan.prefill_seconds(8192, 0, 1, 1) > plan.prefill_seconds(512, 0, 1, 1)
        # 61 layers x 576 x 2 bytes.
        assert plan.kv_bytes_per_token == 70272
        assert plan.graph_batches == (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64)

    def test_a_folder_with_a_config(self) -> None:
        folder = CAPTURES / "models" / "mini-moe"
        arguments = parse_arguments(["--model-path", str(folder), "--mem-fraction-static", "0.7"], "0.5.11")
        plan = blueprint.build(arguments, "1x H200", {})
        assert plan.architecture == "DeepseekV3ForCausalLM"
        # The capture's own: 5.06 GiB of weights.
        assert plan.weights_bytes / GIB == pytest.approx(5.06, abs=0.02)
