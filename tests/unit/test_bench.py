"""The parts of the benchmark that measure nothing: arguments, verdicts, competitors, client, pictures."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
import xml.etree.ElementTree as ElementTree
from contextlib import closing
from typing import Any

import pytest

from bench.client import complete_until, get
from bench.competitor import Competitor, parse_competitor
from bench.equality import common_share
from bench.process import Server
from bench.run import SECTIONS, parse_arguments, plan
from bench.section import Row, Section, repeat

PROGRAM = '''#!{python}
"""A server that loads while it is asked for the first time."""
import http.server, json, sys

class Handler(http.server.BaseHTTPRequestHandler):
    n_asked = 0

    def do_GET(self):
        Handler.n_asked += 1
        shape = {{"total_slots": 4, "default_generation_settings": {{"n_ctx": 512}}}}
        props = {{**shape, "model_path": "/models/a.gguf"}}
        body = json.dumps(props if self.path == "/props" else sys.argv[1:]).encode()
        self.send_response(503 if Handler.n_asked == 1 else 200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass

port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
'''


@pytest.fixture
def program(tmp_path) -> str:
    return _executable(tmp_path / "server", PROGRAM.format(python=sys.executable))


def _executable(path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_a_rival_is_an_address_or_a_program(program):
    assert parse_competitor("other=http://127.0.0.1:8080/") == Competitor("other", "http://127.0.0.1:8080")
    assert parse_competitor("x=http://h:1/a=b").where == "http://h:1/a=b"
    assert not parse_competitor("x=http://h:1").is_program
    assert parse_competitor(f"cpp={program}") == Competitor("cpp", program)
    assert parse_competitor(f"cpp={program}").is_program


@pytest.mark.parametrize(
    "text", ["", "cpp", "=http://h", "cpp=", "cpp=/nowhere/llama-server", f"cpp={__file__}"]
)
def test_anything_else_is_no_rival(text):
    with pytest.raises(argparse.ArgumentTypeError):
        parse_competitor(text)


def test_all_sections_are_measured_or_those_that_are_chosen():
    _, names = parse_arguments([])
    assert names == list(SECTIONS)
    _, names = parse_arguments(["--only", "streams,overhead"])
    assert names == ["overhead", "streams"]


def test_with_rivals_there_is_a_section_for_each():
    setup, names = parse_arguments(
        ["--only", "compare,start", "--against", "a=http://h:1", "--against", "b=http://h:2"]
    )
    assert list(plan(setup, names)) == ["start", "compare a", "compare b"]
    assert [competitor.name for competitor in setup.competitors] == ["a", "b"]


@pytest.mark.parametrize("only", ["compare", "nothing", "overhead,", ","])
def test_an_unknown_section_is_an_error(only, capsys):
    with pytest.raises(SystemExit) as error:
        parse_arguments(["--only", only])
    assert error.value.code == 2
    assert "no section" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "target", "is_upper", "is_met"),
    [
        (1.0, 1.0, False, True),
        (0.99, 1.0, False, False),
        (1.0, 1.0, True, True),
        (1.01, 1.0, True, False),
        (7.0, None, False, True),
        (float("nan"), 1.0, True, False),
    ],
)
def test_verdicts(value, target, is_upper, is_met):
    row = Row("something", value, "x", target, is_upper, {})
    assert row.is_met == is_met
    assert ("MISS" in str(row)) == (not is_met)
    assert ("ok" in str(row)) == (is_met and target is not None)


def test_a_section_prints_its_rows_and_is_met_if_all_are(capsys):
    section = Section("some")
    section.at_least("fast", 2.0, 1.5, "x", {"other": 3.0})
    section.report("large", 9.0, "MB")
    assert section.is_met
    section.at_most("slow", 2.0, 1.5, "s")
    assert not section.is_met
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["ok", "large", "MISS"]
    rows = json.loads(json.dumps(section.as_json()))["rows"]
    assert [row["is_met"] for row in rows] == [True, True, False]
    assert rows[0]["details"] == {"other": 3.0}


async def test_measures_take_turns_and_medians_count():
    order = []

    def measure(name, values):
        left = iter(values)

        async def value():
            order.append(name)
            return next(left)

        return value

    assert await repeat(3, measure("a", [1.0, 9.0, 2.0]), measure("b", [5.0, 4.0, 6.0])) == [2.0, 5.0]
    assert order == ["a", "b"] * 3


async def test_a_program_is_started_and_ended(program):
    competitor = Competitor("cpp", program)
    async with competitor.serve("/models/a.gguf", 2048, 4) as url:
        arguments = (await get(url, "/anything"))[1]
        assert b'"-m", "/models/a.gguf"' in arguments
        assert b'"-c", "2048", "-np", "4"' in arguments
    assert (await get(url, "/health"))[0] == 0


async def test_the_first_answer_comes_before_health(program):
    with closing(Server(program, "a.gguf")) as server:
        assert 0 < await server.first_answer_s() < await server.healthy_s()


async def test_a_program_that_ends_is_told(tmp_path):
    server = Server(_executable(tmp_path / "none", "#!/bin/sh\nexit 3\n"), "a.gguf")
    with pytest.raises(RuntimeError, match="did not start"):
        await server.healthy_s()


@pytest.mark.parametrize(
    ("model", "n_ctx", "n_seq", "wrong"),
    [
        ("a.gguf", 4096, 8, "-np 8"),
        ("a.gguf", 4096, 4, "-c 4096"),
        ("b.gguf", 2048, 4, "same file"),
    ],
)
async def test_a_running_rival_has_to_fit(program, model, n_ctx, n_seq, wrong):
    with closing(Server(program, "a.gguf")) as server:
        await server.healthy_s()
        competitor = Competitor("other", server.url)
        with pytest.raises(SystemExit, match=wrong):
            await competitor.check(model, n_ctx, n_seq)


async def test_a_running_rival_stays(program):
    with closing(Server(program, "a.gguf")) as server:
        await server.healthy_s()
        competitor = Competitor("other", server.url)
        await competitor.check("a.gguf", 2048, 4)
        async with competitor.serve("a.gguf", 2048, 4) as url:
            assert url == server.url
        assert (await get(url, "/health"))[0] == 200
    with pytest.raises(SystemExit, match="does not answer"):
        await competitor.check("a.gguf", 2048, 4)


async def test_a_stream_is_left_when_asked_to():
    gone = asyncio.Event()

    class AfterOnePart(threading.Event):
        n_asked = 0

        def is_set(self):
            self.n_asked += 1
            return self.n_asked > 1

    async def stream(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 200 OK\r\n\r\ndata: {"n": 0}\n\ndata: {"n": 1}\n\ndata: {"n"')
        await reader.read()
        writer.close()
        gone.set()

    async with await asyncio.start_server(stream, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        answer = await complete_until(AfterOnePart(), f"http://127.0.0.1:{port}")
        await asyncio.wait_for(gone.wait(), 30)
    assert answer.last == {"n": 1}


REPORT: dict[str, Any] = {
    "streams": {
        "rows": [],
        "series": {
            "streams": [1, 4],
            "lines": {"plain libllama": [70.0, 100.0], "Corral": [69.0, 110.0], "cpp": [65.0, 90.0]},
        },
    },
    "compare cpp": {
        "rows": [
            {"name": "one stream", "value": 1.25, "unit": "x", "target": 1.5, "is_upper": False},
            {"name": "worst gap", "value": 0.04, "unit": "x", "target": 0.05, "is_upper": True},
            {"name": "equal answers", "value": 0.5, "unit": "", "target": None, "is_upper": False},
        ],
        "series": {
            "gaps": {
                "Corral": {"times": [0.2, 0.4], "gaps_ms": [190.0, 200.0]},
                "cpp": {"times": [9.0], "gaps_ms": [9000.0]},
            }
        },
    },
}


@pytest.fixture
def pictures():
    from bench.plot import pictures  # a second, in which only who needs them waits

    return pictures


def test_pictures_say_what_was_measured(pictures):
    drawn = pictures(REPORT)
    assert set(drawn) == {"streams", "ratios", "gaps"}
    texts = {name: _texts(picture) for name, picture in drawn.items()}
    assert {"plain libllama", "Corral", "cpp"} <= texts["streams"]
    assert {"one stream", "1.2 x", "worst gap", "25.0 x"} <= texts["ratios"]
    assert {"Corral", "cpp", "10 s"} <= texts["gaps"]


def test_the_same_numbers_make_the_same_picture(pictures):
    assert pictures(REPORT) == pictures(json.loads(json.dumps(REPORT)))


def test_only_what_was_measured_is_drawn(pictures):
    assert pictures({}) == {}
    assert set(pictures({"streams": REPORT["streams"], "start": {}})) == {"streams"}


def _texts(picture: bytes) -> set[str]:
    tree = ElementTree.fromstring(picture)
    return {"".join(each.itertext()) for each in tree.iter("{http://www.w3.org/2000/svg}text")}


@pytest.mark.parametrize(
    ("ours", "theirs", "share"),
    [([1, 2, 3, 4], [1, 2, 3, 4], 1), ([1, 2, 3, 4], [1, 2, 9, 4], 0.5), ([1], [1, 2], 0.5), ([], [], 0)],
)
def test_answers_are_compared_up_to_the_first_difference(ours, theirs, share):
    assert common_share(ours, theirs) == share
