"""What it saves to restore a conversation instead of evaluating it again."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

from bench.client import complete, post
from bench.section import Section
from bench.setup import Setup

N_TOKENS = 1000
_ROUNDS = 3


async def measure_state(setup: Setup, section: Section) -> None:
    with closing(setup.corral()) as corral:
        session = await restore_speedup(corral.url, "/sessions/1?action=ACTION&slot=0")
        section.at_least(f"{N_TOKENS} tokens from a session over evaluating them", session, 20, "x")
        file = await restore_speedup(corral.url, "/slots/0?action=ACTION", {"filename": "bench"})
        section.at_least(f"{N_TOKENS} tokens from a file over evaluating them", file, 20, "x")


async def restore_speedup(url: str, path: str, save: dict[str, str] | None = None) -> float:
    """How many times faster `path` (with `restore` for ACTION) is than evaluating the tokens it restores.

    All of it is measured by the client: HTTP, reading and checking included.
    """
    body = save or {}
    evaluated: list[float] = []
    restored: list[float] = []
    for i in range(_ROUNDS):
        prompt = [1000 + (j * 7907 + i * 104723) % 30000 for j in range(N_TOKENS)]
        options: dict[str, Any] = {"prompt": prompt, "n_predict": 0, "id_slot": 0, "cache_prompt": False}
        evaluated.append((await complete(url, **options)).last["timings"]["prompt_ms"])
        await post(url, path.replace("ACTION", "save"), body)
        await post(url, "/slots/0?action=erase", {})
        started = time.perf_counter()
        answer = await post(url, path.replace("ACTION", "restore"), body)
        restored.append(1e3 * (time.perf_counter() - started))
        assert "error" not in answer, answer
        again = (await complete(url, **{**options, "cache_prompt": True})).last["timings"]
        assert again["cache_n"] > N_TOKENS - 16, "the restored state was not used"
    return min(evaluated) / sorted(restored)[_ROUNDS // 2]
