"""API keys that compete for the slots: how much each of them gets."""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass, field

import httpx

from tests.system.process import START_S

N_PREDICT = 40


@dataclass(slots=True)
class Share:
    """Mutable: what one key got."""

    n_answers: int = 0
    n_tokens: int = 0
    took_s: list[float] = field(default_factory=list)

    @property
    def median_s(self) -> float:
        return statistics.median(self.took_s) if self.took_s else 0.0


async def compete(url: str, clients: dict[str, int], seconds: float) -> dict[str, Share]:
    """Have so many clients of each key ask one request after the other for this time."""
    shares = {key: Share() for key in clients}
    end = time.monotonic() + seconds
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=START_S, limits=limits) as http:
        await asyncio.gather(
            *(_ask_until(http, key, shares[key], end) for key, n in clients.items() for _ in range(n))
        )
    return shares


async def _ask_until(http: httpx.AsyncClient, key: str, share: Share, end: float) -> None:
    body = {"prompt": "hello world", "n_predict": N_PREDICT, "ignore_eos": True}
    while (began := time.monotonic()) < end:
        response = await http.post("/completion", json=body, headers={"Authorization": f"Bearer {key}"})
        assert response.status_code == 200, response.text
        if time.monotonic() < end:  # then the others were still asking
            share.n_answers += 1
            share.n_tokens += response.json()["tokens_predicted"]
            share.took_s.append(time.monotonic() - began)
