"""Outlines and guidance, which take the server for vLLM or SGLang: every answer is what they demanded."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.clients.client import run_client

PROGRAMS = Path(__file__).parent / "programs"
OUTLINES = {
    "choice": r"umbrella|hat",
    "regex": r"[0-9]{3}/[a-c]{2}",
    "json": r'\{"name": "(Paris|Rome)", "rains": (true|false)\}',
    "grammar": r"rain|sun( and )?wind",
}
GUIDANCE = {
    "choice": r"umbrella|hat",
    "regex": r"[0-9]{3}/[a-c]{2}",
    "json": r'\{"rains": (true|false)\}',
    "grammar": r" [0-9]{2}",
}


@pytest.mark.parametrize(("name", "patterns"), [("outlines", OUTLINES), ("guidance", GUIDANCE)])
def test_answers_are_what_was_demanded(program, proxy, tmp_path, name, patterns):
    python = program(f"{name}/bin/python")
    with proxy(name, lambda _path, body: body) as between:
        printed = run_client([python, PROGRAMS / f"{name}_talk.py", between.url], tmp_path)
    assert {each.status for each in between.exchanges} == {200}
    answers = [json.loads(line) for line in printed.splitlines()]
    assert {kind for _, kind, _ in answers} == patterns.keys()
    assert len({server for server, _, _ in answers}) == 2
    for server, kind, answer in answers:
        assert re.fullmatch(patterns[kind], answer), (server, kind, answer)
