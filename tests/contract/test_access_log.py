"""One log line for every request: what it was and how it ended, and nothing of what was in it."""

from __future__ import annotations

import asyncio
import logging

import httpx
import pytest
from starlette.types import ASGIApp

from corral.server.record_middleware import RecordMiddleware
from corral.telemetry.access_log import AccessLog
from tests.contract.inline import Server

SECRET = "attack at dawn"


@pytest.fixture
def lines(caplog):
    """Makes the fields of all request lines so far."""
    caplog.set_level(logging.INFO, "corral")
    return lambda: [r.args for r in caplog.records if r.levelno == logging.INFO and isinstance(r.args, dict)]


def log_of(app: ASGIApp) -> RecordMiddleware:
    return RecordMiddleware(app, [AccessLog()])


def logged(server: Server) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(log_of(server.app), client=("10.1.2.3", 5))
    return httpx.AsyncClient(transport=transport, base_url="http://corral")


async def test_a_line_for_every_request(lines, caplog):
    http = logged(Server())
    body = b'{"prompt": "a", "n_predict": 2}'
    answer = await http.post("/completion", content=body)
    await http.get("/none?x=1")
    await http.get("/completion")
    await http.post("/completion", content=b"{")
    assert [(f["method"], f["path"], f["status"]) for f in lines()] == [
        ("POST", "/completion", 200),
        ("GET", "/none", 404),
        ("GET", "/completion", 405),
        ("POST", "/completion", 400),
    ]
    first = lines()[0]
    assert first["client"] == "10.1.2.3"
    assert (first["request_bytes"], first["response_bytes"]) == (len(body), len(answer.content))
    assert first["ms"] > 0
    assert caplog.records[0].getMessage().startswith("POST /completion 200 in ")


async def test_files_of_the_page_are_told_to_those_who_want_to_hear_everything(lines, caplog):
    http = logged(Server())
    assert (await http.get("/")).status_code == (await http.get("/css/base.css")).status_code == 200
    await http.get("/css/none.css")
    assert [f["path"] for f in lines()] == ["/css/none.css"]
    caplog.set_level(logging.DEBUG, "corral")
    await http.get("/")
    assert caplog.records[-1].getMessage().startswith("GET / 200 in ")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("is_open", [True, False])
async def test_health_checks_have_no_line_unless_verbose(lines, caplog, method, is_open):
    http = logged(Server(is_open=is_open))
    for path in ("/health", "/v1/health", "/health?include_slots", "/ready"):
        assert (await http.request(method, path)).status_code == (200 if is_open else 503)
    assert lines() == []
    assert (await http.post("/health")).status_code == 405
    assert [f["status"] for f in lines()] == [405], "a mistake has one"
    caplog.set_level(logging.DEBUG, "corral")
    await http.request(method, "/health")
    assert caplog.records[-1].getMessage().startswith(f"{method} /health ")


async def test_nothing_of_what_was_in_it(caplog, lines):
    http = logged(Server(api_keys=("sk-123",)))
    for headers in ({"x-api-key": "sk-123"}, {"x-api-key": "sk-wrong"}):
        await http.post("/completion", json={"prompt": SECRET, "n_predict": 2}, headers=headers)
        await http.get("/slots", params={"q": SECRET, "api_key": "sk-123"}, headers=headers)
    assert len([line for line in lines() if "path" in line]) == 4
    for word in (SECRET, "attack", "sk-", "?"):
        assert word not in caplog.text


async def test_a_stream_is_logged_when_it_has_ended(lines):
    http = logged(Server())
    body = {"prompt": "a", "n_predict": 5, "stream": True, "ignore_eos": True}
    response = await http.post("/completion", json=body)
    (line,) = lines()
    assert (line["status"], line["response_bytes"]) == (200, len(response.content))


def call(app, path: str, body: bytes, left: asyncio.Event):
    """A client that sends everything and leaves when it is told to; returns the call and what it gets."""
    sent, messages = [], iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive():
        message = next(messages, None)
        if message is None:
            await left.wait()
            return {"type": "http.disconnect"}
        return message

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"spec_version": "2.3"},
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [],
        "root_path": "",
        "scheme": "http",
        "server": ("corral", 80),
        "client": None,
    }
    return asyncio.create_task(app(scope, receive, send)), sent


@pytest.mark.parametrize("stream", ["true", "false"])
async def test_a_client_that_leaves_is_499(lines, stream):
    server, left = Server(), asyncio.Event()
    body = b'{"prompt": "a", "n_predict": -1, "ignore_eos": true, "stream": %s}' % stream.encode()
    task, sent = call(log_of(server.app), "/completion", body, left)
    while not server.engine.n_tasks or (stream == "true" and len(sent) < 3):
        await asyncio.sleep(0)
    left.set()
    await task
    (line,) = lines()
    assert (line["status"], line["client"], line["path"]) == (499, "unix", "/completion")


async def test_a_bug_is_logged_once_and_answered(lines, caplog, monkeypatch):
    server = Server()
    monkeypatch.setattr(server.engine, "submit", lambda *_: 1 / 0)
    response = await logged(server).post("/completion", json={"prompt": SECRET})
    assert response.status_code == 500
    (line,) = lines()
    assert line["status"] == 500
    assert caplog.text.count("ZeroDivisionError") == 1
    assert SECRET not in caplog.text


async def test_an_application_that_breaks_before_it_answers_is_500(lines):
    async def app(*_):
        raise ValueError

    transport = httpx.ASGITransport(log_of(app))
    with pytest.raises(ValueError, match=r"^$"):
        await httpx.AsyncClient(transport=transport).get("http://corral/x")
    assert lines()[0]["status"] == 500


async def test_a_request_that_the_server_gives_up_is_503(lines):
    server, left = Server(), asyncio.Event()
    server.engine.is_paused = True
    task, _ = call(log_of(server.app), "/completion", b'{"prompt": "a"}', left)
    while not server.engine.n_tasks:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert lines()[0]["status"] == 503


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/a%0d%0aGET%20/forged", "/a%0d%0aGET%20/forged"),
        ("/%1b[2J", "/%1b%5B2J"),
        ("/" + "x" * 5000, "/" + "x" * 255),
        ("/ü", "/%C3%BC"),
    ],
)
async def test_paths_stay_encoded_and_short(lines, path, shown):
    await logged(Server()).get(path)
    assert lines()[0]["path"] == shown


@pytest.mark.parametrize("raw", [None, b"/a\r\nb\xff"])
async def test_a_path_that_was_not_encoded_is(lines, raw):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body"})

    async def nothing(*_):
        pass

    scope = {"type": "http", "method": "GET", "path": "/a\r\nb", "headers": [(b"content-length", b"x")]}
    await log_of(app)({**scope, **({"raw_path": raw} if raw else {})}, nothing, nothing)
    (line,) = lines()
    assert line["path"].startswith("/a%0D%0Ab")
    assert line["request_bytes"] == 0


async def test_nothing_is_made_for_a_log_that_wants_nothing(caplog, monkeypatch):
    caplog.set_level(logging.WARNING, "corral")
    monkeypatch.setattr("corral.telemetry.access_log._fields", lambda *_: 1 / 0)
    assert (await logged(Server()).get("/props")).status_code == 200
    assert not caplog.records


async def test_every_answer_has_the_id_that_its_line_has(lines):
    http = logged(Server(api_keys=("sk-1",)))
    for path, headers in (("/props", {}), ("/none", {}), ("/slots", {"x-request-id": "my/id-1:2"})):
        answer = await http.get(path, headers=headers)
        assert answer.headers["x-request-id"] == lines()[-1]["id"]
    assert lines()[-1]["id"] == "my/id-1:2"
    assert len({line["id"] for line in lines() if "path" in line}) == 3


@pytest.mark.parametrize("id", ["", "x" * 129, "a b", "a\tb", "ä", '"', "<script>"])
async def test_an_id_that_could_be_anything_is_replaced(lines, id):
    answer = await logged(Server()).get("/props", headers={b"x-request-id": id.encode()})
    assert answer.headers["x-request-id"] == lines()[-1]["id"] != id
    assert len(lines()[-1]["id"]) == 32


async def test_a_line_tells_whose_key_it_was_and_what_was_done(lines, caplog, tmp_path):
    (tmp_path / "keys").write_text("alice:sk-1")
    http = logged(Server(api_key_file=str(tmp_path / "keys")))
    body = {"prompt": "some words that are said twice, more or less", "n_predict": 3}
    for _ in range(2):
        answer = await http.post("/completion", json=body, headers={"x-api-key": "sk-1"})
    timings, line = answer.json()["timings"], lines()[-1]
    assert (line["key"], line["cache"]) == ("alice", "live")
    for name in ("prompt_n", "cache_n", "predicted_n"):
        assert line[name] == timings[name]
    assert line["queue_ms"] >= 0
    assert line["prompt_ms"] == round(timings["prompt_ms"], 1)
    assert "key alice" in caplog.text
    assert "sk-1" not in caplog.text
    await http.get("/props")
    assert "prompt_n" not in lines()[-1], "nothing had to be done"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/completion", {"prompt": "some words", "n_predict": 4}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_line_tells_tokens_per_second(lines, caplog, path, body, stream):
    await logged(Server()).post(path, json={**body, "ignore_eos": True, "stream": stream})
    (line,) = lines()
    for what in ("prompt", "predicted"):
        n, ms, rate = (line[f"{what}_{name}"] for name in ("n", "ms", "per_second"))
        assert rate > 0
        assert rate == pytest.approx(n / ms * 1e3, rel=0.5) or ms < 1
        assert f"{rate:.1f} tokens/s" in caplog.text


@pytest.mark.parametrize(
    ("path", "body"), [("/embedding", {"content": "some words"}), ("/v1/embeddings", {"input": ["a", "bc"]})]
)
async def test_a_line_of_an_embedding_tells_only_of_its_prompt(lines, caplog, path, body):
    assert (await logged(Server()).post(path, json=body)).status_code == 200
    (line,) = lines()
    assert line["prompt_n"] > 0
    assert line["prompt_per_second"] > 0
    assert not {"cache", "cache_n", "predicted_n", "predicted_ms"} & set(line)
    assert "cached" not in caplog.text
    assert "generated" not in caplog.text


async def test_several_answers_are_one_line(lines):
    body = {"prompt": ["a", "bc"], "n": 2, "n_predict": 3}
    answers = (await logged(Server()).post("/completion", json=body)).json()
    assert len(answers) == 4
    n = sum(answer["timings"]["predicted_n"] for answer in answers)
    assert (len(lines()), lines()[0]["predicted_n"]) == (1, n)


@pytest.mark.parametrize("stream", [False, True])
async def test_prompts_and_answers_are_logged_if_that_is_wanted(caplog, stream):
    caplog.set_level(logging.DEBUG, "corral")
    body = {"prompt": SECRET, "n_predict": 4, "ignore_eos": True, "stream": stream}
    await logged(Server()).post("/completion", json=body)
    assert SECRET not in caplog.text
    assert f"a prompt of {len(SECRET)} tokens" in caplog.text, "but how long it is"
    answer = await logged(Server(log_prompts=True)).post("/completion", json=body)
    said = [r.args for r in caplog.records if isinstance(r.args, dict)]
    assert [fields["prompt"] for fields in said if "prompt" in fields] == [SECRET]
    (text,) = [fields["answer"] for fields in said if "answer" in fields]
    assert text
    assert stream or text == answer.json()["content"]
    ids = {fields["id"] for fields in said if "prompt" in fields or "answer" in fields}
    assert ids == {answer.headers["x-request-id"]}
