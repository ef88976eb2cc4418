"""The real command with models that are elsewhere: got over a bad line, loaded, listed, removed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.system.process import CorralProcess
from tests.tools.fake_hub import FakeHub, Repository
from tests.tools.file_server import FileServer, Served


@pytest.fixture
def env(tmp_path):
    return {"LLAMA_CACHE": str(tmp_path / "cache"), "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": ""}


@pytest.fixture
def content(models):
    return (models / "llama-bpe.gguf").read_bytes()


def run(env, *words):
    return subprocess.run(
        [sys.executable, "-m", "corral", *words], capture_output=True, text=True, env={**os.environ, **env}
    )


def answers(server):
    return bool(server.complete(prompt="Hello", n_predict=4, ignore_eos=True)["content"])


def test_a_url_over_a_line_that_breaks(env, content):
    file = Served(content, etag='"1"', cuts=[1000, 100_000])
    with FileServer({"/llama-bpe.gguf": file}) as files:
        with CorralProcess("-mu", f"{files.url}/llama-bpe.gguf", env=env) as server:
            assert answers(server)
        log = "".join(server.lines)
        assert "downloading llama-bpe.gguf (" in log
        assert log.count("interrupted at") == 2
    with CorralProcess("-mu", f"{files.url}/llama-bpe.gguf", env=env) as server:
        assert answers(server)
    assert "cannot reach 127.0.0.1: using the copy of llama-bpe.gguf from" in "".join(server.lines)
    with CorralProcess("-mu", f"{files.url}/llama-bpe.gguf", "--offline", env=env) as server:
        assert answers(server)
    (model,) = json.loads(run(env, "models", "--json").stdout)
    assert model["name"] == "llama-bpe.gguf"
    assert model["architecture"] == "llama"
    assert run(env, "models", "rm", "llama-bpe.gguf").returncode == 0
    assert run(env, "models", "rm", "llama-bpe.gguf").returncode == 1
    failed = run(env, "--port", "0", "-mu", f"{files.url}/llama-bpe.gguf")
    assert failed.returncode == 1
    assert "--model-url: cannot reach 127.0.0.1" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_a_hub(env, content):
    repository = Repository(large={"tiny-F32.gguf": content}, token="hf_t0ken")
    with FakeHub({"user/tiny": repository}) as hub:
        env["HF_ENDPOINT"] = hub.url
        refused = run(env, "--port", "0", "-hf", "user/tiny")
        assert refused.returncode == 1
        assert "pass a token with --hf-token or HF_TOKEN" in refused.stderr
        with CorralProcess("-hf", "user/tiny:F32", "--hf-token", "hf_t0ken", env=env) as server:
            assert answers(server)
        assert "hf_t0ken" not in "".join(server.lines)
    assert run(env, "models").stdout.splitlines()[1].startswith("user/tiny:F32  ")
