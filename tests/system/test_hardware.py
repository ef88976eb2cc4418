"""The real command and the machine it runs on: what fits, what there is, what is refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

import corral
from corral.cli.default_model import find_default_model
from tests.model.rpc import rpc_server
from tests.system.process import START_S, CorralProcess

N_ADDRESS_KIB = 2 << 20
N_CTX = 65536  # takes more than that
ROW = r"  \w+: .* \(\d+ MiB, \d+ MiB free\)"


def run(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "corral", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False)


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Everything that is started has a part of the machine's memory only: really, by a limit of addresses."""
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nulimit -v {N_ADDRESS_KIB}\nexec "{sys.executable}" "$@"\n')
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))


def test_what_does_not_fit_is_refused_with_what_would(small):
    result = run("--port", 0, "-c", N_CTX)
    assert result.returncode == 1
    told = result.stderr[result.stderr.index("the model does not fit") :]
    _, sizes, heading, *choices, last = (line.strip() for line in told.strip().splitlines())
    assert re.fullmatch(r"ulimit -v: \d+ MiB weights, 1.4 GiB KV cache, .* free", sizes)
    assert heading == "these settings would fit:"
    assert "-ctk q8_0 -ctv q8_0" in choices
    assert last.startswith("--fit on uses the first of these")


def test_what_would_fit_is_chosen_and_everybody_knows(small):
    with CorralProcess("-c", N_CTX, "--fit", "on", "--fit-ctx", 1024) as server:
        chosen = next(line for line in server.lines if "--fit: the model does not fit" in line)
        assert re.search(r"using -ctk q8_0 -ctv q8_0$", chosen.strip())
        assert any(re.search(r"memory: \d+ MiB weights, \d+ MiB KV cache", line) for line in server.lines)
        assert server.get("/props").json()["default_generation_settings"]["n_ctx"] == N_CTX
        assert server.complete(prompt="The capital of France is", n_predict=4, temperature=0)["content"]


def test_a_context_that_nobody_asked_for_shrinks(small, tmp_path):
    """Its model says that it has 64 times the context, which changes what is taken by default."""
    options = ("--override-kv", "llama.context_length=int:524288", "--fit", "on")
    with CorralProcess(*options) as server:
        chosen = next(line for line in server.lines if "--fit: the model does not fit" in line)
        n_ctx = int(re.search(r"using -c (\d+)", chosen)[1])
        assert 8192 <= n_ctx < 524288
        assert server.get("/props").json()["default_generation_settings"]["n_ctx"] == n_ctx
        assert not any("tokenizer" in line for line in server.lines), "its threads' stacks fit into the limit"


def test_without_a_plan_libllama_says_it(small):
    result = run("--port", 0, "-c", 4 * N_CTX, "--fit", "off")
    assert result.returncode == 1
    assert "does not fit" not in result.stderr
    assert "cannot create a context" in result.stderr


def test_devices_are_listed():
    result = run("--list-devices")
    assert result.returncode == 0
    first, *here = result.stdout.splitlines()
    assert first == "Available devices:"
    assert here == ["  (none)"] or all(re.fullmatch(ROW, row) for row in here)
    with rpc_server(2) as where:
        result = run("--list-devices", "--rpc", where)
    assert result.returncode == 0
    _, *rows = result.stdout.splitlines()
    assert all(re.fullmatch(ROW, row) for row in rows)
    assert len(rows) == len([row for row in here if "(none)" not in row]) + 2
    for i, row in enumerate(rows[-2:]):
        assert row.startswith(f"  RPC{i}: {where} (")


@pytest.mark.slow
def test_a_model_elsewhere_answers_like_one_here(tiny):
    question = {"prompt": "hello world", "n_predict": 24, "temperature": 0, "return_tokens": True}
    with CorralProcess("-m", tiny) as here:
        expected = here.complete(**question)["tokens"]
    with rpc_server() as where, CorralProcess("-m", tiny, "--rpc", where, "-ngl", 99) as server:
        assert server.complete(**question)["tokens"] == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--rpc", "127.0.0.1:1"), "--rpc 127.0.0.1:1: cannot be reached"),
        (("--main-gpu", 33), "--main-gpu 33: devices are counted from 0; "),
        (("--tensor-split", "3,1" * 9), "--tensor-split has 10 shares; "),
        (("--device", "CUDA33"), "--device: unknown device 'CUDA33'"),
    ],
)
def test_what_is_not_there_ends_with_a_message(tiny, options, message):
    result = run("-m", tiny, "--port", 0, *options)
    assert result.returncode == 1
    assert message in result.stderr


def test_options_for_gpus_do_no_harm(tiny):
    options = ("-ngl", 99, "-sm", "row", "-nkvo", "--numa", "isolate", "--mlock", "--no-mmap", "-dev", "none")
    with CorralProcess("-m", tiny, *options) as server:
        assert server.complete(prompt="hello", n_predict=4, ignore_eos=True)["content"]


def test_the_doctor():
    result = run("doctor")
    assert result.returncode == 0, result.stdout
    assert re.search(r"^ok +libllama +.*llama-cpp-python", result.stdout, re.MULTILINE)
    assert str(find_default_model()) in result.stdout
    report = json.loads(run("doctor", "--json").stdout)
    assert report["ok"] is True
    assert {"python", "packages", "libllama", "memory", "network", "cache"} <= {
        c["name"] for c in report["checks"]
    }


def test_the_doctor_knows_who_is_on_the_port(tiny):
    with CorralProcess("-m", tiny) as server:
        port = server.url.rpartition(":")[2]
        report = json.loads(run("doctor", "--json", "--port", port).stdout)
        (found,) = [check for check in report["checks"] if check["name"] == "network"]
        assert found["level"] == "warning"
        assert found["text"] == f"port {port}: in use by a server like this one ({corral.__version__})"
