"""Replace an engine of a fleet while all generate: its stream takes its state along."""

from __future__ import annotations

from typing import Any

import httpx

from tests.system.process import START_S, CorralProcess, Stream


async def drain_while_streaming(server: CorralProcess, n_engines: int, n_slots: int) -> None:
    bodies: list[dict[str, Any]] = [
        {
            "prompt": f"{i} " + "This is a document. " * 20,
            "n_predict": 500,
            "temperature": 0,
            "ignore_eos": True,
        }
        for i in range(n_engines)
    ]
    undisturbed = [server.complete(**body, return_tokens=True)["tokens"] for body in bodies]
    streams = [Stream(server.url, **body, id_slot=i * n_slots) for i, body in enumerate(bodies)]
    for stream in streams:
        await stream.reach(5)
    async with httpx.AsyncClient(base_url=server.url, timeout=START_S, verify=False) as http:
        response = await http.post("/engines/0/drain")
    assert response.json() == {"success": True}
    for stream, tokens in zip(streams, undisturbed, strict=True):
        await stream.task
        assert stream.tokens == tokens
    # A prompt that is evaluated again has at least one token, even if all of it is cached.
    last = streams[0].events[-1]
    assert (last["timings"]["prompt_n"], last["timings"]["cache_n"]) == (0, last["tokens_evaluated"])
