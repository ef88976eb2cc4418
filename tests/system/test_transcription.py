"""Transcription and control through the real command, under a prefix: the `openai` package as the judge."""

from __future__ import annotations

import io
import json
import re

import httpx
import openai
import pytest
import soundfile

from tests.model.vision import sound
from tests.system.process import START_S, CorralProcess
from tests.tools.tiny_models import llama_bpe
from tests.tools.tiny_vision import ultravox_mmproj

PREFIX = "/llm/v2"
SECONDS = 0.5
LONG = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 400, "logit_bias": {"326": -100}}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    directory = tmp_path_factory.mktemp("hearing")
    files = ("-m", llama_bpe(directory), "--mmproj", ultravox_mmproj(directory))
    with CorralProcess(
        *files, "-c", 1024, "-t", 1, "--api-prefix", PREFIX, "--sse-ping-interval", 1
    ) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}{PREFIX}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def http(server):
    with httpx.Client(base_url=f"{server.url}{PREFIX}", timeout=START_S) as http:
        yield http


def wav() -> bytes:
    file = io.BytesIO()
    soundfile.write(file, sound(1, SECONDS), 16000, format="WAV")
    return file.getvalue()


def transcribe(http, status=200, **fields):
    response = http.post(
        "/v1/audio/transcriptions", data={"max_tokens": "12", **fields}, files={"file": wav()}
    )
    assert response.status_code == status, response.text
    return response


def test_paths_are_under_the_prefix(server, http):
    assert http.get("/health").json()["status"] == "ok"
    assert http.get("/").headers["content-type"].startswith("text/html")
    for path in ("/health", "/v1/models", f"{PREFIX}x/health", "/"):
        assert server.get(path).status_code == 404
    assert server.get(PREFIX).headers["location"] == f"{PREFIX}/"


def test_the_openai_client_transcribes(client):
    audio = ("clip.wav", wav())
    answer = client.audio.transcriptions.create(file=audio, model="any", extra_body={"max_tokens": "12"})
    again = client.audio.transcriptions.create(
        file=audio, model="any", response_format="verbose_json", extra_body={"max_tokens": "12"}
    )
    assert answer.text
    assert again.text == answer.text
    assert again.duration == SECONDS
    assert [(s.start, s.end, s.text) for s in again.segments] == [(0, SECONDS, answer.text)]
    assert answer.usage.output_tokens == 12
    assert answer.usage.input_token_details.audio_tokens > 0


def test_the_openai_client_streams(client, http):
    whole = transcribe(http).json()["text"]
    events = list(
        client.audio.transcriptions.create(
            file=("clip.wav", wav()), model="any", stream=True, extra_body={"max_tokens": "12"}
        )
    )
    *deltas, done = events
    assert {event.type for event in deltas} == {"transcript.text.delta"}
    assert done.type == "transcript.text.done"
    assert "".join(event.delta for event in deltas) == done.text
    assert done.text.strip() == whole


def test_formats_of_plain_text(http):
    text = transcribe(http).json()["text"]
    assert transcribe(http, response_format="text").text == f"{text}\n"
    lines = "\n".join(line for line in text.splitlines() if line.strip())
    srt = transcribe(http, response_format="srt").text
    assert srt == f"1\n00:00:00,000 --> 00:00:00,500\n{lines}\n\n"
    vtt = transcribe(http, response_format="vtt")
    assert vtt.text == f"WEBVTT\n\n00:00:00.000 --> 00:00:00.500\n{lines}\n\n"
    assert vtt.headers["content-type"].startswith("text/plain")


def test_the_language_and_the_prompt_count(http):
    texts = {transcribe(http, **f).json()["text"] for f in ({}, {"language": "de"}, {"prompt": "Summarize"})}
    assert len(texts) == 3


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "warm"}, "temperature"),
        ({"stream": "maybe"}, "stream"),
        ({"response_format": "pdf"}, "response_format"),
        ({"response_format": "srt", "stream": "true"}, "response_format"),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities[]"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_refused(http, fields, param):
    assert transcribe(http, 400, **fields).json()["error"]["param"] == param


def test_a_file_that_is_no_audio(http):
    for files in ({"file": b"hello"}, {"other": wav()}):
        response = http.post("/v1/audio/transcriptions", files=files)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "file")
    assert http.post("/v1/audio/transcriptions", json={"file": "x"}).status_code == 400


def events_of(stream: httpx.Response):
    return (json.loads(line[6:]) for line in stream.iter_lines() if re.match("data: {", line))


def control(http, id, action, **more):
    return http.post("/v1/chat/completions/control", json={"id": id, "action": action, **more}).json()


def test_a_stream_is_paused_resumed_limited_and_stopped(http):
    plain = http.post("/v1/chat/completions", json={**LONG, "temperature": 0, "max_tokens": 60}).json()
    with http.stream(
        "POST", "/v1/chat/completions", json={**LONG, "temperature": 0, "stream": True}
    ) as stream:
        events = events_of(stream)
        id = next(events)["id"]
        assert control(http, id, "pause") == {"success": True}
        assert control(http, id, "limit", max_tokens=60) == {"success": True}
        assert control(http, id, "resume") == {"success": True}
        choices = [event["choices"][0] for event in events]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    assert text == plain["choices"][0]["message"]["content"]
    assert choices[-1]["finish_reason"] == "length"
    assert control(http, id, "stop")["success"] is False
    with http.stream(
        "POST", "/completion", json={"prompt": "hello", "n_predict": 900, "stream": True}
    ) as stream:
        events = events_of(stream)
        next(events)
        assert control(http, stream.headers["x-request-id"], "stop") == {"success": True}
        *_, last = events
    assert last["stop_type"] == "control"


def test_a_paused_stream_is_kept_alive(http):
    with http.stream("POST", "/v1/chat/completions", json={**LONG, "stream": True}) as stream:
        lines = stream.iter_lines()
        id = json.loads(next(lines)[6:])["id"]
        assert control(http, id, "pause")["success"]
        assert any(line.startswith(":") for line in lines)
        assert control(http, id, "stop")["success"]
        assert '"finish_reason":"stop"' in "".join(lines)
