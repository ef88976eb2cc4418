"""`--transcode` and `corral tune`, as somebody at a terminal meets them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.process import CorralProcess

COMMAND = [sys.executable, "-m", "corral"]


@pytest.fixture
def env(tmp_path) -> dict[str, str]:
    return {"LLAMA_CACHE": str(tmp_path / "cache"), "LLAMA_ARG_TRANSCODE": "auto"}


@pytest.fixture
def model(models) -> str:
    return str(models / "llama-bpe.gguf")


def run(*words, env):
    return subprocess.run(
        [*COMMAND, *words],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_server_tells_what_it_has_loaded(model, env):
    with CorralProcess("-m", model, "--transcode", "q8_0", "-a", "pet", env=env) as server:
        props = server.get("/props").json()
        assert props["model_path"] == model
        assert Path(props["model_file"]).parent == Path(env["LLAMA_CACHE"])
        assert "Q8_0" in props["model_ftype"]
        (listed,) = server.get("/v1/models").json()["data"]
        assert listed["id"] == "pet"
        assert "Q8_0" in listed["meta"]["ftype"]
        assert listed["meta"]["size"] < os.path.getsize(model)
        before = server.complete(prompt="Hello", n_predict=8, temperature=0)
        server.engine.kill()
        assert server.complete(prompt="Hello", n_predict=8, temperature=0)["content"] == before["content"]
        assert server.get("/props").json()["model_file"] == props["model_file"]
    said = run("models", env=env).stdout
    assert "made by --transcode" in said
    assert "Q8_0" in said


def test_progress_is_told(model, env):
    with CorralProcess("-m", model, "--transcode", "Q8_0", env=env) as server:
        server.wait_for(" try ")
        said = "".join(server.lines)
    assert re.search(r"re-encoding the weights from F32 to Q8_0: .*--transcode Q8_0.*: \d+%", said)
    assert re.search(r"warming up .*: \d+%", said)
    assert re.search(r"weights +Q8_0, re-encoded from F32: .*--transcode Q8_0", said)


def test_the_default_model_is_not_measured_at_its_first_start(env):
    """Whatever is known of this CPU: the cache has a re-encoded model at most, and no results."""
    with CorralProcess("-c", 512, env=env) as server:
        server.wait_for(" try ")
        said = "".join(server.lines)
    assert "timing" not in said
    assert "comparing" not in said
    assert re.search(r"model .*\(llama 135M Q\d_\d, ", said)
    assert re.search(r"weights +(Q8_0, re-encoded from Q4_1|Q4_1 as in the file)", said)
    assert f"open {server.url} in a browser" in said
    assert not list(Path(env["LLAMA_CACHE"]).glob("tuned/*.json"))


def test_an_unknown_encoding_is_refused(model, refused):
    status, said = refused("-m", model, "--transcode", "Q9_9")
    assert status == 2
    assert "--transcode" in said
    assert "Q8_0" in said


def test_no_room_for_it_is_said(model, env, disk):
    (disk.path / "fill").write_bytes(bytes(400 << 10))
    full = {**env, "LLAMA_CACHE": str(disk.path)}
    refused = run("-m", model, "--port", "0", "--transcode", "F32", env=full)
    assert refused.returncode == 1
    assert "are free; set LLAMA_CACHE to another directory" in refused.stderr


def test_tune_prints_a_table_that_a_server_then_uses(model, env):
    tuned = run("tune", "-m", model, env=env)
    assert tuned.returncode == 0, tuned.stderr
    head, *rows = tuned.stdout.splitlines()[1:]
    assert head.split() == ["prompt", "1", "stream", "4", "streams", "tokens/s"]
    assert sum(row.startswith("*") for row in rows) >= 3
    assert rows[-1].startswith("chosen: ")
    with CorralProcess("-m", model, "--verbose", env=env) as server:
        loaded = server.get("/props").json()["model_file"]
    assert (loaded == model) == ("chosen: the file as it is" in rows[-1])


@pytest.mark.parametrize("words", [["--version"], ["--no-such-option"], ["-m", "/no/such.gguf"]])
def test_tune_refuses_what_it_does_not_understand(words, env):
    refused = run("tune", *words, env=env)
    assert refused.returncode in (1, 2)
    assert refused.stderr.startswith("corral: ")
    assert "Traceback" not in refused.stderr
