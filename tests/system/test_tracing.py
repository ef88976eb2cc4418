"""Traces of the real command, as a collector gets them: what belongs together, when it was, and no text."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import re
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from corral.core.errors import CorralError, ErrorInfo
from corral.core.result import Admitted, Failed, Timings, Tokens
from corral.telemetry.record import RequestRecord
from corral.telemetry.request_observer import Asked
from corral.telemetry.tracing import Tracer
from tests.system.process import START_S, CorralProcess, Stream

SOON: dict[str, Any] = {"OTEL_BSP_SCHEDULE_DELAY": "100"}
IMPATIENT: dict[str, Any] = {**SOON, "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
SECRET = "xyzzy"
PARTS = ["template", "queue", "prefill", "decode", "render"]


class Span:
    def __init__(self, proto, resource: dict) -> None:
        self.name: str = proto.name
        self.trace: bytes = proto.trace_id
        self.id: bytes = proto.span_id
        self.parent: bytes = proto.parent_span_id
        self.start: int = proto.start_time_unix_nano
        self.end: int = proto.end_time_unix_nano
        self.has_failed: bool = proto.status.code == 2
        self.kind: int = proto.kind
        self.attributes = read_attributes(proto.attributes)
        self.resource = resource

    @property
    def ms(self) -> float:
        return (self.end - self.start) / 1e6

    def __getitem__(self, name: str) -> Any:
        return self.attributes[name]


def read_attributes(attributes) -> dict:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


class Collector:
    """What `--otlp-endpoint` is for: takes spans, and keeps them."""

    def __init__(self, status: int = 200) -> None:
        self.spans: list[Span] = []
        self.bodies: list[bytes] = []
        self.paths: set[str] = set()
        self.status = status
        self._arrived = threading.Condition()
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.take(self.path, body)
                self.send_response(collector.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, path: str, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        with self._arrived:
            self.paths.add(path)
            self.bodies.append(body)
            for group in request.resource_spans:
                resource = read_attributes(group.resource.attributes)
                self.spans += [Span(span, resource) for scope in group.scope_spans for span in scope.spans]
            self._arrived.notify_all()

    def roots(self, request_id: str) -> list[Span]:
        return [span for span in self.spans if span.attributes.get("corral.request_id") == request_id]

    def trace(self, request_id: str) -> tuple[Span, list[Span]]:
        """The root of a request, and its parts in the order in which they began."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: self.roots(request_id), START_S)
        (root,) = self.roots(request_id)
        parts = [span for span in self.spans if span.parent == root.id]
        return root, sorted(parts, key=lambda span: (span.start, span.end))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def collector():
    with contextlib.closing(Collector()) as found:
        yield found


@pytest.fixture(scope="module")
def server(tiny, collector, tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("alice:sk-alice\n")
    options = ("-m", tiny, "-c", 16384, "-np", 1, "--api-key-file", keys, "--otlp-endpoint", collector.url)
    with CorralProcess(*options, env=SOON) as found:
        yield found


def post(server: CorralProcess, path: str, id: str, headers: dict | None = None, **body: object) -> dict:
    headers = {"x-request-id": id, "authorization": "Bearer sk-alice", **(headers or {})}
    response = httpx.post(server.url + path, json=body, headers=headers, timeout=START_S)
    assert response.status_code == 200, response.text
    return response.json() if not body.get("stream") else {}


def assert_tiled(root: Span, parts: list[Span]) -> None:
    """One part begins where another ends, and together they are the whole."""
    assert [part.name for part in parts] == PARTS
    times = [root.start, *(time for part in parts for time in (part.start, part.end)), root.end]
    assert times == sorted(times)
    assert times[::2] == times[1::2]
    assert {part.trace for part in parts} == {root.trace}


def test_a_completion_is_one_trace(server, collector):
    before = time.time_ns()
    answer = post(server, "/completion", "one", prompt=f"{SECRET} " * 8, n_predict=6, ignore_eos=True)
    root, parts = collector.trace("one")
    assert before <= root.start <= root.end <= time.time_ns()
    assert_tiled(root, parts)
    assert (root.name, root.parent, root.kind, root.has_failed) == ("POST /completion", b"", 2, False)
    expected = {
        "http.request.method": "POST",
        "http.route": "/completion",
        "http.response.status_code": 200,
        "url.path": "/completion",
        "client.address": "127.0.0.1",
        "corral.key": "alice",
        "gen_ai.operation.name": "text_completion",
        "gen_ai.response.model": "llama-bpe.gguf",
        "gen_ai.usage.input_tokens": answer["tokens_evaluated"],
        "gen_ai.usage.output_tokens": 6,
    }
    assert expected.items() <= root.attributes.items()
    assert root.resource["service.name"] == "corral"
    assert root.resource["service.version"]


def test_times_are_those_of_the_answer(server, collector):
    answer = post(server, "/completion", "times", prompt="hello " * 200, n_predict=50, ignore_eos=True)
    _, (_, queue, prefill, decode, _) = collector.trace("times")
    timings = answer["timings"]
    assert prefill["corral.prompt_ms"] == pytest.approx(timings["prompt_ms"], abs=0.01)
    assert prefill["corral.prompt_n"] == answer["tokens_evaluated"]
    assert prefill["corral.cache_n"] == timings["cache_n"]
    assert decode["corral.predicted_ms"] == pytest.approx(timings["predicted_ms"], abs=0.01)
    assert decode["corral.predicted_n"] == 50
    # Whatever the two processes had to wait for is in the parts too, but nothing is missing there.
    assert queue.ms + prefill.ms + decode.ms >= timings["prompt_ms"] + timings["predicted_ms"] - 0.01


def test_a_cached_prompt_says_so(server, collector):
    for id in ("cold", "warm"):
        answer = post(server, "/completion", id, prompt="all the same " * 20, n_predict=2)
    root, parts = collector.trace("warm")
    assert root["gen_ai.usage.cache_read.input_tokens"] == answer["timings"]["cache_n"] > 0
    assert parts[2]["corral.cache"] == "live"


def test_a_stream_is_a_trace_too(server, collector):
    messages = [{"role": "user", "content": SECRET}]
    body: dict[str, Any] = {"messages": messages, "max_tokens": 5, "stream": True, "ignore_eos": True}
    post(server, "/v1/chat/completions", "stream", **body)
    root, parts = collector.trace("stream")
    assert_tiled(root, parts)
    assert root.name == "POST /v1/chat/completions"
    assert root["gen_ai.operation.name"] == "chat"
    assert root["gen_ai.usage.output_tokens"] == 5


def test_a_trace_goes_on_where_the_client_began_it(server, collector):
    trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    headers = {"traceparent": f"00-{trace}-{span}-01"}
    post(server, "/completion", "continued", headers, prompt="hello", n_predict=1)
    root, parts = collector.trace("continued")
    assert (root.trace.hex(), root.parent.hex()) == (trace, span)
    assert {part.trace.hex() for part in parts} == {trace}


@pytest.mark.parametrize("header", ["nonsense", "00-" + "0" * 32 + "-b7ad6b7169203331-01", "ff-1-2-3"])
def test_a_wrong_parent_is_none(server, collector, header):
    id = f"wrong-{header[:5]}"
    post(server, "/completion", id, {"traceparent": header}, prompt="hello", n_predict=1)
    root, _ = collector.trace(id)
    assert root.parent == b""


def test_what_the_client_does_not_trace_is_not_traced(server, collector):
    headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319d-b7ad6b7169203331-00"}
    post(server, "/completion", "unsampled", headers, prompt="hello", n_predict=1)
    post(server, "/completion", "next", prompt="hello", n_predict=1)
    collector.trace("next")
    assert not collector.roots("unsampled")


def test_every_answer_has_its_own_parts(server, collector):
    body: dict[str, Any] = {"prompt": ["a", "b"], "max_tokens": 3, "ignore_eos": True}
    post(server, "/v1/completions", "several", **body)
    root, parts = collector.trace("several")
    assert sorted(part.name for part in parts) == sorted(["template", "render", *PARTS[1:4] * 2])
    assert all(root.start <= part.start <= part.end <= root.end for part in parts)
    first, second = (
        {part.name: part for part in parts if part.attributes.get("corral.task") == i} for i in (0, 1)
    )
    # There is one slot: one waits for the other.
    assert second["queue"].end >= first["decode"].end
    assert second["queue"].ms >= first["prefill"].ms + first["decode"].ms
    assert root["gen_ai.usage.output_tokens"] == 6


def test_an_embedding_decodes_nothing(server, collector):
    post(server, "/embedding", "vector", content=SECRET)
    root, parts = collector.trace("vector")
    assert [part.name for part in parts] == ["template", "queue", "prefill", "render"]
    assert root["gen_ai.operation.name"] == "embeddings"
    assert root["gen_ai.usage.output_tokens"] == 0


def test_only_what_has_work_is_traced(server, collector):
    n_spans = len(collector.spans)
    headers = {"x-request-id": "idle", "authorization": "Bearer sk-alice"}
    assert httpx.get(server.url + "/health", headers=headers, timeout=START_S).status_code == 200
    body = {"prompt": "x", "n_predict": "many"}
    refused = httpx.post(server.url + "/completion", json=body, headers=headers, timeout=START_S)
    assert refused.status_code == 400
    post(server, "/completion", "busy", prompt="hello", n_predict=1)
    collector.trace("busy")
    assert not collector.roots("idle")
    assert len(collector.spans) == n_spans + 6


def test_a_client_that_leaves_ends_its_trace(server, collector):
    body = {"prompt": "hello", "n_predict": 15000, "ignore_eos": True, "stream": True}
    headers = {"x-request-id": "left", "authorization": "Bearer sk-alice"}
    with httpx.stream(
        "POST", server.url + "/completion", json=body, headers=headers, timeout=START_S
    ) as answer:
        lines = answer.iter_lines()
        for _ in range(8):
            next(lines)
    root, parts = collector.trace("left")
    assert [part.name for part in parts] == PARTS[:4]
    assert root["http.response.status_code"] == 499
    assert root["error.type"] == "499"
    assert not root.has_failed  # nobody here has done anything wrong
    assert 0 < parts[3]["corral.predicted_n"] < 15000
    assert parts[3].end <= root.end


def test_no_text_and_no_key_is_in_any_span(server, collector):
    post(server, "/completion", "last", prompt=SECRET, n_predict=1)
    collector.trace("last")
    everything = b"".join(collector.bodies)
    assert SECRET.encode() not in everything
    assert b"sk-alice" not in everything
    assert collector.paths == {"/v1/traces"}


@pytest.mark.slow
async def test_a_lost_engine_is_part_of_the_trace(tiny):
    with (
        contextlib.closing(Collector()) as collector,
        CorralProcess("-m", tiny, "-c", 8192, "-np", 1, "--otlp-endpoint", collector.url, env=SOON) as server,
    ):
        stream = Stream(server.url, prompt="hello", n_predict=1000, ignore_eos=True)
        await stream.reach(20)
        server.engine.kill()
        await stream.task
        assert len(stream.tokens) == 1000
        while not (roots := [span for span in collector.spans if span.name == "POST /completion"]):
            await asyncio.sleep(0.05)
        (root,) = roots
        _, parts = collector.trace(root["corral.request_id"])
        assert_tiled(root, parts)
        assert parts[3]["corral.n_engines"] == 2
        assert not root.has_failed


def test_what_has_failed_is_marked():
    """A stream that began well, and a request that never had a slot."""
    with contextlib.closing(Collector()) as collector:
        tracer = Tracer(collector.url)
        asked = Asked("POST", "/completion", "/completion")
        begun, queued = RequestRecord("begun"), RequestRecord("queued")
        task = begun.add_task(5)
        task.update(Admitted(0, 0, 0), task.queued_at + 1)
        timings = Timings(cache_n=0, prompt_n=5, prompt_ms=1, predicted_n=1, predicted_ms=1)
        task.update(Tokens(task_id=0, tokens=[1], text="x", timings=timings), task.queued_at + 2)
        task.update(Failed(0, ErrorInfo(["CorralError"], "y")), task.queued_at + 3)
        queued.add_task(5)
        for record, status, seconds in ((begun, 200, 4.0), (queued, 503, 5.0)):
            record.status, record.ended_at = status, record.started_at + seconds
            tracer.on_request_end(asked, record)
        tracer.close()
        root, parts = collector.trace("begun")
        assert root.has_failed
        assert [part.name for part in parts] == PARTS[:4]
        assert [round(part.ms) for part in parts[1:]] == [1000, 1000, 1000]
        root, parts = collector.trace("queued")
        assert root.has_failed
        assert [part.name for part in parts] == PARTS[:2]
        assert parts[1].end == root.end


def test_what_was_not_sent_yet_is_sent_at_the_end(tiny):
    env = {"OTEL_BSP_SCHEDULE_DELAY": "3600000", "OTEL_RESOURCE_ATTRIBUTES": "service.name=mine,zone=b"}
    with contextlib.closing(Collector()) as collector:
        env["LLAMA_ARG_OTLP_ENDPOINT"] = collector.url + "/"
        with CorralProcess("-m", tiny, "-c", 512, env=env) as server:
            post(server, "/completion", "end", prompt="hello", n_predict=1)
            assert server.stop() == 0
        root, _ = collector.trace("end")
        assert (root.resource["service.name"], root.resource["zone"]) == ("mine", "b")
        assert collector.paths == {"/v1/traces"}
        # Nobody else has sent anything: FastAPI would, too.
        assert {span.name for span in collector.spans} == {"POST /completion", *PARTS}


@contextlib.contextmanager
def nobody():
    """An address that refuses."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"


@contextlib.contextmanager
def silence():
    """An address that takes everything and says nothing."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(64)
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"


@pytest.mark.parametrize("missing", [nobody, silence])
def test_a_missing_collector_is_in_nobodys_way(tiny, missing):
    with (
        missing() as url,
        CorralProcess("-m", tiny, "-c", 512, "--otlp-endpoint", url, env=IMPATIENT) as server,
    ):
        for _ in range(20):
            assert server.complete(prompt="hello", n_predict=2)["tokens_predicted"] == 2
        server.wait_for("traces are lost, cannot send them to .*/v1/traces")
        for _ in range(20):
            assert server.complete(prompt="hello", n_predict=2)["tokens_predicted"] == 2
        assert server.stop() == 0
    text = "".join(server.lines)
    assert text.count("traces are lost") == 1
    assert "opentelemetry" not in text
    assert "Traceback" not in text


def test_a_collector_that_comes_back_gets_what_comes_then(tiny):
    with (
        contextlib.closing(Collector(404)) as collector,
        CorralProcess("-m", tiny, "-c", 512, "--otlp-endpoint", collector.url, env=SOON) as server,
    ):
        server.complete(prompt="hello", n_predict=1)
        server.wait_for("traces are lost, .*404")
        collector.status = 200
        server.complete(prompt="hello", n_predict=1)
        server.wait_for("traces are sent to .* again")


def run(tiny, *options: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "corral", "-m", str(tiny), "--port", "0", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=START_S, env=env)


@pytest.mark.parametrize("url", ["localhost:4318", "ftp://x", "http://", "http://[", "http://x:99999"])
def test_what_is_no_url_is_refused(url):
    with pytest.raises(CorralError, match="--otlp-endpoint"):
        Tracer(url)


def test_what_is_no_url_ends_the_start(tiny):
    result = run(tiny, "--otlp-endpoint", "ftp://x")
    assert result.returncode == 1
    assert "--otlp-endpoint" in result.stderr
    assert_ends_with_one_reason(result.stderr)


def assert_ends_with_one_reason(said):
    """Behind what was said while the model was loading, and without a traceback."""
    *before, last = said.splitlines()
    assert last.startswith("corral: ")
    assert all(re.match(r"\d\d:\d\d:\d\d ", line) for line in before), said


@pytest.fixture
def without(tmp_path, monkeypatch):
    """A Python in which some modules cannot be imported."""

    def block(*names: str) -> None:
        lines = ["import sys", *(f"sys.modules[{name!r}] = None" for name in names)]
        (tmp_path / "sitecustomize.py").write_text("\n".join(lines))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    return block


@pytest.mark.parametrize("name", ["opentelemetry.sdk", "opentelemetry.exporter"])
def test_missing_packages_are_named(tiny, without, name):
    without(name)
    result = run(tiny, "--otlp-endpoint", "http://127.0.0.1:4318")
    assert result.returncode == 1
    assert "pip install '.[otel]'" in result.stderr
    assert_ends_with_one_reason(result.stderr)


def test_nothing_of_it_is_needed_by_those_who_do_not_ask(tiny, without):
    without("opentelemetry.sdk", "opentelemetry.exporter", "prometheus_client", "corral.telemetry.tracing")
    with CorralProcess("-m", tiny, "-c", 512) as server:
        assert server.complete(prompt="hello", n_predict=1)["tokens_predicted"] == 1
