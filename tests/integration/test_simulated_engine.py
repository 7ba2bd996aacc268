"""The simulated engine as its users meet it: real processes, real HTTP, the official client, and its failures."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest
import requests

from benchmark.engine import lifecycle
from benchmark.simulator.ledger import Ledger

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CAPTURES = ROOT / "tests" / "captures"
SPLIT = ("--tp-size", "8", "--ep-size", "8")
COMMON = ("--mem-fraction-static", "0.88", "--context-length", "32768", "--attention-backend", "triton",
          "--trust-remote-code", "--grammar-backend", "none", "--max-running-requests", "64")  # fmt: skip


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass
class Simulated:
    """A simulated engine's process, and what it wrote."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    ledger: Ledger

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str, **more: object) -> requests.Response:
        return requests.get(self.url + path, timeout=10, **more)

    def post(self, path: str, body: dict, **more: object) -> requests.Response:
        return requests.post(self.url + path, json=body, timeout=30, **more)

    def health(self) -> int | None:
        """The status of /health; None while nothing listens."""
        try:
            return self.get("/health").status_code
        except requests.ConnectionError:
            return None

    def wait_for(self, condition, seconds: float = 15.0) -> None:
        ends = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < ends, f"waited {seconds} s in vain; log:\n{self.text()[-3000:]}"
            time.sleep(0.03)

    def wait_ready(self) -> None:
        self.wait_for(lambda: self.process.poll() is not None or self.health() == 200)
        assert self.process.poll() is None, self.text()[-3000:]

    def wait_exit(self, seconds: float = 15.0) -> int:
        return self.process.wait(seconds)

    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def seen(self) -> lifecycle.Lifecycle:
        return lifecycle.read_log(self.text())

    def held(self) -> int:
        return sum(holder.bytes for holder in self.ledger.holders())


@contextlib.contextmanager
def simulated(
    folder: Path,
    *arguments: str,
    model: str = "kimi-k2.6",
    port: int | None = None,
    ready: bool = True,
    **environment: object,
) -> Iterator[Simulated]:
    """A running engine; whatever it started is gone afterwards."""
    port = port or free_port()
    settings = {"GPU": folder / "gpus", "START_SECONDS": 0.4, "SPEED": 20} | environment
    folder.mkdir(exist_ok=True)
    log = folder / f"engine-{port}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "benchmark.simulator",
                "--model-path",
                model,
                *COMMON,
                *arguments,
                "--host",
                "127.0.0.1",
                "--port",
                str(port),
            ],
            cwd=ROOT,
            env=os.environ | {f"SHARDSWEEP_SIMULATED_{key}": str(value) for key, value in settings.items()},
            stdout=out,
            stderr=out,
        )
    engine = Simulated(process, port, log, Ledger(folder / "gpus"))
    try:
        if ready:
            engine.wait_ready()
        yield engine
    finally:
        process.kill()
        process.wait()


def events(answer: requests.Response) -> list[dict]:
    """The JSON of every server-sent event but [DONE], which must be the last."""
    data = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return [json.loads(item) for item in data[:-1]]


def captured_events(name: str) -> list[dict]:
    lines = (CAPTURES / "stream" / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line.partition("data: ")[2]) for line in lines if "data: {" in line]


def captured_body(name: str) -> dict:
    return json.loads((CAPTURES / "endpoints" / name).read_text(encoding="utf-8").partition("\n")[2])


def shape(value: object) -> object:
    """The keys of an object and of the objects in it, without values."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value and isinstance(value[0], dict) else []
    return None


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulated]:
    with simulated(tmp_path_factory.mktemp("engine"), *SPLIT, "--enable-metrics", "--enable-cache-report") as running:
        yield running


class TestStart:
    def test_health_goes_from_refused_over_503_to_200(self, tmp_path: Path) -> None:
        with simulated(tmp_path, *SPLIT, ready=False, START_SECONDS=1.5) as engine:
            seen = [engine.health()]
            while seen[-1] != 200:
                now = engine.health()
                if now != seen[-1]:
                    seen.append(now)
        assert seen == [None, 503, 200]

    def test_log_tells_every_stage_and_the_sizes_that_the_ledger_holds(self, engine: Simulated) -> None:
        seen = engine.seen()
        assert seen.stage == "ready"
        assert [name for name, _ in seen.stages] == [
            "process", "distributed", "weights", "kv", "graphs", "warmup", "ready",
        ]  # fmt: skip
        assert seen.failure is None
        # sglang.md 3.5: 71.8 GiB of Kimi K2.6 on each of eight GPUs.
        assert seen.figures["weights_bytes"] / 2**30 == pytest.approx(71.8, abs=0.3)
        # The pool is what the fraction leaves: free after - (1 - 0.88) x free before, 0.1 GiB for images.
        before, after = (seen.figures[f"available_{when}_load_bytes"] for when in ("before", "after"))
        assert seen.figures["kv_bytes"] == pytest.approx(after - 0.12 * before - 0.1 * 2**30, rel=0.01)
        # 61 layers x (512 + 64) x 2 bytes a token.
        assert seen.figures["kv_tokens"] == pytest.approx(seen.figures["kv_bytes"] / 70272, rel=0.001)
        assert seen.figures["server_args"]["tp_size"] == 8
        used = engine.ledger.used_bytes(0)
        assert used > seen.figures["weights_bytes"] + seen.figures["kv_bytes"]
        assert {engine.ledger.used_bytes(gpu) for gpu in range(8)} == {used}

    def test_one_process_for_each_rank_and_the_detokenizer_by_name(self, engine: Simulated) -> None:
        children = Path(f"/proc/{engine.process.pid}/task/{engine.process.pid}/children").read_text().split()
        names = sorted(Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0].decode() for pid in children)
        assert names == ["sglang::detokenizer", *(f"sglang::scheduler_TP{rank}_EP{rank}" for rank in range(8))]
        assert sorted(holder.pid for holder in engine.ledger.holders()) == sorted(
            int(pid) for pid in children
            if b"scheduler" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )  # fmt: skip

    def test_words_of_a_newer_release_and_attention_data_parallelism(self, tmp_path: Path) -> None:
        arguments = ("--attn-dp-size", "8", "--tp-size", "8", "--mem-fraction-static", "0.94")
        with simulated(tmp_path, *arguments, RELEASE="0.5.23") as engine:
            assert "Init parallel begin." in engine.text()
            assert "Capture target decode CUDA graph end." in engine.text()
            assert engine.seen().figures["graph_bytes"] > 0
            loads = engine.get("/v1/loads").json()
            assert loads["dp_rank_count"] == len(loads["loads"]) == 8

    def test_pipeline_stages_are_ranks_of_their_own(self, tmp_path: Path) -> None:
        with simulated(tmp_path, "--pp-size", "8") as engine:
            assert "PP7] Load weight end" in engine.text()
            sizes = {engine.ledger.used_bytes(gpu) for gpu in range(8)}
            assert engine.get("/health").status_code == 200
        assert len(sizes) > 1, "61 layers do not divide into 8 equal stages"

    @pytest.mark.parametrize(
        ("name", "split"),
        [("pp2", ("--pp-size", "2")), ("dp2", ("--tp-size", "2", "--dp-size", "2", "--enable-dp-attention"))],
    )
    def test_ranks_write_what_they_wrote_on_two_h200s(self, tmp_path: Path, name: str, split: tuple[str, ...]) -> None:
        """tests/data/starts: SGLang 0.5.11 on the fourth machine of docs/evidence/several-gpus."""
        real = (ROOT / "tests" / "data" / "starts" / f"{name}.log").read_text(encoding="utf-8")
        sizes = ("--mem-fraction-static", "0.5", "--context-length", "8192", "--max-running-requests", "256",
                 "--cuda-graph-max-bs", "256", "--decode-log-interval", "10")  # fmt: skip
        extra = ("--enforce-disable-flashinfer-allreduce-fusion", "--disable-piecewise-cuda-graph")
        with simulated(tmp_path, *split, *sizes, *extra, model="mini-moe", HARDWARE="2x H200") as engine:
            for _ in range(2):
                engine.post("/generate", {"input_ids": [3, 4, 5], "sampling_params": {"max_new_tokens": 32}})
            text = engine.text()
        kinds = ("Load weight end", "Memory pool end", "max_total_num_tokens", "Prefill batch", "Decode batch")
        for kind in kinds:
            assert ranks_of(text, kind) == ranks_of(real, kind), kind
        for line in (
            "FlashInfer allreduce fusion is forcibly",
            "The chunked prefill size is",
            "incompatible with overlap",
        ):
            assert (line in text) == (line in real)
        graphs = re.compile(r"Capture cuda graph bs (\[.*?\])")
        assert set(graphs.findall(text)) == set(graphs.findall(real))
        made, seen = engine.seen().figures, lifecycle.read_log(real).figures
        for figure in ("max_running_requests", "chunked_prefill_size", "context_length"):
            assert made[figure] == seen[figure]
        for figure in ("kv_tokens", "weights_bytes"):
            assert made[figure] == pytest.approx(seen[figure], rel=0.01)


def ranks_of(text: str, kind: str) -> set[str]:
    """The ranks that wrote a line of a kind: {"DP0 TP0", ...}."""
    return set(re.findall(rf"^\[[\d:. -]+? ?([A-Z][A-Z\d ]*)] {kind}", text, re.MULTILINE))


class TestRoutes:
    @pytest.mark.parametrize(
        ("path", "name"),
        [
            ("/model_info", "model_info.txt"),
            ("/get_model_info", "model_info.txt"),
            ("/v1/models", "v1_models.txt"),
            ("/get_load", "get_load.txt"),
        ],
    )
    def test_same_keys_as_the_captured_answer(self, engine: Simulated, path: str, name: str) -> None:
        assert shape(engine.get(path).json()) == shape(captured_body(name))

    def test_loads_tell_what_runs_and_where_memory_went(self, engine: Simulated) -> None:
        body, captured = engine.get("/v1/loads").json(), captured_body("v1_loads.txt")
        assert shape(body) == shape(captured)
        memory = body["loads"][0]["memory"]
        figures = engine.seen().figures
        assert memory["weight_gb"] == pytest.approx(figures["weights_bytes"] / 2**30, abs=0.01)
        assert memory["token_capacity"] == figures["kv_tokens"]

    @pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
    def test_server_info_has_the_settings_and_the_schedulers_state(self, engine: Simulated, path: str) -> None:
        body = engine.get(path).json()
        assert body["tp_size"] == 8 and body["ep_size"] == 8 and body["mem_fraction_static"] == 0.88
        assert body["version"] == "0.5.11"
        assert body["simulated"] is True
        state = body["internal_states"][0]
        captured = captured_body("server_info.txt")["internal_states"][0]
        assert set(state["memory_usage"]) == set(captured["memory_usage"])
        assert state["effective_max_running_requests_per_dp"] == 64

    def test_flush_cache(self, engine: Simulated) -> None:
        answer = requests.post(engine.url + "/flush_cache", timeout=10)
        assert answer.status_code == 200
        assert answer.text == (CAPTURES / "endpoints" / "flush.txt").read_text().partition("\n")[2]

    def test_metrics_are_among_the_captured_ones(self, engine: Simulated) -> None:
        text = engine.get("/metrics").text
        captured = (CAPTURES / "endpoints" / "metrics.txt").read_text()
        families = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
        assert families <= {line.split()[2] for line in captured.splitlines() if line.startswith("# TYPE")}
        assert {"sglang:generation_tokens_total", "sglang:num_running_reqs", "sglang:token_usage"} <= families

    def test_no_metrics_unless_asked_for(self, tmp_path: Path) -> None:
        with simulated(tmp_path, *SPLIT) as engine:
            assert engine.get("/metrics").status_code == 404

    def test_an_api_key_guards_all_but_health(self, tmp_path: Path) -> None:
        with simulated(tmp_path, *SPLIT, "--api-key", "s3cret") as engine:
            assert engine.get("/model_info").status_code == 401
            assert engine.get("/model_info", headers={"Authorization": "Bearer s3cret"}).status_code == 200
            assert engine.get("/health").status_code == 200
            # As the real engine: the key stands in its log. What is kept of the log must not show it.
            assert "s3cret" in engine.text()
            assert "s3cret" not in repr(engine.seen())


class TestGenerate:
    def test_stream_has_the_captured_shape_and_is_cumulative(self, engine: Simulated) -> None:
        body = {"text": "Hello world", "sampling_params": {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True}}
        answer = engine.post("/generate", body | {"stream": True})
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["server"] == "uvicorn"
        found, captured = events(answer), captured_events("generate.sse")
        assert [shape(found[0]), shape(found[1]), shape(found[-1])] == [
            shape(captured[0]), shape(captured[1]), shape(captured[-1]),
        ]  # fmt: skip
        assert [item["meta_info"]["completion_tokens"] for item in found] == list(range(1, 13))
        for before, after in itertools.pairwise(found):
            assert after["text"].startswith(before["text"])
            assert after["output_ids"][:-1] == before["output_ids"]
        assert found[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 12}
        whole = engine.post("/generate", body).json()
        assert whole["output_ids"] == found[-1]["output_ids"], "temperature 0: the same prompt, the same answer"
        assert whole["text"] == found[-1]["text"]
        assert set(whole["meta_info"]) == set(captured_body("generate_once.txt")["meta_info"])

    def test_token_ids_as_prompt_and_a_list_of_prompts(self, engine: Simulated) -> None:
        sampling = {"max_new_tokens": 3, "temperature": 0, "ignore_eos": True}
        one = engine.post("/generate", {"input_ids": [100, 200, 300], "sampling_params": sampling}).json()
        assert one["meta_info"]["prompt_tokens"] == 3
        two = engine.post("/generate", {"input_ids": [[100, 200, 300], [7, 8]], "sampling_params": sampling}).json()
        assert [item["meta_info"]["prompt_tokens"] for item in two] == [3, 2]
        assert two[0]["output_ids"] == one["output_ids"]

    def test_its_text_as_a_prompt_has_as_many_tokens(self, engine: Simulated) -> None:
        sampling = {"max_new_tokens": 40, "temperature": 0, "ignore_eos": True}
        text = engine.post("/generate", {"text": "a", "sampling_params": sampling}).json()["text"]
        again = engine.post("/generate", {"text": text, "sampling_params": {"max_new_tokens": 1}}).json()
        assert again["meta_info"]["prompt_tokens"] == 40

    def test_a_shared_beginning_is_cached(self, engine: Simulated) -> None:
        sampling = {"max_new_tokens": 1, "temperature": 0}
        prompt = list(range(1000, 1400))
        first = engine.post("/generate", {"input_ids": prompt, "sampling_params": sampling}).json()
        second = engine.post("/generate", {"input_ids": [*prompt[:300], 5, 6], "sampling_params": sampling}).json()
        again = engine.post("/generate", {"input_ids": prompt, "sampling_params": sampling}).json()
        assert first["meta_info"]["cached_tokens"] == 0
        assert second["meta_info"]["cached_tokens"] == 300
        # The last token of a prompt is always computed.
        assert again["meta_info"]["cached_tokens"] == 399
        assert requests.post(engine.url + "/flush_cache", timeout=10).status_code == 200
        flushed = engine.post("/generate", {"input_ids": prompt, "sampling_params": sampling}).json()
        assert flushed["meta_info"]["cached_tokens"] == 0

    def test_an_answer_ends_by_itself_unless_told_not_to(self, engine: Simulated) -> None:
        sampling = {"max_new_tokens": 4000, "temperature": 0}
        body = engine.post("/generate", {"text": "How long?", "sampling_params": sampling}).json()
        assert body["meta_info"]["finish_reason"]["type"] == "stop"
        count = body["meta_info"]["completion_tokens"]
        longer = {"max_new_tokens": 4000, "temperature": 0, "min_new_tokens": count + 20}
        body = engine.post("/generate", {"text": "How long?", "sampling_params": longer}).json()
        assert body["meta_info"]["completion_tokens"] == count + 21

    def test_an_overlong_prompt_is_refused_as_captured(self, engine: Simulated) -> None:
        prompt = [5] * 33000
        text = "The input (33000 tokens) is longer than the model's context length (32768 tokens)."
        streamed = engine.post("/generate", {"input_ids": prompt, "stream": True})
        assert streamed.status_code == 200
        assert events(streamed) == [{"error": {"message": text}}]
        refused = engine.post("/v1/completions", {"model": "x", "prompt": prompt, "stream": True})
        assert refused.status_code == 400
        captured = (CAPTURES / "stream" / "too_long_oai.sse").read_text().partition("400 ")[2]
        assert shape(refused.json()) == shape(json.loads(captured))
        assert refused.json()["message"] == text

    @pytest.mark.parametrize(
        "body",
        [
            {},
            {"text": 5},
            {"text": "a", "sampling_params": {"temperature": -1}},
            {"text": "a", "sampling_params": {"max_new_tokens": -1}},
            {"text": "a", "sampling_params": {"max_new_tokens": "many"}},
            {"text": "a", "sampling_params": {"max_new_tokens": 2, "min_new_tokens": 3}},
        ],
    )
    def test_nonsense_is_refused_in_words(self, engine: Simulated, body: dict) -> None:
        answer = engine.post("/generate", body)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"]

    def test_a_body_that_is_no_json(self, engine: Simulated) -> None:
        assert requests.post(engine.url + "/generate", data=b"{", timeout=10).status_code == 400
        assert requests.post(engine.url + "/v1/completions", data=b"[]", timeout=10).status_code == 400


class TestOpenAi:
    """Judged by the official client."""

    @pytest.fixture
    def client(self, engine: Simulated) -> Iterator[openai.OpenAI]:
        with openai.OpenAI(base_url=engine.url + "/v1", api_key="none", max_retries=0) as client:
            yield client

    def test_chat_streams(self, client: openai.OpenAI) -> None:
        chunks = list(
            client.chat.completions.create(
                model="default",
                messages=[{"role": "user", "content": "Say something."}],
                max_tokens=8,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"ignore_eos": True},
            )
        )
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[0].choices[0].delta.content == ""
        pieces = [chunk.choices[0].delta.content for chunk in chunks[1:] if chunk.choices]
        assert len([piece for piece in pieces if piece]) == 8
        assert chunks[-2].choices[0].finish_reason == "length"
        assert chunks[-1].choices == []
        assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 8
        assert chunks[-1].usage.total_tokens == chunks[-1].usage.prompt_tokens + 8

    def test_completions_stream(self, client: openai.OpenAI) -> None:
        chunks = list(
            client.completions.create(
                model="default", prompt="Once upon", max_tokens=6, temperature=0, stream=True,
                stream_options={"include_usage": True}, extra_body={"ignore_eos": True},
            )
        )  # fmt: skip
        texts = [chunk.choices[0].text for chunk in chunks if chunk.choices]
        assert len(texts) == 6
        assert chunks[-2].choices[0].finish_reason == "length"
        assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 6
        whole = client.completions.create(
            model="default", prompt="Once upon", max_tokens=6, temperature=0, extra_body={"ignore_eos": True}
        )
        assert whole.choices[0].text == "".join(texts)
        assert whole.usage is not None and whole.usage.completion_tokens == 6

    def test_whole_chat_several_choices_and_cached_tokens(self, client: openai.OpenAI) -> None:
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why is it so?"}]
        first = client.chat.completions.create(model="m", messages=messages, max_tokens=4, n=2)
        assert [choice.index for choice in first.choices] == [0, 1]
        assert first.choices[0].message.role == "assistant"
        second = client.chat.completions.create(model="m", messages=messages, max_tokens=4)
        assert second.usage is not None and second.usage.prompt_tokens_details is not None
        assert second.usage.prompt_tokens_details.cached_tokens == second.usage.prompt_tokens - 1

    def test_a_list_of_prompts(self, client: openai.OpenAI) -> None:
        answer = client.completions.create(model="m", prompt=["one", "two three"], max_tokens=3)
        assert [choice.index for choice in answer.choices] == [0, 1]

    def test_a_refusal_is_the_clients_own_error(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.BadRequestError, match="maximum context length"):
            client.completions.create(model="m", prompt="short", max_tokens=40000)

    @pytest.mark.parametrize("name", ["chat.sse", "completions.sse"])
    def test_the_raw_stream_has_the_captured_shape(self, engine: Simulated, name: str) -> None:
        captured = captured_events(name)
        body = {"model": "x", "max_tokens": 12, "ignore_eos": True, "stream": True,
                "stream_options": {"include_usage": True}}  # fmt: skip
        prompt = {"messages": [{"role": "user", "content": "hi"}]} if "chat" in name else {"prompt": "hi"}
        path = "/v1/chat/completions" if "chat" in name else "/v1/completions"
        found = events(engine.post(path, body | prompt))
        assert [shape(item) for item in found[:-1]] == [shape(item) for item in captured[:-1]]
        assert found[-1]["choices"] == [] and set(captured[-1]["usage"]) <= set(found[-1]["usage"])


def in_background(call) -> threading.Thread:
    def run() -> None:
        with contextlib.suppress(requests.RequestException):
            call()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


LONG = {"max_new_tokens": 3000, "temperature": 0, "ignore_eos": True}


class TestScheduling:
    def test_no_more_run_than_allowed_and_nothing_is_flushed_meanwhile(self, tmp_path: Path) -> None:
        with simulated(tmp_path, *SPLIT, "--max-running-requests", "2", SPEED=5) as engine:
            for number in range(4):
                body = {"input_ids": [number + 50], "sampling_params": LONG}
                in_background(lambda body=body: engine.post("/generate", body))

            def load() -> tuple[int, int]:
                told = engine.get("/v1/loads").json()["loads"][0]
                return told["num_running_reqs"], told["num_waiting_reqs"]

            engine.wait_for(lambda: load() == (2, 2))
            refused = requests.post(engine.url + "/flush_cache", timeout=10)
            assert refused.status_code == 400

    def test_counters_move_only_when_a_request_ends(self, tmp_path: Path) -> None:
        with simulated(tmp_path, *SPLIT, "--enable-metrics", SPEED=2) as engine:

            def total(name: str) -> float:
                lines = engine.get("/metrics").text.splitlines()
                return next(float(line.split()[-1]) for line in lines if line.startswith(f"sglang:{name}{{"))

            body = {"input_ids": [50], "sampling_params": LONG | {"max_new_tokens": 100}}
            thread = in_background(lambda: engine.post("/generate", body))
            engine.wait_for(lambda: total("num_running_reqs") == 1)
            assert total("generation_tokens_total") == 0
            thread.join(20)
            assert total("generation_tokens_total") == 100
            assert total("num_requests_total") == 1

    def test_a_client_that_leaves_frees_its_place(self, tmp_path: Path) -> None:
        with simulated(tmp_path, *SPLIT, SPEED=5) as engine:
            body = {"input_ids": [50], "sampling_params": LONG, "stream": True}
            with engine.post("/generate", body, stream=True) as answer:
                # Named, because the connection is closed with the generator.
                lines = answer.iter_lines()
                next(lines)
                assert engine.get("/v1/loads").json()["aggregate"]["total_reqs"] == 1
            engine.wait_for(lambda: engine.get("/v1/loads").json()["aggregate"]["total_reqs"] == 0)

    def test_long_prompts_are_prefilled_in_chunks(self, tmp_path: Path) -> None:
        with simulated(tmp_path, *SPLIT, "--chunked-prefill-size", "4096", SPEED=50) as engine:
            engine.post("/generate", {"input_ids": [9] * 10000, "sampling_params": {"max_new_tokens": 1}})
            assert [
                int(line.partition("#new-token: ")[2].partition(",")[0])
                for line in engine.text().splitlines()
                if "Prefill batch" in line
            ][-3:] == [4096, 4096, 1808]


class TestStop:
    def test_an_idle_engine_ends_at_once_by_its_own_hand(self, tmp_path: Path) -> None:
        with simulated(tmp_path, *SPLIT) as engine:
            children = [holder.pid for holder in engine.ledger.holders()]
            assert len(children) == 8
            engine.process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            assert engine.wait_exit(5) == -signal.SIGKILL
            assert time.monotonic() - began < 2
            engine.wait_for(lambda: engine.held() == 0, 2)
            assert "SIGTERM received." in engine.text()

    def test_a_request_in_flight_is_drained(self, tmp_path: Path) -> None:
        with simulated(tmp_path, *SPLIT, SPEED=3) as engine:
            body = {"input_ids": [50], "sampling_params": LONG | {"max_new_tokens": 150}}
            answers: list[requests.Response] = []
            thread = in_background(lambda: answers.append(engine.post("/generate", body)))
            engine.wait_for(lambda: engine.get("/v1/loads").json()["aggregate"]["total_reqs"] == 1)
            engine.process.send_signal(signal.SIGTERM)
            engine.wait_for(lambda: "SIGTERM received" in engine.text())
            assert engine.health() == 503
            thread.join(20)
            assert answers[0].json()["meta_info"]["completion_tokens"] == 150
            assert engine.wait_exit(5) == -signal.SIGKILL
            assert "Gracefully exiting... Remaining number of requests 1." in engine.text()

    def test_during_the_load_it_dies_at_once(self, tmp_path: Path) -> None:
        with simulated(tmp_path, *SPLIT, ready=False, FAULT="hang_load") as engine:
            engine.wait_for(lambda: engine.held() > 8 * 60 * 2**30)
            engine.process.send_signal(signal.SIGTERM)
            assert engine.wait_exit(2) == -signal.SIGTERM
            engine.wait_for(lambda: engine.held() == 0, 2)

    def test_killing_one_rank_during_the_load(self, tmp_path: Path) -> None:
        with simulated(tmp_path, *SPLIT, ready=False, FAULT="hang_load") as engine:
            engine.wait_for(lambda: len(engine.ledger.holders()) == 8)
            os.kill(engine.ledger.holders(5)[0].pid, signal.SIGKILL)
            status, failure = failed(engine)
            assert (status, failure.kind, failure.may_pass) == (1, "killed", True)
            assert "Rank 5" in failure.sentence
            engine.wait_for(lambda: engine.held() == 0, 2)

    def test_killing_one_rank_ends_the_engine_as_captured(self, tmp_path: Path) -> None:
        with simulated(tmp_path, *SPLIT) as engine:
            victim = engine.ledger.holders(3)[0].pid
            os.kill(victim, signal.SIGKILL)
            assert engine.wait_exit(4) == -signal.SIGKILL
            failure = engine.seen().failure
            assert failure is not None
            assert (failure.kind, failure.stage, failure.may_pass) == ("killed", "ready", True)
            assert str(victim) in failure.sentence
            engine.wait_for(lambda: engine.held() == 0, 2)


def failed(engine: Simulated, seconds: float = 10.0) -> tuple[int, lifecycle.Failure]:
    """(exit status, what the log is read as) of an engine that ends by itself."""
    status = engine.wait_exit(seconds)
    failure = lifecycle.classify_exit(engine.seen(), status, requested_stop=False)
    assert failure is not None
    return status, failure


class TestFailedStarts:
    @pytest.mark.parametrize(
        ("arguments", "status", "kind", "stage"),
        [
            (("--tp-size", "4", "--ep-size", "2"), -9, "out_of_memory_weights", "weights"),
            (("--tp-size", "2", "--ep-size", "4"), 1, "ep_does_not_divide", "process"),
            (("--tp-size", "8", "--ep-size", "3"), -9, "ep_does_not_divide", "distributed"),
            ((*SPLIT, "--pp-size", "2"), -9, "too_few_gpus", "distributed"),
            ((*SPLIT, "--mem-fraction-static", "0.7"), -9, "out_of_memory_kv", "kv"),
            (
                (*SPLIT, "--mem-fraction-static", "0.997", "--max-running-requests", "256"),
                -9,
                "out_of_memory_graphs",
                "graphs",
            ),
            ((*SPLIT, "--no-such-flag", "1"), 2, "unknown_flag", "process"),
            (("--tp-size", "eight"), 2, "bad_flag_value", "process"),
            (("--pp", "8"), 2, "bad_flag_value", "process"),
        ],
    )
    def test_ends_and_is_named(
        self, tmp_path: Path, arguments: tuple[str, ...], status: int, kind: str, stage: str
    ) -> None:
        with simulated(tmp_path, *arguments, ready=False) as engine:
            code, failure = failed(engine)
            assert (code, failure.kind, failure.stage) == (status, kind, stage), engine.text()[-2000:]
            assert failure.evidence and failure.advice
            assert not failure.may_pass
            engine.wait_for(lambda: engine.held() == 0, 2)

    def test_tp4_dies_in_torchs_words_with_one_layers_down_projection(self, tmp_path: Path) -> None:
        with simulated(tmp_path, "--tp-size", "4", "--ep-size", "2", ready=False) as engine:
            _, failure = failed(engine)
        # sglang.md 1.4: 384/2 experts x 2048/2/8 x 7168 x 4 bytes = 672 MiB (or the up-projection, twice that).
        assert any(size in failure.evidence[0] for size in ("Tried to allocate 672.00 MiB", "allocate 1.31 GiB"))
        assert "total capacity of 94.97 GiB" in failure.evidence[0]
        assert "tp 4 x pp 1" in failure.sentence

    def test_no_model(self, tmp_path: Path) -> None:
        with simulated(tmp_path, *SPLIT, model="/models/absent", ready=False) as engine:
            status, failure = failed(engine)
        assert (status, failure.kind) == (1, "no_model")
        assert "/models/absent" in failure.sentence

    def test_a_port_in_use_leaves_an_engine_that_neither_serves_nor_exits(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            with simulated(tmp_path, *SPLIT, port=port, ready=False) as engine:
                engine.wait_for(lambda: "address already in use" in engine.text())
                engine.process.send_signal(signal.SIGTERM)
                time.sleep(0.5)
                assert engine.process.poll() is None
                assert engine.held() > 8 * 80 * 2**30
                failure = engine.seen().failure
                assert failure is not None and failure.kind == "port_taken"
                assert str(port) in failure.sentence

    def test_a_foreign_process_on_one_gpu(self, tmp_path: Path) -> None:
        environment = os.environ | {"SHARDSWEEP_SIMULATED_GPU": str(tmp_path / "gpus")}
        command = [sys.executable, "-m", "benchmark.simulator.hold", "2", "60G", "30"]
        with subprocess.Popen(command, cwd=ROOT, env=environment) as foreign:
            ends = time.monotonic() + 10
            while Ledger(tmp_path / "gpus").used_bytes(2) != 60 * 2**30 and time.monotonic() < ends:
                time.sleep(0.02)
            with simulated(tmp_path, *SPLIT, ready=False) as engine:
                _, failure = failed(engine)
            foreign.kill()
        assert (failure.kind, failure.may_pass) == ("blocked_by_others", True)

    def test_a_little_foreign_memory_costs_tokens(self, tmp_path: Path) -> None:
        Ledger(tmp_path / "gpus").hold(2, 2**30, name="python", pid=os.getpid())
        with simulated(tmp_path, *SPLIT) as engine:
            assert engine.get("/health").status_code == 200
            tokens = engine.seen().figures["kv_tokens"]
            with simulated(tmp_path / "other", *SPLIT, GPU=tmp_path / "free") as undisturbed:
                more = undisturbed.seen().figures["kv_tokens"]
        # 0.88 GiB of cache less: 0.88 x 2^30 / 70272 bytes a token.
        assert more - tokens == pytest.approx(0.88 * 2**30 / 70272, abs=2)

    def test_foreign_processes_on_every_gpu_are_named_by_pid(self, tmp_path: Path) -> None:
        ledger = Ledger(tmp_path / "gpus")
        for gpu in range(8):
            ledger.hold(gpu, 60 * 2**30, name="python", pid=os.getpid())
        with simulated(tmp_path, *SPLIT, ready=False) as engine:
            _, failure = failed(engine)
        assert (failure.kind, failure.stage) == ("blocked_by_others", "weights")
        assert str(os.getpid()) in failure.sentence

    def test_a_setting_that_the_engine_refuses(self, tmp_path: Path) -> None:
        arguments = ("--chunked-prefill-size", "100", "--page-size", "64")
        with simulated(tmp_path, *SPLIT, *arguments, ready=False) as engine:
            status, failure = failed(engine)
        assert status == 1
        assert failure.kind == "does_not_divide"
        assert "chunked_prefill_size must be divisible by page_size" in failure.evidence[0]


class TestFaults:
    def test_slow_load(self, tmp_path: Path) -> None:
        with simulated(tmp_path, *SPLIT, ready=False, FAULT="slow_load:1.5") as engine:

            def part_is_loaded() -> bool:
                seen = engine.seen()
                return seen.stage == "weights" and 0 <= seen.figures.get("weights_percent", 100) < 100

            engine.wait_for(part_is_loaded)
            assert engine.ledger.faults() == []
            engine.wait_ready()
            assert engine.ledger.faults() == ["slow_load"] * 8

    def test_hang_in_the_first_collective_is_busy_at_low_power(self, tmp_path: Path) -> None:
        with simulated(tmp_path, *SPLIT, ready=False, FAULT="hang_init") as engine:
            engine.wait_for(lambda: len(engine.ledger.activities()) == 8)
            assert engine.seen().stage == "distributed"
            utilization, power = engine.ledger.activities()[0]
            assert utilization == 1.0 and power < 0.3
            engine.wait_for(lambda: engine.ledger.faults() == ["hang_init"] * 8)
            assert engine.process.poll() is None

    def test_crash_while_loading(self, tmp_path: Path) -> None:
        with simulated(tmp_path, *SPLIT, ready=False, FAULT="crash_load") as engine:
            status, failure = failed(engine)
        assert (status, failure.kind, failure.stage) == (-9, "model_corrupt", "weights")
        assert engine.ledger.faults() == ["crash_load"]

    def test_crash_at_a_token(self, tmp_path: Path) -> None:
        with simulated(tmp_path, *SPLIT, FAULT="crash_at_token:30") as engine:
            body = {"input_ids": [50], "sampling_params": LONG, "stream": True}
            assert engine.ledger.faults() == []
            with pytest.raises(requests.RequestException):
                assert len(engine.post("/generate", body).content) < 0
            status, failure = failed(engine)
        assert (status, failure.kind, failure.stage) == (-9, "crash", "ready")
        assert engine.ledger.faults() == ["crash_at_token"]
        assert "illegal memory access" in failure.evidence[0]

    def test_out_of_memory_under_load(self, tmp_path: Path) -> None:
        with simulated(tmp_path, *SPLIT, FAULT="oom_at_tokens:5000") as engine:
            with pytest.raises(requests.RequestException):
                engine.post("/generate", {"input_ids": [50] * 6000, "sampling_params": {"max_new_tokens": 1}})
            status, failure = failed(engine)
        assert (status, failure.kind) == (-9, "out_of_memory_running")
        assert "Lower --mem-fraction-static from 0.88 to 0.84" in failure.advice
        assert engine.ledger.faults() == ["oom_at_tokens"]

    def test_memory_stays_after_death(self, tmp_path: Path) -> None:
        with simulated(tmp_path, *SPLIT, FAULT="leak:8G") as engine:
            engine.process.send_signal(signal.SIGTERM)
            engine.wait_exit(5)
            engine.wait_for(lambda: engine.held() == 8 * 8 * 2**30, 2)
            engine.ledger.reset(0)
            assert engine.ledger.used_bytes(0) == 0
            assert engine.ledger.faults() == ["leak"] * 8

    def test_a_child_in_another_session_survives(self, tmp_path: Path) -> None:
        with simulated(tmp_path, *SPLIT, FAULT="orphan:2G") as engine:
            orphan = next(holder.pid for holder in engine.ledger.holders(0) if holder.name == "nvcc")
            try:
                assert os.getsid(orphan) == orphan != os.getsid(engine.process.pid)
                engine.process.send_signal(signal.SIGTERM)
                engine.wait_exit(5)
                engine.wait_for(lambda: engine.held() == 2 * 2**30, 2)
                os.kill(orphan, 0)
                assert engine.ledger.faults() == ["orphan"]
            finally:
                os.kill(orphan, signal.SIGKILL)

    def test_health_lies_over_a_dead_scheduler(self, tmp_path: Path) -> None:
        with simulated(tmp_path, *SPLIT, ready=False, FAULT="lying_health:0.3") as engine:
            engine.wait_for(lambda: engine.seen().stage == "ready")
            engine.wait_for(lambda: len(engine.ledger.holders()) == 7)
            assert engine.ledger.faults() == ["lying_health"]
            assert engine.health() == 200
            with pytest.raises(requests.Timeout):
                requests.post(engine.url + "/generate", json={"text": "a"}, timeout=0.5)
            assert engine.process.poll() is None

    def test_a_stop_that_never_ends(self, tmp_path: Path) -> None:
        with simulated(tmp_path, *SPLIT, FAULT="hang_stop") as engine:
            assert engine.ledger.faults() == []
            engine.process.send_signal(signal.SIGTERM)
            engine.wait_for(lambda: "Remaining number of requests 2." in engine.text())
            time.sleep(1.0)
            assert engine.process.poll() is None
            assert engine.ledger.faults() == ["hang_stop"]

    def test_a_fault_that_there_is_not(self, tmp_path: Path) -> None:
        with simulated(tmp_path, *SPLIT, ready=False, FAULT="melt") as engine:
            assert engine.wait_exit(5) == 2
            assert "has no kind 'melt'" in engine.text()
