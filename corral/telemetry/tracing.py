"""OpenTelemetry traces: one for each request that had tasks, exported from its record when it has ended.

Requires the `otel` extra; imported only with `--otlp-endpoint`. A thread sends the spans, and drops them
if the collector does not respond. They contain no text of prompts and answers.
"""

from __future__ import annotations

import logging
import threading
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from corral import __version__
from corral.core.errors import CorralError
from corral.telemetry.record import LEFT, RequestRecord, TaskRecord
from corral.telemetry.request_observer import Asked

try:
    from opentelemetry.context import Context
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    from opentelemetry.util.types import AttributeValue
except ImportError:
    raise CorralError(
        "--otlp-endpoint requires more packages: pip install '.[otel]' in a clone of Corral"
    ) from None

Attributes = dict[str, AttributeValue]

_PATH = "/v1/traces"
_FLUSH_S = 5.0  # for sending the last spans
_MAX_TEXT = 256
_OPERATIONS = {"chat": "chat", "embed": "embeddings", "rank": "embeddings", "classify": "embeddings"}
_CARRIED = (b"traceparent", b"tracestate")
_log = logging.getLogger("corral")


class Tracer:
    def __init__(self, endpoint: str) -> None:
        """Raises CorralError if the endpoint is not a URL."""
        url = _traces_url(endpoint)
        # Operators may override these with OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME.
        resource = Resource.create({SERVICE_NAME: "corral", SERVICE_VERSION: __version__})
        resource = resource.merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(_Exporter(url)))
        self._tracer = self._provider.get_tracer("corral", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def on_request_end(self, asked: Asked, record: RequestRecord) -> None:
        """Export the trace of a request that had tasks."""
        if not record.tasks:
            return
        clock = time.time() - time.perf_counter()
        ended_at, status = record.ended_at, record.status
        root = self._tracer.start_span(
            f"{asked.method} {asked.route}",
            self._parent(asked),
            SpanKind.SERVER,
            {**_http(asked, status), **self._work(asked, record)},
            start_time=_ns(record.started_at + clock),
        )
        has_failed = status == 200 and not all(task.is_done for task in record.tasks)
        if status >= 500 or has_failed:
            root.set_status(Status(StatusCode.ERROR))
        context = set_span_in_context(root, Context())
        for phase in _phases(record, status, ended_at) if root.is_recording() else ():
            start, end = _ns(phase.started_at + clock), _ns(phase.ended_at + clock)
            span = self._tracer.start_span(phase.name, context, attributes=phase.attributes, start_time=start)
            span.end(end)
        root.end(_ns(ended_at + clock))

    def close(self) -> None:
        """Send the remaining spans, waiting at most `_FLUSH_S`."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(_FLUSH_S)

    def _parent(self, asked: Asked) -> Context:
        carrier = {
            name.decode(): value.decode("latin-1") for name, value in asked.headers if name in _CARRIED
        }
        return self._propagator.extract(carrier, Context())

    def _work(self, asked: Asked, record: RequestRecord) -> Attributes:
        timings = [task.timings for task in record.tasks if task.timings is not None]
        return {
            "corral.request_id": record.id,
            "corral.key": record.client.name,
            "gen_ai.provider.name": "corral",
            "gen_ai.operation.name": _operation(asked),
            "gen_ai.response.model": record.model,
            "gen_ai.request.choice.count": len(record.tasks),
            "gen_ai.usage.input_tokens": sum(task.n_prompt for task in record.tasks),
            "gen_ai.usage.cache_read.input_tokens": sum(timing.cache_n for timing in timings),
            "gen_ai.usage.output_tokens": sum(timing.predicted_n for timing in timings),
        }


@dataclass(frozen=True, slots=True)
class _Phase:
    """A phase of a request, in times of `time.perf_counter`."""

    name: str
    started_at: float
    ended_at: float
    attributes: Attributes = field(default_factory=dict)


def _phases(record: RequestRecord, status: int, ended_at: float) -> Iterator[_Phase]:
    yield _Phase("template", record.started_at, record.tasks[0].queued_at)
    for i, task in enumerate(record.tasks):
        yield from _task_phases(task, {"corral.task": i}, ended_at)
    if status != LEFT and all(task.is_done for task in record.tasks):
        yield _Phase("render", max(task.last_at or task.ended_at for task in record.tasks), ended_at)


def _task_phases(task: TaskRecord, index: Attributes, ended_at: float) -> Iterator[_Phase]:
    ended_at = task.ended_at or ended_at
    yield _Phase("queue", task.queued_at, task.admitted_at or ended_at, index)
    if not task.admitted_at:
        return
    timings = task.timings
    prompt: Attributes = {"corral.prompt_n": task.n_prompt, "corral.cache": task.tier.value}
    if timings is not None:
        prompt |= {"corral.cache_n": timings.cache_n, "corral.prompt_ms": timings.prompt_ms}
    engines = {"corral.n_engines": task.n_engines}
    yield _Phase("prefill", task.admitted_at, task.first_at or ended_at, index | prompt | engines)
    if task.first_at and timings is not None:
        answer = {
            "corral.predicted_n": timings.predicted_n,
            "corral.predicted_ms": timings.predicted_ms,
            "corral.draft_n": timings.draft_n,
            "corral.draft_n_accepted": timings.draft_n_accepted,
        }
        last_at = task.last_at if task.is_done else ended_at
        yield _Phase("decode", task.first_at, last_at, index | answer | engines)


class _Exporter(SpanExporter):
    """Logs once that spans cannot be sent, and once that they can be sent again."""

    def __init__(self, url: str) -> None:
        self._name = url.rpartition("@")[2]  # without a password
        self._complaints = _Complaints()
        self._otlp = OTLPSpanExporter(url)
        self._is_lost = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._complaints.last = ""
        result = self._otlp.export(spans)
        is_lost = result is not SpanExportResult.SUCCESS
        if is_lost and not self._is_lost:
            reason = self._complaints.last or "no response"
            _log.warning("traces are lost, cannot send them to %s: %s", self._name, reason)
        elif self._is_lost and not is_lost:
            _log.info("traces are sent to %s again", self._name)
        self._is_lost = is_lost
        return result

    def shutdown(self) -> None:
        self._otlp.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30000) -> bool:  # noqa: ARG002
        return True


class _Complaints(logging.Handler):
    """Captures OpenTelemetry's log messages about the collector, which it repeats at every attempt."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""
        logger = logging.getLogger("opentelemetry")
        logger.propagate = False
        logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        # The last of several only reports that there were too many attempts.
        self.last = self.last or record.getMessage()


def _traces_url(endpoint: str) -> str:
    try:
        url = urllib.parse.urlsplit(endpoint)
        is_url = url.scheme in ("http", "https") and bool(url.hostname) and (url.port or 1) > 0
    except ValueError:
        is_url = False
    if not is_url:
        raise CorralError(f"--otlp-endpoint '{endpoint}' is not a URL; use one such as http://127.0.0.1:4318")
    return endpoint if url.path.endswith(_PATH) else endpoint.rstrip("/") + _PATH


def _http(asked: Asked, status: int) -> Attributes:
    agent = dict(asked.headers).get(b"user-agent", b"")
    attributes: Attributes = {
        "http.request.method": asked.method,
        "http.route": asked.route,
        "http.response.status_code": status,
        "url.path": asked.path[:_MAX_TEXT],
        "url.scheme": asked.scheme,
    }
    if asked.address:
        attributes |= {"client.address": asked.address[:_MAX_TEXT]}
    if agent:
        attributes |= {"user_agent.original": agent.decode("latin-1")[:_MAX_TEXT]}
    if status >= 500 or status == LEFT:
        attributes |= {"error.type": str(status)}
    return attributes


def _operation(asked: Asked) -> str:
    return next((name for part, name in _OPERATIONS.items() if part in asked.route), "text_completion")


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
