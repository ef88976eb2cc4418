"""Ask two servers the same: how many greedy and seeded answers are equal, and how long they stay so.

Logits of two builds differ in their last bits, so answers part sooner or later; seeds mean the same.
"""

from __future__ import annotations

from typing import Any

from bench.client import post
from bench.section import Section

_N_PREDICT = 64
_PROMPT = "Once upon a time there was"
_CASES: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"seed": 1},
    {"seed": 42, "temperature": 1.2},
    {"seed": 7, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"seed": 5, "xtc_probability": 0.5, "repeat_penalty": 1.1},
    {"seed": 9, "mirostat": 2},
)


async def measure_equality(ours: str, theirs: str, section: Section) -> None:
    shares = [common_share(await _tokens(ours, case), await _tokens(theirs, case)) for case in _CASES]
    details = {"equal answers": float(shares.count(1.0)), "of": float(len(shares))}
    section.report("greedy and seeded answers, equal from the start", sum(shares) / len(shares), "", details)


def common_share(ours: list[int], theirs: list[int]) -> float:
    """Return the length of the common beginning as a share of the longer answer."""
    n = next((i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
    return (min(len(ours), len(theirs)) if n is None else n) / max(len(ours), len(theirs), 1)


async def _tokens(url: str, case: dict[str, Any]) -> list[int]:
    body = {"prompt": _PROMPT, "n_predict": _N_PREDICT, "cache_prompt": False, "return_tokens": True, **case}
    answer = await post(url, "/completion", body)
    return list(answer["tokens"])
