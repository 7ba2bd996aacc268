"""Checks of the GPUs: captures are healthy hosts; what is wrong comes from public reports, named beside each."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmark.host.preflight import cards, smi
from benchmark.host.preflight.cards import Holder

CAPTURES = Path(__file__).parents[2] / "captures"
GIB = 1 << 30
HEALTHY = {
    "index": "0", "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition", "pci.bus_id": "00000000:06:00.0",
    "memory.total": "97887 MiB", "memory.used": "3 MiB", "driver_version": "595.58.03", "compute_cap": "12.0",
    "pcie.link.gen.current": "1", "pcie.link.gen.max": "5", "pcie.link.width.current": "16",
    "pcie.link.width.max": "16", "persistence_mode": "Enabled", "mig.mode.current": "Disabled",
    "ecc.mode.current": "Enabled", "ecc.errors.uncorrected.volatile.total": "0", "power.draw": "24.10 W",
    "power.limit": "600.00 W", "power.default_limit": "600.00 W", "utilization.gpu": "0 %",
    "clocks_event_reasons.active": "0x0000000000000001",
}  # fmt: skip


def gpus(*changes: dict[str, str]) -> list[smi.Row]:
    """GPUs in good order but for the changes; an idle one of them shows PCIe generation 1 of 5."""
    return [smi.Row(HEALTHY | {"index": str(place)} | change) for place, change in enumerate(changes or ({},))]


@pytest.mark.parametrize("capture", ["host/nvidia-smi", "two-gpus"])
def test_real_hosts_in_good_order(capture):
    # The captured query did not ask for two of the fields; `nvidia-smi -q` of the same host tells them: no error, idle.
    table = (CAPTURES / capture / "query.csv").read_text().strip().splitlines()
    more = ["ecc.errors.uncorrected.volatile.total, clocks_event_reasons.active"] + ["0, 0x0000000000000001"] * 2
    rows = smi.rows("\n".join(f"{line}, {cells}" for line, cells in zip(table, more, strict=False)))
    for check in (cards.link_width, cards.link_generation, cards.mig, cards.persistence, cards.power, cards.slowed):
        assert check(rows).verdict == "ok", check
    assert cards.alike(rows).seen == f"{len(rows)} x NVIDIA H200, 143771 MiB"
    assert cards.memory(rows, [], GIB).verdict == "ok"
    assert cards.ecc(rows).verdict == "ok"
    told = smi.details((CAPTURES / "host/nvidia-smi/smi_q.txt").read_text())
    assert cards.recovery(told).verdict == "ok"
    assert cards.rebar(told) == cards.Check("rebar", "ok", "on: BAR1 262144 MiB")


def test_an_idle_link_of_generation_1_is_no_fault():
    # F3.43: a healthy idle card shows gen 1 of 5, width 16 of 16.
    check = cards.link_generation(gpus({}, {}))
    assert (check.verdict, check.seen) == ("ok", "1 of 5 on GPU 0 and 1: idle, so this is power saving")
    assert cards.link_width(gpus({}, {})).verdict == "ok"


def test_a_slow_link_under_load_is_one():
    busy = {"utilization.gpu": "97 %", "pcie.link.gen.current": "3"}
    check = cards.link_generation(gpus({}, busy))
    assert (check.verdict, check.seen) == ("warning", "slower than it could be under load: GPU 1 3 of 5")


def test_a_link_that_retrained_to_one_lane():
    # F3.44: x8 to x1 after a reboot; idle or not, the width tells.
    check = cards.link_width(gpus({}, {"pcie.link.width.current": "1"}))
    assert (check.verdict, check.seen) == ("fail", "GPU 1 x1 of x16")
    assert "Reboot" in check.mend


def test_a_width_that_is_not_told_is_unknown():
    assert cards.link_width(gpus({"pcie.link.width.current": "[N/A]"})).verdict == "unknown"
    assert cards.link_generation(gpus({"pcie.link.gen.max": "[N/A]"})).verdict == "unknown"


def test_unlike_gpus():
    check = cards.alike(gpus({}, {"name": "NVIDIA L40S", "memory.total": "46068 MiB"}))
    assert check.verdict == "warning"
    assert "NVIDIA L40S, 46068 MiB: GPU 1" in check.seen


def test_mig():
    assert cards.mig(gpus({"mig.mode.current": "[N/A]"})).verdict == "ok"
    check = cards.mig(gpus({}, {"mig.mode.current": "Enabled"}))
    assert (check.verdict, check.mend) == ("fail", "nvidia-smi -i 1 -mig 0")


def test_ecc():
    assert cards.ecc(gpus()).verdict == "ok"
    assert cards.ecc(gpus({"ecc.mode.current": "[N/A]"})).verdict == "unknown"
    assert cards.ecc(gpus({}, {"ecc.mode.current": "Disabled"})).verdict == "warning"
    check = cards.ecc(gpus({"ecc.errors.uncorrected.volatile.total": "2"}))
    assert check.verdict == "fail"


def test_persistence():
    check = cards.persistence(gpus({"persistence_mode": "Disabled"}, {}))
    assert (check.verdict, "GPU 0" in check.seen) == ("warning", True)


def test_power_limits():
    # 300 of 600 W costs up to 30 % of throughput; 500 W is about as fast (rtx6kpro, power-limit sweep).
    check = cards.power(gpus({}, {"power.limit": "300.00 W"}))
    assert (check.verdict, check.seen) == ("warning", "GPU 1 300 of 600 W")
    assert cards.power(gpus({"power.limit": "500.00 W"}, {"power.limit": "500.00 W"})).verdict == "ok"
    assert cards.power(gpus({"power.limit": "500.00 W"}, {})).verdict == "warning"  # unequal
    assert cards.power(gpus({"power.limit": "[N/A]"})).verdict == "unknown"


def test_a_card_held_down_by_heat():
    # nvmlClocksEventReasons: 0x40 is HW thermal slowdown, 0x20 SW thermal slowdown; 0x1 is idle, 0x4 the power cap.
    check = cards.slowed(gpus({"clocks_event_reasons.active": "0x0000000000000060"}, {}))
    assert (check.verdict, check.seen) == ("warning", "GPU 0: hot, hot (hardware)")
    assert cards.slowed(gpus({"clocks_event_reasons.active": "0x0000000000000004"})).verdict == "ok"
    assert cards.slowed(gpus({"clocks_event_reasons.active": "0xzz"})).verdict == "unknown"


SILENT = "[Unknown Error]"


@pytest.mark.parametrize(
    ("check", "fields", "seen"),
    [
        (cards.mig, ["mig.mode.current"], "not told for GPU 1"),
        (cards.ecc, ["ecc.mode.current"], "not told for GPU 1"),
        (cards.ecc, ["ecc.errors.uncorrected.volatile.total"], "on, and GPU 1 does not tell its errors"),
        (cards.persistence, ["persistence_mode"], "not told for GPU 1"),
        (cards.power, ["power.limit"], "not told for GPU 1"),
        (cards.slowed, ["clocks_event_reasons.active"], "not told for GPU 1"),
        (lambda rows: cards.stuck(rows, []), ["utilization.gpu"], "GPU 1 does not tell its utilization and power"),
    ],
)
def test_what_a_gpu_does_not_tell_is_unknown_and_not_ok(check, fields, seen):
    silent = gpus({}, dict.fromkeys(fields, SILENT))
    assert (check(silent).verdict, check(silent).seen) == ("unknown", seen)
    # An older driver has no such field: nvidia-smi is asked again without it, and no row has the cell.
    absent = [smi.Row({name: cell for name, cell in row.cells.items() if name not in fields}) for row in gpus({}, {})]
    assert check(absent).verdict == "unknown"


def test_what_another_gpu_tells_counts_all_the_same():
    assert cards.ecc(gpus({"ecc.mode.current": SILENT}, {"ecc.mode.current": "Disabled"})).verdict == "warning"
    assert cards.persistence(gpus({"persistence_mode": SILENT}, {"persistence_mode": "Disabled"})).verdict == "warning"
    hot = {"clocks_event_reasons.active": "0x0000000000000040"}
    assert cards.slowed(gpus({"clocks_event_reasons.active": SILENT}, hot)).verdict == "warning"
    assert cards.power(gpus({"power.limit": SILENT}, {"power.limit": "300.00 W"})).verdict == "warning"


USED = {"memory.used": "80100 MiB"}


def test_memory_of_another_process():
    # F3.48: the next start sees 0.41 of 79 GiB free, because the one before is still there.
    holder = Holder(4711, "python -m vllm.entrypoints.openai.api_server", "1")
    check = cards.memory(gpus({}, USED), [holder], GIB)
    assert check.verdict == "fail"
    assert check.seen == "GPU 1 78.2 GiB, held by pid 4711 (python -m vllm.entrypoints.openai.api_server)"
    assert check.mend.startswith("kill 4711")


def test_memory_of_our_own_engine():
    check = cards.memory(gpus(USED, USED), [Holder(1, "sglang", "0", ours=True), Holder(2, "s", "1", ours=True)], GIB)
    assert check.verdict == "ok"


def test_memory_that_nobody_shows():
    # F3.49: a zombie, another namespace, or a card that needs a reset.
    check = cards.memory(gpus(USED), [], GIB)
    assert check.verdict == "fail"
    assert "no process shows it" in check.seen
    assert "--gpu-reset -i 0" in check.mend


def test_each_gpu_is_judged_by_its_own_holders():
    # Our engine on GPU 0 says nothing of what leaked on GPU 1, nor of who is on GPU 2.
    ours, joe = Holder(1, "sglang", "0", ours=True), Holder(7, "python train.py", "2")
    check = cards.memory(gpus(USED, USED, USED), [ours, joe], GIB)
    assert check.verdict == "fail"
    assert check.seen == "GPU 2 78.2 GiB, held by pid 7 (python train.py); GPU 1 78.2 GiB, and no process shows it"
    assert check.mend.startswith("kill 7, or")
    assert "--gpu-reset -i 1," in check.mend
    leaked = cards.memory(gpus(USED, USED), [ours], GIB)
    assert (leaked.verdict, leaked.seen) == ("fail", "GPU 1 78.2 GiB, and no process shows it")


def test_who_has_the_device_open_is_named_where_nvidia_smi_lists_nobody():
    # It lists our engine, and not what draws or is in another namespace.
    ours, xorg = Holder(1, "sglang", "0", ours=True), Holder(9, "Xorg", "1", only_open=True)
    check = cards.memory(gpus(USED, USED, USED), [ours, xorg], GIB)
    assert check.seen == (
        "GPU 1 78.2 GiB, of which nvidia-smi lists no process; open to pid 9 (Xorg); "
        "GPU 2 78.2 GiB, and no process shows it"
    )
    assert check.mend.startswith("kill 9 (") and "--gpu-reset -i 2," in check.mend
    # A monitor has every GPU open: it is not who holds what nvidia-smi lists, nor why a GPU spins.
    monitor = [Holder(8, "dcgm-exporter", index, only_open=True) for index in ("0", "1")]
    assert cards.memory(gpus(USED, {}), [ours, *monitor], GIB).seen == "GPU 0 78.2 GiB, held by our engine"
    left = {"utilization.gpu": "100 %", "power.draw": "120.00 W"}
    assert cards.stuck(gpus({}, left), [ours, *monitor]).verdict == "fail"


def test_a_container_shows_processes_by_device_file_only():
    # nvidia-smi lists none there: whoever has a device open may be on any GPU.
    assert cards.memory(gpus(USED, USED), [Holder(1, "sglang", ours=True)], GIB).verdict == "ok"


def test_the_capture_with_memory_and_no_process():
    # two-gpus/smi.txt: 1524 and 291 MiB used, no process found.
    check = cards.memory(gpus({"memory.used": "1524 MiB"}, {"memory.used": "291 MiB"}), [], GIB)
    assert check.seen == "GPU 0 1.5 GiB, and no process shows it"


def test_a_card_that_needs_a_reset():
    check = cards.memory(gpus({"memory.used": "[GPU requires reset]"}, {}), [], GIB)
    assert (check.verdict, "[GPU requires reset]" in check.seen) == ("fail", True)


def test_a_card_that_spins_after_a_hung_collective():
    # B14: 100 % utilization, about 120 W, 624 MiB, no process.
    left = {"utilization.gpu": "100 %", "power.draw": "120.00 W", "memory.used": "624 MiB"}
    check = cards.stuck(gpus({}, left), [])
    assert (check.verdict, check.mend) == ("fail", "nvidia-smi --gpu-reset -i 1, or reboot")
    assert cards.stuck(gpus(left), [Holder(1, "python")]).verdict == "ok"
    # Another GPU's process explains nothing.
    assert cards.stuck(gpus({}, left), [Holder(1, "python", "0", ours=True)]).verdict == "fail"
    assert cards.stuck(gpus({}, left), [Holder(1, "python", "1")]).verdict == "ok"
    assert cards.stuck(gpus(left | {"power.draw": "550.00 W"}), []).verdict == "ok"


@pytest.mark.parametrize(("action", "verdict"), [("None", "ok"), ("N/A", "ok"), ("Reset", "fail"), ("Reboot", "fail")])
def test_what_the_driver_asks_for(action, verdict):
    check = cards.recovery({"0000:06:00.0": {"GPU Recovery Action": action}})
    assert check.verdict == verdict
    assert ("Reboot" in check.mend) == (action == "Reboot")
    assert cards.recovery({"0000:06:00.0": {}}).verdict == "unknown"


def test_resizable_bar():
    def told(window):
        return {"0000:06:00.0": {"BAR1 Memory Usage/Total": f"{window} MiB", "FB Memory Usage/Total": "97887 MiB"}}

    assert cards.rebar(told(131072)).verdict == "ok"  # the healthy reference box
    assert cards.rebar(told(98304)).verdict == "ok"
    assert cards.rebar(told(256)).verdict == "warning"
    assert cards.rebar({}).verdict == "unknown"


def test_every_gpu_of_the_bus_answers():
    rows = gpus({}, {"pci.bus_id": "00000000:C1:00.0"})
    assert cards.all_there(rows, ["0000:06:00.0", "0000:c1:00.0"], container=False).verdict == "ok"
    lost = cards.all_there(rows[:1], ["0000:06:00.0", "0000:c1:00.0"], container=False)
    assert (lost.verdict, lost.seen) == ("fail", "1 answer, 2 on the PCI bus; silent: 0000:c1:00.0")
    assert cards.all_there(rows[:1], ["0000:06:00.0", "0000:c1:00.0"], container=True).verdict == "ok"
    assert cards.all_there(rows, [], container=True).verdict == "unknown"
