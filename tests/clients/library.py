"""What a library of PyPI does as a client: one tool call and a streamed answer, in its own environment."""

from __future__ import annotations

from pathlib import Path

from tests.clients.client import check_talk, run_client, text_of
from tests.clients.force import Force, results

PROGRAMS = Path(__file__).parent / "programs"
WEATHER = Force("get_weather", {"city": "Paris"})


def check_library(name: str, program, proxy, home: Path) -> None:
    python = program(f"{name}/bin/python")
    with proxy(name, WEATHER) as between:
        printed = run_client([python, PROGRAMS / f"{name.replace('-', '_')}_talk.py", between.url], home)
        _, second = check_talk(between, "/v1/chat/completions", WEATHER)
    (result,) = results(second.path, second.body)
    assert result["content"] == "Rain in Paris."
    assert second.body["stream"]
    assert printed.strip() == text_of(second).strip()
