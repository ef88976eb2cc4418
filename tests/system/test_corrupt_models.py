"""Damaged GGUF files: the check says what is wrong, the engine refuses, serves or dies, and HTTP goes on.

With `CORRAL_SOAK` in the environment hundreds of files are loaded, not dozens.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.soak.corpus import mutant_of, render, run_corpus
from tests.system.process import START_S, CorralProcess
from tests.tools.tiny_encoders import bert_embed
from tests.tools.tiny_models import llama_bpe
from tests.tools.tiny_modifiers import lora_a
from tests.tools.tiny_vision import llava_mmproj

IS_LONG = bool(os.environ.get("CORRAL_SOAK"))


@pytest.mark.slow
def test_damaged_files_bring_nobody_down():
    found = run_corpus(n_checked=5000 if IS_LONG else 400, n_loaded=400 if IS_LONG else 40)
    assert [problem for counts in found for problem in counts.problems] == [], render(found)
    for counts in found:
        assert counts.n_passed < counts.n_checked
        assert counts.outcomes["engine refused"] > counts.outcomes["engine served"] > 0, render(found)


BY_COMMAND = [
    ("-m", llama_bpe, "b'llama.block_count' is 1048576"),
    ("-m", llama_bpe, "no tensors"),
    ("-m", llama_bpe, "no b'general.architecture'"),
    ("-m", bert_embed, "no b'tokenizer.ggml.tokens'"),
    ("--lora", lora_a, r"b'adapter.lora.alpha' is b'\x00\x00\xc0\x7f'"),
    ("--mmproj", llava_mmproj, "no b'clip.projector_type'"),
]


def run_with(tiny, tmp_path, option: str, write, name: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(mutant_of(write(tmp_path), name))
    files = ["-m", path] if option == "-m" else ["-m", tiny, option, path]
    command = [sys.executable, "-m", "corral", "--port", "0", "-c", "256", *map(str, files)]
    return subprocess.run(command, capture_output=True, text=True, timeout=START_S)


@pytest.mark.parametrize(("option", "write", "name"), BY_COMMAND)
def test_the_command_ends_with_one_line(tiny, tmp_path, option, write, name):
    result = run_with(tiny, tmp_path, option, write, name)
    assert result.returncode in (1, 2), result.stderr
    assert "Traceback" not in result.stderr
    said = [line for line in result.stderr.splitlines() if line.startswith("corral: ")]
    assert len(said) == 1, result.stderr
    assert re.search(r"damaged\.gguf|engine process ended with code -\d+", said[0]), said


@pytest.mark.parametrize(
    "name", ["b'tokenizer.ggml.model' is b'llama'", "b'tokenizer.ggml.model' is b'rwkv'"]
)
def test_a_vocabulary_that_native_code_falls_over(tiny, tmp_path, name):
    """The engine never needs it, so that only the front would notice."""
    result = run_with(tiny, tmp_path, "-m", llama_bpe, name)
    assert result.returncode == 1, result.stderr
    assert "Traceback" not in result.stderr
    assert "corral: " in result.stderr.splitlines()[-1]
    assert len(result.stderr.splitlines()) < 12, "a debugger was started"


@pytest.mark.parametrize("name", ["weights: all NaN", "weights: all infinite"])
def test_weights_that_are_no_numbers_are_said_for_every_request(tmp_path, name):
    path = tmp_path / "damaged.gguf"
    path.write_bytes(mutant_of(llama_bpe(tmp_path), name))
    with CorralProcess("-m", path, "-c", 256) as server:
        engine = server.engine
        for _ in range(3):
            answer = server.post("/completion", prompt="hello", n_predict=4)
            assert answer.status_code == 500, answer.text
            assert "not finite" in answer.json()["error"]["message"]
        assert server.get("/health").status_code == 200
        assert server.engine.pid == engine.pid
