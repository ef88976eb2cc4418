"""Durable work of several models: all processes are killed, and the next server loads what it needs."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.system.durable import CHAT, MESSAGES, Asked, Reborn, by_choice, check_bytes, run
from tests.system.process import START_S
from tests.tools.tiny_models import llama_bpe, llama_spm
from tests.tools.wait import wait_until_async

BPE, SPM = "llama-bpe", "llama-spm"
ASKED: Asked = [
    ("/completion", {"model": BPE, "prompt": "hello", "seed": 1, "n": 2}),
    (f"{CHAT}?model={SPM}", {"messages": MESSAGES, "seed": 2}),
]
# Each of the tiny models needs a little more than 272 MiB, of which 256 are for its interpreters.
ROOM_FOR_TWO, ROOM_FOR_ONE = 700, 400
N_LINES = 24


@pytest.fixture(scope="module")
def options(tmp_path_factory) -> tuple[object, ...]:
    """Without the memory for models."""
    shelf, journal, batches = (tmp_path_factory.mktemp(name) for name in ("shelf", "journal", "batches"))
    write_models(shelf)
    given = ("--models-dir", shelf, "-cram", 16, "-c", 2048, "-np", 2, "-t", 1, "--no-warmup")
    return (*given, "--journal", journal, "--batches", batches, "--models-memory")


def write_models(directory: Path) -> None:
    for write in (llama_bpe, llama_spm):
        write(directory)


def connect(reborn: Reborn) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{reborn.url}/v1", api_key="none", timeout=START_S, max_retries=20)


async def test_work_of_every_model_continues_even_if_only_one_fits(options):
    with Reborn(*options, ROOM_FOR_TWO) as reborn:
        undisturbed = await run(reborn, ASKED, 900, [])
        reborn.options = (*options, ROOM_FOR_ONE)
        disturbed = await run(reborn, ASKED, 900, [(3, reborn.kill)])
        assert min(reader.n_posts for reader in disturbed) >= 2
        for first, second in zip(undisturbed, disturbed, strict=True):
            assert by_choice(first.events) == by_choice(second.events)
        await check_bytes(reborn, disturbed)


async def test_responses_and_batches_of_every_model_continue(options):
    ask: Any = {"input": "hello", "max_output_tokens": 150, "background": True}
    ask["extra_body"] = {"seed": 1, "ignore_eos": True, "cache_prompt": False}
    with Reborn(*options, ROOM_FOR_TWO) as reborn:
        async with connect(reborn) as client:
            asked = [await client.responses.create(model=name, **ask) for name in (BPE, SPM)]
            batch = await submit(client)
            await wait_until_async(lambda: n_recorded(options) >= 2, 0.01)
            await reborn.kill()
        async with connect(reborn) as client:
            for name, begun in zip((BPE, SPM), asked, strict=True):
                ended = await finish(client, begun.id)
                whole = await client.responses.create(model=name, **{**ask, "background": False})
                assert (ended.model, ended.output_text) == (name, whole.output_text)
            assert await outcome(client, batch) == {f"{i}": (BPE, SPM)[i % 2] for i in range(N_LINES)}


def n_recorded(options: tuple[object, ...]) -> int:
    """The number of requests in the journal that have begun to be answered."""
    folder, n = Path(str(options[options.index("--journal") + 1])), 0
    for path in folder.glob("*/*.journal"):
        with contextlib.suppress(FileNotFoundError):  # it has just been removed
            n += path.stat().st_size > 2000
    return n


async def finish(client: openai.AsyncOpenAI, id: str) -> Any:
    while (response := await client.responses.retrieve(id)).status in ("queued", "in_progress"):
        await asyncio.sleep(0.05)
    return response


async def submit(client: openai.AsyncOpenAI) -> str:
    """A batch whose lines are for two models by turns."""
    body = {"prompt": "hi", "max_tokens": 16, "ignore_eos": True}
    lines = [
        {"custom_id": f"{i}", "url": "/v1/completions", "body": {**body, "model": (BPE, SPM)[i % 2]}}
        for i in range(N_LINES)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    file = await client.files.create(file=("in.jsonl", text.encode()), purpose="batch")
    about: Any = {"endpoint": "/v1/completions", "completion_window": "24h"}
    return (await client.batches.create(input_file_id=file.id, **about)).id


async def outcome(client: openai.AsyncOpenAI, id: str) -> dict[str, str]:
    """Wait for the end of a batch; return the model of each line."""
    while (batch := await client.batches.retrieve(id)).status != "completed":
        await asyncio.sleep(0.05)
    assert batch.error_file_id is None
    assert batch.output_file_id is not None
    content = (await client.files.content(batch.output_file_id)).text
    found = [json.loads(line) for line in content.splitlines()]
    assert len(found) == N_LINES
    return {row["custom_id"]: row["response"]["body"]["model"] for row in found}
