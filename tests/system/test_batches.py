"""Files and batches: the `openai` and `anthropic` packages as judges, and a server that is killed."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path

import anthropic
import httpx
import openai
import pytest

from tests.system.batch import client_of, finish, lines, read, submit, upload
from tests.system.process import START_S, CorralProcess, run_corral, wait_until

SERVED = ("-np", 2, "-c", 1024, "--api-key", "one,two")


def start(tiny: Path, path: Path) -> CorralProcess:
    path.mkdir(exist_ok=True)
    return CorralProcess("-m", tiny, *SERVED, "--batches", path)


@pytest.fixture(scope="module")
def server(tiny, tmp_path_factory):
    with start(tiny, tmp_path_factory.mktemp("batches")) as server:
        yield server


@pytest.fixture
def client(server):
    with client_of(server) as client:
        yield client


BODIES: dict[str, dict] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4},
    "/v1/completions": {"prompt": "hi", "max_tokens": 4},
    "/v1/responses": {"input": "hi", "max_output_tokens": 4},
    "/v1/embeddings": {"input": ["hi", "there"]},
}


@pytest.mark.parametrize("endpoint", BODIES)
def test_a_batch_of_every_endpoint(client, endpoint):
    body = {"model": "any", "seed": 3, **BODIES[endpoint]}
    rows = [{"custom_id": f"{i}", "method": "POST", "url": endpoint, "body": body} for i in range(3)]
    batch = finish(client, submit(client, rows, endpoint, metadata={"a": "b"}).id)
    assert (batch.status, batch.metadata, batch.model) == ("completed", {"a": "b"}, "any")
    assert (batch.request_counts.total, batch.request_counts.completed) == (3, 3)
    assert batch.usage.input_tokens > 0
    results = read(client, batch.output_file_id)
    assert {result["custom_id"] for result in results} == {"0", "1", "2"}
    url = str(client.base_url).removesuffix("/v1/")
    headers = {"authorization": "Bearer one"}
    direct = httpx.post(url + endpoint, json=body, headers=headers, timeout=START_S).json()
    for result in results:
        assert (result["response"]["status_code"], result["error"]) == (200, None)
        # Which vectors are evaluated together changes how they are rounded.
        assert said(result["response"]["body"]) == pytest.approx(said(direct), abs=1e-6)


def said(body: dict) -> object:
    if "choices" in body:
        return [choice.get("text") or choice["message"]["content"] for choice in body["choices"]]
    if "output" in body:
        return [part["text"] for item in body["output"] for part in item["content"]]
    return [number for item in body["data"] for number in item["embedding"]]


def test_lines_are_checked_with_their_numbers(client):
    rows = [*lines(1), "{", *lines(1), {"custom_id": "x", "url": "/v1/embeddings", "body": {}}, "[]"]
    rows += [{"custom_id": "y", "body": {"stream": True}}, {"body": {}}]
    batch = finish(client, submit(client, rows).id)
    assert batch.status == "failed"
    assert [(error.line, error.code) for error in batch.errors.data] == [
        (2, "invalid_json_line"),
        (3, "duplicate_custom_id"),
        (4, "mismatched_endpoint"),
        (5, "invalid_json_line"),
        (6, "invalid_body"),
        (7, "invalid_custom_id"),
    ]
    assert batch.output_file_id is None
    assert finish(client, submit(client, [""]).id).errors.data[0].code == "empty_file"


def test_a_line_that_fails_is_in_the_error_file(client):
    rows = lines(2)
    rows[1] = {**rows[1], "body": {"messages": "none"}}
    batch = finish(client, submit(client, rows).id)
    assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 1)
    (good,) = read(client, batch.output_file_id)
    (bad,) = read(client, batch.error_file_id)
    assert (good["custom_id"], bad["custom_id"]) == ("line-0", "line-1")
    assert bad["response"]["status_code"] == 400
    assert bad["error"]["message"]


def test_cancel_keeps_the_results_so_far(client):
    batch = submit(client, lines(400, max_tokens=256, ignore_eos=True))
    wait_until(lambda: client.batches.retrieve(batch.id).request_counts.completed > 2, 0.05)
    client.batches.cancel(batch.id)
    batch = finish(client, batch.id)
    assert batch.status == "cancelled"
    assert len(read(client, batch.output_file_id)) == batch.request_counts.completed < 400


def test_a_batch_expires(server, client):
    batch = client.batches.create(
        input_file_id=upload(client, lines(1000, max_tokens=200, ignore_eos=True)),
        endpoint="/v1/chat/completions",
        completion_window="2s",
    )
    batch = finish(client, batch.id)
    assert batch.status == "expired"
    errors = read(client, batch.error_file_id)
    assert {error["error"]["code"] for error in errors} == {"batch_expired"}
    assert len(errors) + batch.request_counts.completed == 1000


def test_keys_see_only_their_own(server, client):
    batch = finish(client, submit(client, lines(1)).id)
    with client_of(server, "two") as other:
        assert other.files.list().data == []
        assert other.batches.list().data == []
        for look in (
            lambda: other.files.retrieve(batch.input_file_id),
            lambda: other.files.content(batch.output_file_id),
            lambda: other.files.delete(batch.input_file_id),
            lambda: other.batches.retrieve(batch.id),
            lambda: other.batches.cancel(batch.id),
            lambda: submit_file(other, batch.input_file_id),
        ):
            with pytest.raises(openai.NotFoundError):
                look()


def submit_file(client: openai.OpenAI, id: str) -> object:
    return client.batches.create(input_file_id=id, endpoint="/v1/completions", completion_window="24h")


def test_files_are_listed_in_pages_and_deleted(client):
    ids = [upload(client, lines(1)) for _ in range(3)]
    assert {file.id for file in client.files.list(limit=1)} >= set(ids)
    batches = [submit(client, lines(1)).id for _ in range(2)]
    assert {batch.id for batch in client.batches.list(limit=1)} >= set(batches)
    assert client.files.delete(ids[0]).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.content(ids[0])


def test_bad_uploads_are_refused(server, client):
    with pytest.raises(openai.BadRequestError):
        client.files.create(file=b"x", purpose="nonsense")
    headers = {"authorization": "Bearer one"}
    for content in (b"", b"--x\r\n\r\n", b"{}"):
        for kind in ("multipart/form-data; boundary=x", "multipart/form-data", "text/plain"):
            response = httpx.post(
                f"{server.url}/v1/files",
                content=content,
                headers={**headers, "content-type": kind},
                timeout=START_S,
            )
            assert response.status_code == 400, (content, kind, response.text)


def test_messages_of_anthropic(server):
    with anthropic.Anthropic(base_url=server.url, api_key="one", max_retries=0) as client:
        messages = [{"role": "user", "content": "hi"}]
        params = {"model": "any", "max_tokens": 4, "temperature": 0, "messages": messages}
        bad = {**params, "max_tokens": -1}
        asked = [{"custom_id": "a", "params": params}, {"custom_id": "b", "params": bad}]
        batch = client.messages.batches.create(requests=asked)  # type: ignore[arg-type]
        assert batch.processing_status == "in_progress"
        wait_until(lambda: client.messages.batches.retrieve(batch.id).processing_status == "ended", 0.05)
        ended = client.messages.batches.retrieve(batch.id)
        assert (ended.request_counts.succeeded, ended.request_counts.errored) == (1, 1)
        results = {each.custom_id: each.result for each in client.messages.batches.results(batch.id)}
        assert results["a"].type == "succeeded"
        assert results["a"].message.content
        assert results["b"].type == "errored"
        assert results["b"].error.error.type == "invalid_request_error"
        assert batch.id in {each.id for each in client.messages.batches.list(limit=1)}
        many = [{"custom_id": f"{i}", "params": {**params, "max_tokens": 64}} for i in range(400)]
        long = client.messages.batches.create(requests=many)  # type: ignore[arg-type]
        client.messages.batches.cancel(long.id)
        wait_until(lambda: client.messages.batches.retrieve(long.id).processing_status == "ended", 0.05)
        kinds = Counter(each.result.type for each in client.messages.batches.results(long.id))
        assert kinds["canceled"] + kinds["succeeded"] == 400
        assert kinds["canceled"]
        client.messages.batches.delete(batch.id)
        with pytest.raises(anthropic.NotFoundError):
            client.messages.batches.retrieve(batch.id)


def has_done(client: openai.OpenAI, id: str, n: int) -> bool:
    return client.batches.retrieve(id).request_counts.completed >= n


@pytest.mark.parametrize(("n", "n_kills"), [(90, 2), pytest.param(1000, 5, marks=pytest.mark.slow)])
def test_a_batch_survives_kills_of_everything(tiny, tmp_path, n, n_kills):
    server = start(tiny, tmp_path / "kept")
    with client_of(server) as client:
        batch = submit(client, lines(n, max_tokens=24, seed=None))
    for _ in range(n_kills):
        with client_of(server) as client:
            before = client.batches.retrieve(batch.id).request_counts.completed
            wanted = min(n, before + n // 9)
            wait_until(partial(has_done, client, batch.id, wanted), 0.05)
        server.kill()
        server = start(tiny, tmp_path / "kept")
    with server, client_of(server) as client:
        ended = finish(client, batch.id)
        assert (ended.status, ended.request_counts.completed) == ("completed", n)
        ids = Counter(result["custom_id"] for result in read(client, ended.output_file_id))
        assert ids == Counter(f"line-{i}" for i in range(n))
        assert ended.error_file_id is None


def test_a_directory_has_one_server(tiny, server, tmp_path):
    with start(tiny, tmp_path / "one"):
        second = CorralProcess("-m", tiny, "--batches", tmp_path / "one", wait=False)
        second.wait_for("another server")
        assert second.stop() != 0


def test_without_a_directory_there_are_none(tiny):
    with CorralProcess("-m", tiny, "-c", 512) as server:
        response = server.get("/v1/files")
        assert response.status_code == 400
        assert "--batches" in response.json()["error"]["message"]


def test_the_command_runs_a_file(server, tiny, tmp_path):
    given, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows = lines(3)
    rows[2] = {**rows[2], "body": {"messages": "none"}}
    given.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ran = run_corral("batch", given, "-o", output, "--url", server.url, "--api-key", "one")
    assert ran.returncode == 1, ran.stderr
    assert {json.loads(line)["custom_id"] for line in output.read_text().splitlines()} == {"line-0", "line-1"}
    (bad,) = map(json.loads, Path(f"{output}.errors").read_text().splitlines())
    assert bad["custom_id"] == "line-2"
    first = output.read_bytes()
    again = run_corral("batch", given, "-o", output, "--url", server.url, "--api-key", "one")
    assert (again.returncode, output.read_bytes()) == (1, first)  # the same batch: nothing ran twice
    given.write_text("{\n")
    ran = run_corral("batch", given, "-o", output, "--url", server.url, "--api-key", "one")
    assert ran.returncode == 1
    assert "line 1" in ran.stderr


def test_the_command_brings_its_own_server(tiny, tmp_path):
    given, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given.write_text("".join(json.dumps(row) + "\n" for row in lines(2)))
    ran = run_corral("batch", given, "-o", output, "-m", tiny, "-c", 512)
    assert ran.returncode == 0, ran.stderr
    assert len(output.read_text().splitlines()) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]
    ran = run_corral("batch", given, "-o", output, "-m", tmp_path / "none.gguf")
    assert ran.returncode == 1
    assert "none.gguf" in ran.stderr
