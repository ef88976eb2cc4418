"""Batches over a fleet: `corral batch --ray`, and Ray Data with the fleet's address."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.process import START_S, CorralProcess, run_corral
from tests.tools.wait import wait_until

ROOT = Path(__file__).parents[2]
N_LINES = 6
FLEET = ["-c", 1024, "-np", 2, "-t", 1]


@pytest.fixture(autouse=True)
def no_engines_afterwards(nodes):
    yield
    wait_until(lambda: not nodes.engines, 0.1)


def write_lines(path: Path, lines: list[dict]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_batch_runs_in_the_cluster(nodes, tiny, tmp_path):
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0}
    lines = [
        {"custom_id": str(i), "method": "POST", "url": "/v1/chat/completions", "body": body}
        for i in range(N_LINES)
    ]
    given, output = write_lines(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    ran = run_corral("batch", given, "-o", output, "--ray", nodes.address, "--engines", 2, "-m", tiny, *FLEET)
    assert ran.returncode == 0, ran.stderr
    assert {line["custom_id"] for line in read_lines(output)} == {str(i) for i in range(N_LINES)}


def test_ray_data_asks_a_fleet(nodes, tiny, tmp_path):
    for package in ("pandas", "pyarrow", "aiohttp"):
        pytest.importorskip(package)
    questions = [f"What is {i}?" for i in range(N_LINES)]
    given = write_lines(tmp_path / "questions.jsonl", [{"question": each} for each in questions])
    with CorralProcess("-m", tiny, "--ray", nodes.address, "--engines", 1, *FLEET) as server:
        command = [sys.executable, ROOT / "examples/ray_data.py", server.url, given, tmp_path / "answers"]
        # Otherwise Ray replaces a loopback address by that of a network interface.
        loopback = {"RAY_ADDRESS": nodes.address, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
        environment = {**os.environ, **loopback}
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=START_S, env=environment, check=False
        )
        assert ran.returncode == 0, ran.stderr
    answers = [line for path in (tmp_path / "answers").glob("*.json") for line in read_lines(path)]
    assert {line["question"] for line in answers} == set(questions)
    assert all(line["answer"] for line in answers)
