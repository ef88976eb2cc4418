"""Many models for long: mixed requests while engines are killed, and loading and unloading over and over."""

from __future__ import annotations

import concurrent.futures
import contextlib
import random
import sys
import threading
from collections import Counter
from pathlib import Path

import psutil
import pytest

from tests.system.process import CorralProcess, children, wait_until
from tests.tools.tiny_encoders import bert_embed, bert_rerank
from tests.tools.tiny_models import llama_bpe, llama_spm

pytestmark = pytest.mark.slow

BUDGET = 700 << 20  # each model needs a little more than 272 MiB
N_CLIENTS, N_EACH = 4, 50
N_LOADS = 100
LONG = "Once upon a time there was a horse that lived in a corral. " * 4
CHAT = {"prompt": LONG, "n_predict": 16, "temperature": 0, "ignore_eos": True}
REQUESTS: list[tuple[str, str, dict]] = [
    ("chat", "/completion", {**CHAT, "model": "llama-bpe"}),
    ("other chat", "/completion", {**CHAT, "model": "llama-spm"}),
    ("embed", "/v1/embeddings", {"input": "Hello"}),
    ("rank", "/rerank", {"query": "x", "documents": ["a", "b"]}),
]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("shelf")
    for write in (llama_bpe, llama_spm, bert_embed, bert_rerank):
        write(directory)
    return directory


def serve(shelf: Path, cache: Path) -> CorralProcess:
    budget = ("--models-memory", BUDGET >> 20, "-cram", 16, "-c", 512)
    return CorralProcess("--models-dir", shelf, *budget, "--cache-disk", cache, "--engine-restarts", 1000)


class Watch:
    """Measures all processes of the models all the time, in a thread."""

    def __init__(self, server: CorralProcess) -> None:
        self._server = server
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sizes: list[int] = []
        self.n_most = 0

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(0.05):
            self.n_most = max(self.n_most, len(self._server.engines))
            self.sizes.append(sum(map(_rss, psutil.Process(self._server.process.pid).children())))


def _rss(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error):
        return int(process.memory_info().rss)
    return 0


def test_nothing_is_lost_and_the_budget_is_kept_while_engines_are_killed(shelf, tmp_path, capsys):
    answers: Counter[tuple[str, int]] = Counter()
    texts: dict[str, set[str]] = {"chat": set(), "other chat": set()}
    n_killed, n_reused, lock = 0, 0, threading.Lock()
    with serve(shelf, tmp_path) as server:

        def ask(client: int) -> None:
            nonlocal n_killed, n_reused
            rng = random.Random(client)
            for i in range(N_EACH):
                kind, path, body = rng.choice(REQUESTS)
                response = server.post(path, **body)
                with lock:
                    answers[kind, response.status_code] += 1
                    if kind in texts and response.is_success:
                        texts[kind].add(response.json()["content"])
                        n_reused += response.json()["timings"]["cache_n"] > 0
                if i % 5 == client and (engines := server.engines):
                    with contextlib.suppress(psutil.Error):
                        rng.choice(engines).kill()
                        n_killed += 1

        with Watch(server) as watch, concurrent.futures.ThreadPoolExecutor(N_CLIENTS) as pool:
            list(pool.map(ask, range(N_CLIENTS)))
        n_swaps = sum("to make room for" in line for line in server.lines)
        assert server.stop() == 0
    with capsys.disabled():
        most = max(watch.sizes) >> 20
        facts = f"{n_killed} kills, {n_swaps} unloaded, {n_reused} prompts reused, at most {most} MiB"
        sys.stdout.write(f"\n{dict(answers)}: {facts}\n")
    assert sum(answers.values()) == N_CLIENTS * N_EACH
    assert {status for _, status in answers} == {200}
    assert {kind: len(found) for kind, found in texts.items()} == {"chat": 1, "other chat": 1}
    assert 0 < max(watch.sizes) <= BUDGET
    assert watch.n_most <= 4, "two that are loaded, others that wait or end"
    assert n_killed > 20
    assert n_swaps > 10
    assert n_reused > 0
    assert "Traceback" not in "".join(server.lines)


def test_loading_and_unloading_leave_nothing_behind(shelf, tmp_path, capsys):
    with serve(shelf, tmp_path) as server:
        front = psutil.Process(server.process.pid)

        def look() -> tuple[int, ...]:
            files = sum(path.is_file() for path in tmp_path.rglob("*"))
            return front.num_fds(), len(front.children()), front.num_threads(), files

        def turn(i: int) -> None:
            name = ("llama-bpe", "llama-spm", "bert-embed", "bert-rerank")[i % len(REQUESTS)]
            _, path, body = REQUESTS[i % len(REQUESTS)]
            assert server.post(path, **body).is_success
            assert server.post("/models/unload", model=name).is_success

        def rest() -> tuple[int, ...]:
            workers = ("corral.link.tokenizer_worker", "corral.link.renderer_worker")
            wait_until(lambda: not any(children(server.process.pid, worker) for worker in workers))
            return look()

        for i in range(2 * len(REQUESTS)):
            turn(i)
        before = rest()
        for i in range(N_LOADS):
            turn(i)
        after = rest()
        with capsys.disabled():
            sys.stdout.write(
                f"\ndescriptors, processes, threads, files: {before}, after {N_LOADS}: {after}\n"
            )
        assert server.engines == []
        assert all(now <= then for now, then in zip(after, before, strict=True)), (before, after)
        assert server.stop() == 0
