"""The engine is killed in the middle of answers of models whose memory cannot be cut: the streams and the
next turns are those of an undisturbed server."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.system.process import CorralProcess, Stream
from tests.tools.tiny_hybrid import jamba
from tests.tools.tiny_models import gemma_swa

FIRST = "the and of to in is that it you was for are with not have be hello world " * 12
N_PREDICT = 60
KINDS: list[dict[str, Any]] = [{"temperature": 0}, {"seed": 3, "temperature": 1.2}]


def start(server: CorralProcess, prompts: list[str]) -> list[Stream]:
    return [
        Stream(server.url, prompt=prompt, n_predict=N_PREDICT, ignore_eos=True, **kind)
        for prompt, kind in zip(prompts, KINDS, strict=True)
    ]


async def talk(server: CorralProcess, is_killed: bool) -> list[tuple[str, list[int]]]:
    """Two turns of two conversations; in each, the engine may be killed in the middle."""
    prompts, said = [FIRST, "hello " + FIRST], []
    for _ in range(2):
        streams = start(server, prompts)
        if is_killed:
            for stream in streams:
                await stream.reach(10)
            server.engine.send_signal(signal.SIGKILL)
        await asyncio.gather(*(stream.task for stream in streams))
        said += [(stream.text, stream.tokens) for stream in streams]
        prompts = [p + s.text + " and the world" for p, s in zip(prompts, streams, strict=True)]
    return said


@pytest.mark.parametrize("write", [jamba, gemma_swa], ids=["hybrid", "sliding"])
async def test_a_killed_engine_changes_no_answer(tmp_path: Path, write):
    options = (
        "-m",
        write(tmp_path),
        "-c",
        2048,
        "-np",
        2,
        "-t",
        1,
        "--cache-disk",
        tmp_path / "cache",
        "--batch-exact",
    )
    with CorralProcess(*options) as server:
        undisturbed = await talk(server, is_killed=False)
        assert all(len(tokens) == N_PREDICT for _, tokens in undisturbed)
        first = server.engine
        assert await talk(server, is_killed=True) == undisturbed
        server.next_engine(first)
