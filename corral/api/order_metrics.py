"""How long orders wait and take, and how large they are, by the client that sent them: histograms.

A watcher of the board, so all of it happens on the event loop: what a token costs is one lookup and one
observation.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from prometheus_client import CollectorRegistry, Counter, Histogram

from corral.core.result import Admitted, Begun, TaskResult, Tier, Tokens
from corral.core.visit import Leg, Visit

LABELS = ("key", "model")
# From a tiny model on a fast machine to a huge one that swaps.
_WAIT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_TOKEN_S = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05),
    *(0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5),
)
_REQUEST_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_TOKENS = (1, 4, 16, 64, 128, 256, 512, *(1 << n for n in range(10, 19)))


@dataclass(frozen=True, slots=True)
class _Client:
    """The histograms of one client."""

    first: Histogram
    between: Histogram
    queue: Histogram
    request: Histogram
    prompt: Histogram
    generated: Histogram


class OrderMetrics:
    """A `Watcher`."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        self._registry = registry
        self._model = model
        self._clients: dict[str, _Client] = {}
        self._first = self._histogram(
            "time_to_first_token_seconds",
            "From a request's arrival to the first token of an answer.",
            _WAIT_S,
        )
        self._between = self._histogram(
            "time_between_tokens_seconds", "Between two tokens of an answer.", _TOKEN_S
        )
        self._queue = self._histogram("queue_seconds", "That an order waits for a slot.", _WAIT_S)
        self._request = self._histogram(
            "request_seconds", "From a request's arrival to the end of its answer.", _REQUEST_S
        )
        self._prompt = self._histogram("prompt_tokens", "Tokens of a prompt, cached ones included.", _TOKENS)
        self._generated = self._histogram("generated_tokens", "Tokens of an answer.", _TOKENS)
        hits = Counter(
            "corral_cache_hits",
            "Prompts by where their beginning came from; none: all of it was evaluated.",
            ("tier",),
            registry=registry,
        )
        cached = Counter(
            "corral_cached_tokens",
            "Prompt tokens that were not evaluated, by where they came from.",
            ("tier",),
            registry=registry,
        )
        self._hits = {tier: hits.labels(tier.value) for tier in Tier}
        self._cached = {tier: cached.labels(tier.value) for tier in Tier if tier is not Tier.NONE}
        self.n_cached = 0
        self.n_most = 0  # tokens of the longest sequence so far
        self.n_drafted = 0
        self.n_accepted = 0

    def note(self, visit: Visit, leg: Leg, result: TaskResult) -> None:
        if isinstance(result, Tokens):
            now, client = perf_counter(), self.client(visit.client.name)
            if not leg.first_at:
                client.first.observe(now - visit.started_at)
            elif result.tokens:
                n = len(result.tokens)
                for _ in range(n):
                    client.between.observe((now - leg.last_at) / n)
        elif isinstance(result, Admitted | Begun):
            self._begin(visit, leg, result)

    def leave(self, visit: Visit, leg: Leg) -> None:
        client = self.client(visit.client.name)
        if not leg.admitted_at:
            client.queue.observe(leg.queue_s)
        if leg.timings is not None:
            client.generated.observe(leg.timings.predicted_n)
            self.n_drafted += leg.timings.draft_n
            self.n_accepted += leg.timings.draft_n_accepted
            self.n_most = max(self.n_most, leg.n_prompt + leg.timings.predicted_n)

    def end(self, visit: Visit) -> None:
        """A request that had orders has been answered, or given up."""
        self.client(visit.client.name).request.observe(visit.ended_at - visit.started_at)

    def client(self, name: str) -> _Client:
        """Whose numbers are shown from now on."""
        if found := self._clients.get(name):
            return found
        histograms = self._first, self._between, self._queue, self._request, self._prompt, self._generated
        client = self._clients[name] = _Client(*(each.labels(name, self._model) for each in histograms))
        return client

    def _begin(self, visit: Visit, leg: Leg, result: Admitted | Begun) -> None:
        """An engine begins with it; after that one was lost, another does so again, and looks for what is
        cached there."""
        if not leg.admitted_at:
            client = self.client(visit.client.name)
            client.queue.observe(leg.queue_s)
            client.prompt.observe(leg.n_prompt)
        if isinstance(result, Admitted):
            self._hits[result.tier].inc()
            if result.n_cached and result.tier is not Tier.NONE:
                self._cached[result.tier].inc(result.n_cached)
                self.n_cached += result.n_cached

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"corral_{name}", text, LABELS, registry=self._registry, buckets=buckets)
