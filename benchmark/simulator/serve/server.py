"""Serving: the web server, warm-up, the watch over the ranks, and the ways in which a running engine ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import AsyncIterator

import uvicorn
from starlette.applications import Starlette

from benchmark.simulator.launch import processes, texts
from benchmark.simulator.launch.launcher import Started
from benchmark.simulator.launch.texts import EngineError, GpuMemory
from benchmark.simulator.ledger import Ledger
from benchmark.simulator.settings import Settings

from . import application
from .engine import Engine, make_limits
from .scheduler import Scheduler

WATCH_SECONDS = 1.0
"""Between two looks at the ranks, as the engine's watchdog."""
DRAIN_LOOK_SECONDS = 0.5
"""Between two looks at what still runs after SIGTERM (the engine looks every 5 s)."""
DRAIN_LOG_SECONDS = 5.0
ACTIVITY_SECONDS = 0.5
WARMUP_SHARE = 0.1
"""Of the whole start, at least: in it the port answers, and /health says 503."""
PREFILL_POWER, DECODE_POWER, IDLE_POWER = 0.92, 0.58, 0.0

_LOG_CONFIG = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        name: {
            "()": f"uvicorn.logging.{kind}Formatter",
            "fmt": f"[%(asctime)s] {line}",
            "datefmt": "%Y-%m-%d %H:%M:%S",
            "use_colors": False,
        }
        for name, kind, line in (
            ("default", "Default", "%(levelprefix)s %(message)s"),
            ("access", "Access", '%(levelprefix)s %(client_addr)s - "%(request_line)s" %(status_code)s'),
        )
    },
    "handlers": {
        "default": {"formatter": "default", "class": "logging.StreamHandler", "stream": "ext://sys.stderr"},
        "access": {"formatter": "access", "class": "logging.StreamHandler", "stream": "ext://sys.stdout"},
    },
    "loggers": {
        "uvicorn": {"handlers": ["default"], "level": "INFO", "propagate": False},
        "uvicorn.error": {"level": "INFO"},
        "uvicorn.access": {"handlers": ["access"], "level": "INFO", "propagate": False},
    },
}


def serve(started: Started, settings: Settings, began: float) -> int:
    """Serves until the engine is stopped or fails; both end in SIGKILL, so this returns only after an error."""
    service = _Service(started, settings, began)
    arguments = started.blueprint.arguments
    config = uvicorn.Config(
        service.application,
        host=arguments["host"],
        port=int(arguments["port"]),
        log_config=_LOG_CONFIG,
        log_level=arguments["log_level_http"] or arguments["log_level"],
        timeout_keep_alive=5,
        loop="uvloop",
        http="httptools",
        lifespan="on",
        ws="none",
    )
    _Server(config, service).run()
    return 1


class _Server(uvicorn.Server):
    """Tells the service when the port is its own."""

    def __init__(self, config: uvicorn.Config, service: _Service):
        super().__init__(config)
        self.service = service

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's; a failed bind does not return (see _Service._lifespan)."""
        await super().startup(sockets=sockets)
        self.service.listening.set()


class _Service:
    """What runs in the event loop beside the web server."""

    def __init__(self, started: Started, settings: Settings, began: float):
        blueprint = started.blueprint
        self.settings = settings
        self.started = started
        self.began = began
        self.prefix = blueprint.ranks[0].prefix
        self.ledger = Ledger(settings.ledger) if settings.ledger else None
        self.gpus = [rank.gpu for rank in blueprint.ranks]
        scheduler = Scheduler(
            make_limits(blueprint, started.token_capacity),
            blueprint.decode_seconds,
            blueprint.prefill_seconds,
            speed=settings.speed,
            prefixes=blueprint.prefixes,
            stages=blueprint.arguments["pp_size"] or 1,
            before_step=self._fail_on_request,
            on_failure=self._scheduler_failed,
        )
        self.engine = Engine(blueprint, settings, started.token_capacity, scheduler, pids=started.pids[:-1])
        self.application = application.build(self.engine, self._lifespan)
        self.tasks: list[asyncio.Task[None]] = []
        self.listening = asyncio.Event()

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        for body in (self.engine.scheduler.run, self._watch, self._warm_up, self._report_activity):
            self.tasks.append(asyncio.create_task(body()))
        yield
        if self.listening.is_set():
            processes.kill_tree(self.started.sparing)
        # The bind failed. The real engine then waits for threads that never end: it neither serves nor exits, and
        # uvicorn's handler swallows SIGTERM.
        await asyncio.Event().wait()

    # Start and stop.

    async def _warm_up(self) -> None:
        """One request; then the engine is up. It waits for the port first, as it is asked through it."""
        arguments = self.started.blueprint.arguments
        await self.listening.wait()
        self._install_signals(asyncio.get_running_loop())
        if not arguments["skip_server_warmup"]:
            left = self.began + self.settings.start_seconds - time.monotonic()
            await asyncio.sleep(max(left, WARMUP_SHARE * self.settings.start_seconds))
            prompt = self.engine.encode("The capital city of France is")
            body = {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True}
            request = self.engine.request(prompt, body, stream=False, default_max=8)
            request.probe = True
            self.engine.submit(request)
            await request.progress(8)
            self.engine.close(request)
            stamp = time.strftime("%Y-%m-%d %H:%M:%S")
            texts.write(f'[{stamp}] INFO:     127.0.0.1:0 - "POST /generate HTTP/1.1" 200 OK\n')
        self.engine.status = "Up"
        texts.log("The server is fired up and ready to roll!")
        if "lying_health" in self.settings.faults:
            await asyncio.sleep(self.settings.faults["lying_health"])
            self.engine.scheduler.alive = False
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.engine.pids[0], signal.SIGKILL)
            self.settings.note_fault("lying_health")

    def _install_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.add_signal_handler(signal.SIGTERM, self._terminate)
        text = "SIGQUIT received. signum=None, frame=None. It usually means one child failed."
        loop.add_signal_handler(signal.SIGQUIT, self._die, text)

    def _terminate(self) -> None:
        texts.log("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
        if self.engine.status != "Draining":
            self.engine.status = "Draining"
            self.tasks.append(asyncio.create_task(self._drain()))

    async def _drain(self) -> None:
        logged = 0.0
        if "hang_stop" in self.settings.faults:
            self.settings.note_fault("hang_stop")
        while True:
            left = list(self.engine.open_requests)
            if "hang_stop" in self.settings.faults:
                left += ["5556ed0a804a4a2288a0a2d9f3af59d9", "5d3e6f15f99e4a72b50adcaf41beac8f"]
            if not left:
                processes.kill_tree(self.started.sparing)
            if time.monotonic() - logged >= DRAIN_LOG_SECONDS:
                logged = time.monotonic()
                texts.log(
                    f"Gracefully exiting... Remaining number of requests {len(left)}. "
                    f"Remaining requests remaining_rids={left}."
                )
            await asyncio.sleep(DRAIN_LOOK_SECONDS)

    def _die(self, text: str) -> None:
        texts.log(text)
        processes.kill_tree(self.started.sparing)

    # Failures.

    async def _watch(self) -> None:
        """Notices a rank that died and ends the engine; a lying health check lives from not noticing."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            for number, pid in enumerate(self.engine.pids):
                try:
                    ended, status = os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    continue
                if ended and "lying_health" not in self.settings.faults:
                    code = os.waitstatus_to_exitcode(status)
                    texts.log(
                        f"Subprocess scheduler_{number} (pid={pid}) crashed with exit code {code}. "
                        "Triggering SIGQUIT for cleanup..."
                    )
                    self._die("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")

    def _fail_on_request(self, scheduler: Scheduler) -> None:
        faults = self.settings.faults
        limit = faults.get("crash_at_token")
        if limit is not None and scheduler.counters.generated >= limit and self.engine.status == "Up":
            self.settings.note_fault("crash_at_token")
            raise EngineError(
                "decode",
                "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
                "CUDA kernel errors might be asynchronously reported at some other API call, so the "
                "stacktrace below might be incorrect.",
            )
        limit = faults.get("oom_at_tokens")
        if limit is not None and scheduler.waiting:
            held = scheduler.used_tokens() + sum(request.length() for request in scheduler.waiting)
            if held >= limit:
                self.settings.note_fault("oom_at_tokens")
                raise EngineError("prefill", "torch.OutOfMemoryError: " + self._out_of_memory())

    def _out_of_memory(self) -> str:
        blueprint = self.started.blueprint
        context = blueprint.gpu_total_bytes - blueprint.free_before_load_bytes
        nearly_all = blueprint.free_before_load_bytes - (432 << 20)
        memory = GpuMemory(blueprint.ranks[0].gpu, blueprint.gpu_total_bytes, context, nearly_all)
        return texts.out_of_memory(2 << 30, memory)

    def _scheduler_failed(self, error: EngineError) -> None:
        texts.log(f"Scheduler hit an exception: {error.traceback()}\n", self.prefix)
        self._die("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")

    # The simulated GPU.

    async def _report_activity(self) -> None:
        if self.ledger is None:
            return
        counters = self.engine.scheduler.counters
        decode = prefill = 0.0
        idle = True
        while True:
            await asyncio.sleep(ACTIVITY_SECONDS)
            shares = [
                min(1.0, (now - before) / ACTIVITY_SECONDS)
                for now, before in ((counters.busy_decode, decode), (counters.busy_prefill, prefill))
            ]
            decode, prefill = counters.busy_decode, counters.busy_prefill
            busy = min(1.0, sum(shares))
            if busy or not idle:
                power = shares[0] * DECODE_POWER + shares[1] * PREFILL_POWER
                self.ledger.work(self.gpus, busy, min(1.0, power), 4 * ACTIVITY_SECONDS)
            idle = not busy
