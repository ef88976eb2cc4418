"""Batches as a client of the `openai` package has them."""

from __future__ import annotations

import io
import json
from typing import Any

import openai

from tests.system.process import START_S, CorralProcess, wait_until

ENDED = ("completed", "failed", "expired", "cancelled")


def client_of(server: CorralProcess, key: str = "one") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=START_S)


def lines(n: int, url: str = "/v1/chat/completions", **body: object) -> list[dict]:
    asked = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "seed": 1, **body}
    return [{"custom_id": f"line-{i}", "method": "POST", "url": url, "body": asked} for i in range(n)]


def upload(client: openai.OpenAI, rows: list) -> str:
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    file = client.files.create(file=("in.jsonl", io.BytesIO(text.encode())), purpose="batch")
    assert (file.bytes, file.purpose, file.filename) == (len(text.encode()), "batch", "in.jsonl")
    return file.id


def submit(client: openai.OpenAI, rows: list, endpoint: Any = "/v1/chat/completions", **options):
    return client.batches.create(
        input_file_id=upload(client, rows), endpoint=endpoint, completion_window="24h", **options
    )


def finish(client: openai.OpenAI, id: str):
    wait_until(lambda: client.batches.retrieve(id).status in ENDED, 0.05)
    return client.batches.retrieve(id)


def read(client: openai.OpenAI, file_id: str | None) -> list[dict]:
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()] if file_id else []
