"""Histograms of tasks by client: waiting, latency and size.

On the event loop: a token costs one lookup and one observation.
"""

from __future__ import annotations

from collections import Counter as Counts
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram

from corral.core.result import Admitted, Begun, TaskResult, Tier, Tokens
from corral.telemetry.record import RequestRecord, TaskRecord

LABELS = ("key", "model")
# From a tiny model on a fast machine to a huge one that swaps.
_WAIT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_TOKEN_S = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05),
    *(0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5),
)
_REQUEST_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_TOKENS = (1, 4, 16, 64, 128, 256, 512, *(1 << n for n in range(10, 19)))


# Name, description and buckets of each field of `_Client`.
_HISTOGRAMS = (
    (
        "time_to_first_token_seconds",
        "Time from a request's arrival to the first token of an answer.",
        _WAIT_S,
    ),
    ("time_between_tokens_seconds", "Time between two tokens of an answer.", _TOKEN_S),
    ("queue_seconds", "Time that a task waited for a slot.", _WAIT_S),
    ("request_seconds", "Time from a request's arrival to the end of its answer.", _REQUEST_S),
    ("prompt_tokens", "Prompt tokens, including cached ones.", _TOKENS),
    ("generated_tokens", "Tokens per answer.", _TOKENS),
)


class _Client(NamedTuple):
    first: Histogram
    between: Histogram
    queue: Histogram
    request: Histogram
    prompt: Histogram
    generated: Histogram


class TaskMetrics:
    """A `RecordObserver` that fills histograms and counters."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        self._model = model
        self._clients: dict[str, _Client] = {}
        self._histograms = [
            Histogram(f"corral_{name}", text, LABELS, registry=registry, buckets=buckets)
            for name, text, buckets in _HISTOGRAMS
        ]
        hits = Counter(
            "corral_cache_hits",
            "Prompts by the origin of their reused prefix; none: nothing was reused.",
            ("tier",),
            registry=registry,
        )
        cached = Counter(
            "corral_cached_tokens",
            "Prompt tokens reused instead of evaluated, by their origin.",
            ("tier",),
            registry=registry,
        )
        self._hits = {tier: hits.labels(tier.value) for tier in Tier}
        self._cached = {tier: cached.labels(tier.value) for tier in Tier if tier is not Tier.NONE}
        self.n_cached = 0
        self.n_most = 0  # tokens of the longest sequence so far
        self.n_drafted = 0
        self.n_accepted = 0
        self.n_drafts = 0
        self.accepted_per_pos: Counts[int] = Counts()

    def on_result(self, record: RequestRecord, task: TaskRecord, result: TaskResult) -> None:
        if isinstance(result, Tokens):
            client = self.client(record.client.name)
            if task.n_outputs == 1:
                client.first.observe(task.ttft_s)
            else:
                for _ in result.tokens:
                    client.between.observe(task.gap_s)
        elif isinstance(result, Admitted | Begun):
            self._start(record, task, result)

    def on_end(self, record: RequestRecord, task: TaskRecord) -> None:
        client = self.client(record.client.name)
        if not task.admitted_at:
            client.queue.observe(task.queue_s)
        if task.timings is not None:
            client.generated.observe(task.timings.predicted_n)
            self.n_drafted += task.timings.draft_n
            self.n_accepted += task.timings.draft_n_accepted
            self.n_drafts += task.timings.draft_steps
            self.accepted_per_pos.update(dict(enumerate(task.timings.accepted_per_pos)))
            self.n_most = max(self.n_most, task.n_prompt + max(0, task.timings.predicted_n - 1))

    def on_request_end(self, record: RequestRecord) -> None:
        self.client(record.client.name).request.observe(record.ended_at - record.started_at)

    def client(self, name: str) -> _Client:
        """Return the histograms of a client, which are shown from now on."""
        if found := self._clients.get(name):
            return found
        client = _Client(*(each.labels(name, self._model) for each in self._histograms))
        self._clients[name] = client
        return client

    def _start(self, record: RequestRecord, task: TaskRecord, result: Admitted | Begun) -> None:
        """Count a task that an engine starts. After a restart another engine does, with a different cache."""
        if task.n_engines == 1:
            client = self.client(record.client.name)
            client.queue.observe(task.queue_s)
            client.prompt.observe(task.n_prompt)
        if isinstance(result, Admitted):
            self._hits[result.tier].inc()
            if result.n_cached and result.tier is not Tier.NONE:
                self._cached[result.tier].inc(result.n_cached)
                self.n_cached += result.n_cached
