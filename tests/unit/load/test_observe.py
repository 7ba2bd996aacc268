"""What stands beside the client's times: counters, log, GPUs."""

import asyncio
import sys
from pathlib import Path

import pytest

from benchmark.load.observe import counters, log, telemetry

from .replay import CAPTURES

ROOT = Path(__file__).parents[3]


def endpoint(name):
    return (CAPTURES / "endpoints" / name).read_text().partition("\n")[2]


def test_captured_counters():
    found = counters.parse(endpoint("metrics.txt"))
    assert found["generation_tokens_total"] == 64
    assert found["prompt_tokens_total"] == 27
    assert found["cached_tokens_total"] == 2
    assert found["num_requests_total"] == 6


def test_difference_of_counters():
    before = {"generation_tokens_total": 64.0, "num_requests_total": 6.0}
    after = {"generation_tokens_total": 164.0, "num_requests_total": 8.0}
    assert counters.difference(before, after) == {"restarted": False, "generation_tokens": 100.0, "num_requests": 2.0}
    assert counters.difference({}, after) == {}


@pytest.mark.parametrize(
    "after",
    [{}, {"generation_tokens_total": 3.0}, {"generation_tokens_total": 80.0, "process_start_time_seconds": 9.0}],
)
def test_a_restart_is_seen(after):
    before = {"generation_tokens_total": 64.0, "process_start_time_seconds": 5.0}
    assert counters.difference(before, after) == {"restarted": True}


LINE = "[2026-11-29 11:45:30] Decode batch, #running-req: {}, #token: 9, cuda graph: True, gen throughput (token/s): {}"


def test_decode_steps():
    """Eight lines of 64 running at 16,000 tokens a second: 4 ms."""
    text = "\n".join([LINE.format(64, 16000.0)] * 8)
    assert log.summary(text)["decode_step_mean_seconds"] == pytest.approx(0.004)
    assert "decode_step_mean_seconds" not in log.summary("\n".join(text.splitlines()[:7]))


def test_decode_steps_without_prefills_between_them():
    """Of six lines the first one's stretch is not known, one holds a prefill, and one did not run all 64."""
    prefill = "[2026-11-29 11:45:30] Prefill batch, #new-seq: 1"
    rates = [(64, 1000.0), (64, 16000.0), None, (64, 8000.0), (64, 12800.0), (32, 6400.0), (64, 14545.4545)]
    text = "\n".join(prefill if rate is None else LINE.format(*rate) for rate in rates)
    found = log.summary(text, 64)
    assert found["decode_alone_lines"] == 3
    assert found["decode_alone_step_median_seconds"] == pytest.approx(64 / 14545.4545)
    # Another rank's prefill is none of this one's.
    ranks = text.replace("11:45:30]", "11:45:30 DP0 TP0]").replace("DP0 TP0] Prefill", "DP1 TP1] Prefill")
    assert log.summary(ranks, 64)["decode_alone_lines"] == 4


def test_a_line_of_a_pipeline_is_of_one_micro_batch():
    """Eight users over two stages on two H200s: lines of four; 5.5 ms between prefills (their TPOT: 8.6 with them)."""
    text = "\n".join([LINE.format(4, 1462.42)] * 8)
    found = log.summary(text, 8, stages=2)
    assert found["decode_step_mean_seconds"] == pytest.approx(8 / 1462.42)
    assert found["decode_alone_lines"] == 7
    assert found["log_running_mean"] == 8
    # One user is one micro-batch: 6.2 ms by 162 tokens a second.
    alone = "\n".join([LINE.format(1, 162.0)] * 8)
    assert log.summary(alone, 1, stages=2)["decode_step_mean_seconds"] == pytest.approx(1 / 162)


def test_lines_without_throughput_or_requests_do_not_count():
    assert log.summary("\n".join([LINE.format(0, 5.0), LINE.format(3, 0.0)] * 9)) == {}


def test_the_captured_log_has_no_compile_line_while_serving():
    text = (CAPTURES / "bench_serving" / "mini.log").read_text()
    served = text[text.index("fired up and ready to roll") :]
    assert "compile_lines" not in log.summary(served)


@pytest.mark.parametrize(
    "line",
    [
        # Captured here (tests/captures, docs/evidence), or from threads of sgl-project/sglang, flashinfer and pytorch.
        "Compiling num tokens (num_tokens=960):  14%|1         | 6/42 [00:13<00:50,  1.40s/it]",
        "[2026-11-29 15:48:30] Capture cuda graph bs [1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64]",
        "Capturing batches (avail_mem=18.00 GB):   0%|          | 0/20 [00:00<?, ?it/s]",
        "[2025-12-26 08:51:31 DP0 TP0 EP0] Try DeepGEMM JIT Compiling for <GEMM_NT_F8F8BF16> N=4096, K=4096",
        "[2025-12-26 08:51:31 DP0 TP0 EP0] [_compile_deep_gemm_one_type_all], kernel_type=<DeepGemmKernelType: 3>",
        "DeepGEMM warmup:  12%|#               | 1902/16384 [00:00<00:00, 19014.49it/s]",
        "2025-06-05 08:20:07,883 - INFO - flashinfer.jit: Loading JIT ops: batch_mla_attention_dtype_q_bf16",
        "[AutoTuner]: Tuning fp8_gemm: 100%|##########| 21/21 [00:00<00:00, 33.51profile/s]",
        "AUTOTUNE mm(512x768, 768x768)",
        "SingleProcess AUTOTUNE takes 5.1835 seconds",
        "Triton autotuning for function fused_moe_kernel finished after 2.31s",
        "[1/3] /usr/local/cuda/bin/nvcc --generate-dependencies-with-compile -MF marlin.cuda.o.d -x cu -c marlin.cu",
        "Emitting ninja build file /var/cache/torch_extensions/build.ninja...",
        "Loading extension module sgl_marlin...",
        "W1129 torch._dynamo hit config.recompile_limit (8)",
    ],
)
def test_lines_that_say_something_was_compiled(line):
    assert log.summary(line) == {"compile_lines": [line]}


@pytest.mark.parametrize(
    "line",
    [
        "[2026-11-29 15:48:51] Prefill batch, #new-seq: 1, #new-token: 512, input throughput (token/s): 6260.53",
        '[2026-11-29 15:48:51] INFO:     127.0.0.1:41234 - "POST /generate HTTP/1.1" 200 OK',
        "Using MoE kernel config with down_moe=False. Performance might be sub-optimal! Config file not found at "
        "/opt/sglang/srt/layers/moe/moe_runner/triton_utils/configs/triton_3_6_0/E=64,N=512.json",
        "[2026-11-29 15:48:51] KV cache pool is full. Retract requests. #retracted_reqs: 1",
    ],
)
def test_lines_that_say_no_such_thing(line):
    assert log.summary(line) == {}


def test_no_captured_log_of_serving_has_a_compile_line():
    for path in (ROOT / "docs/evidence/h200-one-gpu/logs").glob("sglang-mini.log"):
        served = path.read_text().split("fired up and ready to roll", 1)[1].split("SIGTERM received", 1)[0]
        assert "compile_lines" not in log.summary(served)


def test_log_window(tmp_path):
    path = tmp_path / "engine.log"
    path.write_text("nvcc before\n")
    window = log.LogWindow(path)
    window.open()
    with path.open("a") as file:
        file.write("inside: ninja -v\n")
    window.close()
    with path.open("a") as file:
        file.write("nvcc after\n")
    window.close()
    assert window.text() == "inside: ninja -v\n"
    assert window.summary() == {"compile_lines": ["inside: ninja -v"]}


def test_log_window_of_a_file_that_is_not_there(tmp_path):
    window = log.LogWindow(tmp_path / "none.log")
    window.open()
    window.close()
    assert window.summary() == {}


def gpu(watts=300.0, joules=None, **more):
    values = {
        "watts": watts, "joules": joules, "utilization": 90, "memory_utilization": 50, "memory_bytes": 10**10,
        "sm_mhz": 1800, "memory_mhz": 9000, "reasons": 0, "celsius": 60,
    }  # fmt: skip
    return {**values, **more}


HEAD = {"driver": "580", "gpus": [{"name": "X", "power_limit_watts": 600.0}, {"name": "X", "power_limit_watts": 600.0}]}


def samples(make, count=11, gap=1_000_000_000):
    """One sample a second."""
    return [{"at_ns": i * gap, "busy": 50 * i, "ticks": 200 * i, "gpus": make(i)} for i in range(count)]


def test_energy_by_power():
    """Two GPUs at 300 and 100 W for 10 s: 4,000 J."""
    found = telemetry.summary(HEAD, samples(lambda i: [gpu(300.0), gpu(100.0)]), 0, 10 * 10**9)
    assert found["energy_joules"] == pytest.approx(4000)
    assert found["power_watts_mean"] == pytest.approx(400)
    assert found["power_share_of_limit"] == pytest.approx(1 / 3)
    assert found["host_cpu_share"] == pytest.approx(0.25)


def test_memory_clocks():
    """9,000 and 6,000 MHz, of each GPU and on average."""
    found = telemetry.summary(HEAD, samples(lambda i: [gpu(), gpu(memory_mhz=6000)]), 0, 10**10)
    assert found["memory_clock_mhz_mean"] == pytest.approx(7500)
    assert [each["memory_clock_mhz_mean"] for each in found["gpus"]] == [9000, 6000]


def test_energy_by_the_counter_where_there_is_one():
    found = telemetry.summary(
        HEAD, samples(lambda i: [gpu(joules=1000.0 + 250 * i), gpu(joules=7.0 + 50 * i)]), 0, 10**10
    )
    assert found["energy_joules"] == pytest.approx(3000)


def test_only_the_chosen_gpus_count():
    found = telemetry.summary(HEAD, samples(lambda i: [gpu(300.0), gpu(100.0)]), 0, 10**10, gpus=[1])
    assert found["power_watts_mean"] == pytest.approx(100)
    assert [item["index"] for item in found["gpus"]] == [1]


def test_a_gap_blanks_the_energy_and_nothing_else():
    taken = [s for s in samples(lambda i: [gpu(), gpu()]) if s["at_ns"] not in (4 * 10**9, 5 * 10**9)]
    found = telemetry.summary(HEAD, taken, 0, 10**10)
    assert "energy_joules" not in found
    assert found["energy_unknown"] == "no sample for 3.0 s of the window"
    assert found["power_watts_mean"] == pytest.approx(600)


def test_only_samples_inside_the_window():
    found = telemetry.summary(HEAD, samples(lambda i: [gpu(100.0 * i), gpu(0.0)]), 3 * 10**9, 5 * 10**9)
    assert found["power_watts_mean"] == pytest.approx(400)


def test_throttling():
    found = telemetry.summary(HEAD, samples(lambda i: [gpu(reasons=0x40 if i < 5 else 0), gpu(reasons=0x4)]), 0, 10**10)
    assert found["throttled_share"] == {"hardware_thermal": pytest.approx(5 / 22), "power_cap": pytest.approx(0.5)}


def test_what_a_gpu_does_not_tell_is_left_out():
    nothing = dict.fromkeys(gpu())
    found = telemetry.summary(HEAD, samples(lambda i: [nothing, nothing]), 0, 10**10)
    assert found["utilization_mean"] is None
    assert found["energy_unknown"] == "GPU 0 tells neither energy nor power"


def test_absent_nvml_is_said_and_no_error():
    found = telemetry.summary({"absent": "no library"}, samples(lambda i: []), 0, 10**10)
    assert found["absent"] == "no library"
    assert found["host_cpu_share"] == pytest.approx(0.25)


def test_a_line_that_was_cut_off():
    assert telemetry.parse(b'{"absent":"x"}\n{"at_ns":1}\n{"at_') == ({"absent": "x"}, [{"at_ns": 1}])
    assert telemetry.parse(b"")[0] == {"absent": "the sampler did not start"}


FAKE = """
NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1
def nvmlInit(): pass
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(i): return i
def nvmlSystemGetDriverVersion(): return b"580.1"
def nvmlDeviceGetName(h): return "Fake"
def nvmlDeviceGetEnforcedPowerLimit(h): return 600000
def nvmlDeviceGetPowerUsage(h): return 250000
def nvmlDeviceGetTotalEnergyConsumption(h): raise RuntimeError("Not Supported")
class Rates: gpu, memory = 97, 40
def nvmlDeviceGetUtilizationRates(h): return Rates
class Memory: used = 7 * 10**10
def nvmlDeviceGetMemoryInfo(h): return Memory
def nvmlDeviceGetClockInfo(h, kind): return 1700 + kind
def nvmlDeviceGetCurrentClocksEventReasons(h): return 4
def nvmlDeviceGetTemperature(h, kind): return 71
def nvmlDeviceGetPcieThroughput(h, kind): return 1000 * (kind + 1)
"""


@pytest.mark.slow
def test_the_sampler_with_a_simulated_nvml(tmp_path, monkeypatch):
    (tmp_path / "fake_nvml.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("SHARDSWEEP_NVML", "fake_nvml")

    async def sample():
        found = telemetry.Telemetry(interval_seconds=0.02)
        await found.start()
        while found._file.seek(0, 2) < 5000:
            await asyncio.sleep(0.02)
        return telemetry.parse(await found.stop())

    head, taken = asyncio.run(sample())
    assert head["driver"] == "580.1"
    assert [item["power_limit_watts"] for item in head["gpus"]] == [600.0, 600.0]
    found = telemetry.summary(head, taken, taken[0]["at_ns"], taken[-1]["at_ns"])
    assert found["power_watts_mean"] == pytest.approx(500)
    assert found["sm_clock_mhz_mean"] == 1701
    assert found["pcie_to_gpu_bytes_per_second_mean"] == 2000 * 1024
    assert found["throttled_share"] == {"power_cap": 1.0}


def test_the_sampler_outlives_nobody():
    """Its standard input is closed at once: it ends after one sample."""
    import subprocess

    done = subprocess.run(
        [sys.executable, "-m", "benchmark.load.observe.sampler", "0.01"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=20,
    )
    head, taken = telemetry.parse(done.stdout)
    assert done.returncode == 0
    assert "absent" in head or "gpus" in head
    assert len(taken) == 1
