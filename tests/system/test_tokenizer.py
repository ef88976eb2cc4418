"""The tokenizer process on the real command: killed, stopped, aborted by a text. HTTP goes on."""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.system.process import START_S, CorralProcess, wait_until

NATIVE = ("libllama", "libggml", "llguidance")
KILLS, HANGS = "this text kills", "this text hangs"
# Python runs it at the start of every process: the tokenizer's one falls over some texts then.
FAULTS = f"""
import os, sys, time
if "corral.link.tokenizer_worker" in sys.orig_argv:
    from corral.llama.vocab import NativeVocab
    tokenize_bytes = NativeVocab.tokenize_bytes
    def fall_over(self, data, *options):
        if b"{KILLS}" in data:
            os.abort()
        if b"{HANGS}" in data:
            time.sleep({START_S})
        return tokenize_bytes(self, data, *options)
    NativeVocab.tokenize_bytes = fall_over
"""


def faulty(path: Path) -> dict[str, str]:
    """An environment in which the tokenizer has faults."""
    (path / "sitecustomize.py").write_text(FAULTS)
    return {"PYTHONPATH": os.pathsep.join([str(path), *filter(None, [os.environ.get("PYTHONPATH")])])}


@pytest.fixture(scope="module")
def server(tiny, tmp_path_factory):
    options = ("-m", tiny, "-c", 2048, "-np", 2, "--metrics", "--engine-timeout", 5)
    with CorralProcess(*options, env=faulty(tmp_path_factory.mktemp("faults"))) as server:
        yield server


def n_restarts(server: CorralProcess) -> int:
    text = server.get("/metrics").text
    (line,) = [line for line in text.splitlines() if line.startswith("corral_tokenizer_restarts_total ")]
    return int(float(line.split()[1]))


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_front_has_no_native_inference_code_in_it(server):
    server.complete(prompt="Hello", n_predict=2, grammar='root ::= "a" | "b"')
    maps = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert [name for name in NATIVE if name in maps] == []
    others = [Path(f"/proc/{process.pid}/maps").read_text() for process in (server.engine, server.tokenizer)]
    assert all("libllama" in maps for maps in others)


def test_texts_are_answered_although_the_tokenizer_is_killed(server):
    texts = [f"the text {i}, which is {'very ' * i}long" for i in range(40)]
    expected = [server.post("/tokenize", content=text).json() for text in texts]
    with ThreadPoolExecutor(8) as pool:
        tokenized = [pool.submit(server.post, "/tokenize", content=text) for text in texts]
        answered = [pool.submit(server.post, "/completion", prompt=text, n_predict=1) for text in texts[::5]]
        for _ in range(3):
            lost = server.tokenizer
            lost.kill()
            wait_until(partial(is_replaced, server, lost))
    assert [answer.result().json() for answer in tokenized] == expected
    assert [answer.result().status_code for answer in answered] == [200] * len(answered)
    assert n_restarts(server) >= 3


def is_replaced(server: CorralProcess, lost: psutil.Process) -> bool:
    assert server.get("/health").status_code == 200
    return lost not in psutil.Process(server.process.pid).children() and bool(
        server.post("/tokenize", content="a")
    )


def test_the_text_that_kills_the_tokenizer_is_refused_and_no_other_one(server):
    before = n_restarts(server)
    messages = [{"role": "user", "content": KILLS}]
    with ThreadPoolExecutor(8) as pool:
        others = [pool.submit(server.post, "/completion", prompt=f"text {i}", n_predict=1) for i in range(20)]
        killing = [
            pool.submit(server.post, "/tokenize", content=KILLS),
            pool.submit(server.post, "/v1/chat/completions", messages=messages),
        ]
        assert server.get("/health").status_code == 200
    for answer in killing:
        error = answer.result().json()["error"]
        assert (error["code"], error["type"]) == (400, "invalid_request_error")
    assert [answer.result().status_code for answer in others] == [200] * len(others)
    assert server.post("/tokenize", content="a").status_code == 200
    assert 3 <= n_restarts(server) - before <= 4
    wait_until(lambda: "the tokenizer process ended with code -6 (SIGABRT)" in "".join(server.lines))


def test_a_text_that_takes_too_long_is_given_up(server):
    answer = server.post("/tokenize", content=HANGS)
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "unavailable_error")
    assert server.post("/tokenize", content="a").status_code == 200


def test_a_tokenizer_that_stands_still_is_replaced(server):
    server.tokenizer.suspend()
    assert server.post("/tokenize", content="a").status_code == 200


def test_it_goes_with_the_server_and_with_a_front_that_is_killed(tiny):
    for number in (signal.SIGTERM, signal.SIGKILL):
        server = CorralProcess("-m", tiny, "-c", 512)
        children = [server.tokenizer, server.engine]
        server.process.send_signal(number)
        server.process.wait(START_S)
        assert psutil.wait_procs(children, timeout=START_S)[1] == []
        server.stop()
        assert "Traceback" not in "".join(server.lines)


def test_ctrl_c_is_not_for_it(server):
    tokenizer = server.tokenizer
    tokenizer.send_signal(signal.SIGINT)
    assert server.post("/tokenize", content="a").status_code == 200
    assert server.tokenizer.pid == tokenizer.pid


def test_a_tokenizer_that_dies_over_the_vocabulary_ends_the_start(tiny, tmp_path):
    environment = faulty(tmp_path)
    with (tmp_path / "sitecustomize.py").open("a") as file:
        file.write("    NativeVocab.table = lambda *_: os.abort()\n")
    server = CorralProcess("-m", tiny, "-c", 512, wait=False, env=environment)
    assert server.process.wait(START_S) == 1
    server.wait_for("the tokenizer process ended with code -6")
    server.stop()
    assert "Traceback" not in "".join(server.lines)
