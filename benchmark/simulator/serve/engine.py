"""The running engine behind the HTTP routes: its scheduler, its state, and requests on their way in."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmark.simulator.blueprint import Blueprint
from benchmark.simulator.settings import Settings

from . import tokens
from .request import Request, RequestError, Sampling
from .scheduler import Limits, Scheduler

HEALTH_TOKENS = 1


@dataclass
class Engine:
    """Shared by all routes. `status` is Starting, Up or Draining."""

    blueprint: Blueprint
    settings: Settings
    token_capacity: int
    scheduler: Scheduler
    status: str = "Starting"
    started: float = field(default_factory=time.time)
    pids: tuple[int, ...] = ()
    """Of the schedulers, by rank."""
    http_requests: dict[tuple[str, str], int] = field(default_factory=dict)
    http_responses: dict[tuple[str, str, int], int] = field(default_factory=dict)
    open_requests: dict[str, Request] = field(default_factory=dict)

    @property
    def release(self) -> str:
        return self.blueprint.arguments.release

    @property
    def model_name(self) -> str:
        return self.blueprint.arguments["served_model_name"]

    @property
    def longest_input(self) -> int:
        return min(self.blueprint.context_length, self.token_capacity) - 1

    def request(
        self,
        prompt: Sequence[int],
        body: Mapping[str, Any],
        *,
        stream: bool,
        default_max: int | None,
        number: int = 0,
    ) -> Request:
        """A checked request, not yet queued. `number` tells equal prompts of one call apart.

        Raises:
            RequestError: too long, or a sampling parameter out of range; in the engine's words.
        """
        context, vocabulary = self.blueprint.context_length, self.blueprint.vocabulary
        sampling = Sampling.read(body, default_max)
        prompt = list(prompt)
        if not prompt:
            raise RequestError("The input is empty.")
        if len(prompt) >= context:
            raise RequestError(
                f"The input ({len(prompt)} tokens) is longer than the model's context length ({context} tokens)."
            )
        wanted = sampling.max_new_tokens
        if wanted is not None and len(prompt) + wanted > context:
            raise RequestError(
                f"Requested token count exceeds the model's maximum context length of {context} tokens. "
                f"You requested a total of {len(prompt) + wanted} tokens: {len(prompt)} tokens from the input "
                f"messages and {wanted} tokens for the completion. Please reduce the number of tokens in the "
                "input messages or the completion to fit within the limit."
            )
        if len(prompt) > self.longest_input:
            raise RequestError(
                f"Input length ({len(prompt)} tokens) exceeds the maximum allowed length "
                f"({self.longest_input} tokens). Use a shorter input or enable --allow-auto-truncate."
            )
        room = min(context, self.token_capacity) - len(prompt)
        limit = room if wanted is None else min(wanted, room)
        # Without the fault, the same prompt has the same greedy answer whatever the split: nothing is rounded here.
        seed = self.settings.seed + ("wrong_answers" in self.settings.faults)
        if sampling.temperature > 0:
            seed = random.getrandbits(32) if sampling.seed is None else sampling.seed + number
        return Request(
            prompt=prompt,
            sampling=sampling,
            answer=tokens.Answer(prompt, vocabulary, seed),
            limit=max(1, limit),
            stream=stream,
            stream_interval=max(1, int(self.blueprint.arguments["stream_interval"] or 1)),
        )

    def submit(self, request: Request) -> None:
        """Queues a request.

        Raises:
            RequestError: the queue is full (only with --max-queued-requests).
        """
        limit = self.scheduler.limits.queue
        if limit is not None and len(self.scheduler.waiting) >= limit:
            raise RequestError("The request queue is full.")
        self.open_requests[request.id] = request
        self.scheduler.submit(request)

    def close(self, request: Request) -> None:
        """The answer is out, or its client has gone."""
        self.open_requests.pop(request.id, None)
        self.scheduler.abort(request)

    def encode(self, text: str) -> list[int]:
        return tokens.encode(text, self.blueprint.vocabulary)


def make_limits(blueprint: Blueprint, capacity: int) -> Limits:
    """The scheduler's limits from a blueprint and the tokens that the KV pool really has."""
    arguments = blueprint.arguments
    return Limits(
        capacity=capacity * blueprint.pools,
        running=blueprint.max_running_requests,
        # One batch stands for all attention-DP ranks and replicas, each of which has a chunk of its own.
        chunk=blueprint.chunked_prefill_size * blueprint.pools,
        prefill=int(arguments["max_prefill_tokens"] or 16384),
        queue=arguments["max_queued_requests"],
        conservativeness=float(arguments["schedule_conservativeness"] or 1.0),
        prefix_cache=not arguments["disable_radix_cache"],
        log_interval=max(1, int(arguments["decode_log_interval"] or 40)),
        graph_batch=max(blueprint.graph_batches, default=0),
    )
