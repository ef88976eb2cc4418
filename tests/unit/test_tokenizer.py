"""Tokenizer processes that come and go: every text is answered, but the one that kills."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from corral.core.errors import CorralError, InvalidRequest, Unavailable
from corral.link import restart
from corral.link.supervisor import MAX_TRIES
from corral.link.tokenizer import Tokenizer
from tests.unit.fake_tokenizer import (
    FILE,
    GENEROUS_S,
    HANGS,
    KILLS,
    N_CHANNELS,
    UNKNOWN,
    WAITS,
    Process,
    table,
)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(Process, "all", [])
    monkeypatch.setattr(Process, "errors", [])
    monkeypatch.setattr(Process, "released", threading.Event())
    monkeypatch.setattr(restart, "_FIRST_S", 0.001)


@pytest.fixture
def tokenizer():
    tokenizer = Tokenizer(N_CHANNELS, timeout_s=GENEROUS_S, make=cast(Any, Process))
    tokenizer.start()
    yield tokenizer
    tokenizer.close()


@pytest.fixture
def vocab(tokenizer):
    return tokenizer.open(FILE)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(16) as pool:
        yield pool
        Process.released.set()


def tokens_of(text: str) -> list[int]:
    return list(text.encode())


def tokenize(vocab, text: str) -> list[int]:
    return vocab.tokenize(text, True, False)


def until(condition) -> None:
    deadline = time.monotonic() + GENEROUS_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_all_texts_are_answered_whatever_the_number_of_channels(vocab, pool):
    texts = [f"text {i} é" for i in range(200)]
    assert list(pool.map(lambda text: tokenize(vocab, text), texts)) == [tokens_of(text) for text in texts]
    assert vocab.tokenize_all([(text, False, True) for text in texts]) == [tokens_of(text) for text in texts]
    assert len(Process.all) == 1
    assert max(Process.all[0].company.values()) <= N_CHANNELS


def test_nothing_is_asked_for_nothing(vocab):
    assert vocab.tokenize_all([]) == []
    assert Process.all[0].company == {}


def test_what_the_vocabulary_has_no_token_for_is_refused(vocab):
    with pytest.raises(InvalidRequest):
        tokenize(vocab, UNKNOWN)
    assert len(Process.all) == 1


def test_a_text_that_was_in_a_process_which_died_is_tried_again(vocab, tokenizer, monkeypatch):
    monkeypatch.setattr(Process, "n_deadly", 1)
    assert tokenize(vocab, KILLS) == tokens_of(KILLS)
    assert tokenizer.n_restarts == 1


def test_the_text_that_kills_is_refused_and_no_other_one(vocab, tokenizer, pool):
    waiting = [pool.submit(tokenize, vocab, WAITS) for _ in range(N_CHANNELS - 1)]
    until(lambda: Process.all[0].n_running == N_CHANNELS - 1)
    killing = pool.submit(tokenize, vocab, KILLS)
    until(lambda: len(Process.all) > 1)
    Process.released.set()
    with pytest.raises(InvalidRequest):
        killing.result(GENEROUS_S)
    assert [each.result(GENEROUS_S) for each in waiting] == [tokens_of(WAITS)] * len(waiting)
    assert tokenize(vocab, "next") == tokens_of("next")  # of a process that was counted
    assert tokenizer.n_restarts == MAX_TRIES


def test_a_text_that_is_suspected_is_alone(vocab, pool):
    many = [pool.submit(tokenize, vocab, WAITS) for _ in range(N_CHANNELS - 1)]
    until(lambda: Process.all[0].n_running == N_CHANNELS - 1)
    many += [pool.submit(tokenize, vocab, KILLS)] + [pool.submit(tokenize, vocab, str(i)) for i in range(10)]
    Process.released.set()
    for each in many:
        assert each.exception(GENEROUS_S) is None or isinstance(each.exception(), InvalidRequest)
    assert [isinstance(each.exception(), InvalidRequest) for each in many].count(True) == 1
    for process in Process.all[1:]:
        assert {process.company.get(text, 1) for text in (WAITS, KILLS)} == {1}


def test_a_text_that_takes_too_long_ends_the_process_twice(vocab, tokenizer, pool):
    waiting = pool.submit(tokenize, vocab, WAITS)
    until(lambda: Process.all[0].n_running == 1)
    with pytest.raises(Unavailable):
        tokenize(vocab, HANGS)
    until(lambda: tokenizer.n_restarts == MAX_TRIES)
    with pytest.raises(Unavailable):
        tokenize(vocab, HANGS)
    Process.released.set()
    assert waiting.result(GENEROUS_S) == tokens_of(WAITS)


def test_a_process_that_cannot_be_started_is_tried_again(vocab, tokenizer, pool):
    Process.errors[:] = [CorralError("it is gone"), CorralError("it is gone")]
    Process.all[0].kill()
    until(lambda: len(Process.all) == 4 and tokenizer.n_restarts == 3)
    until(lambda: not tokenizer.worker._refusal)
    assert tokenize(vocab, "a") == tokens_of("a")


@pytest.mark.parametrize(
    "error", [OSError(24, "Too many open files"), RuntimeError("can't start new thread"), ValueError()]
)
def test_no_error_of_a_restart_ends_the_restarts(vocab, tokenizer, error):
    Process.errors[:] = [error] * 3
    Process.all[0].kill()
    until(lambda: tokenizer.n_restarts == 4 and tokenizer.is_ready)
    assert tokenize(vocab, "a") == tokens_of("a")


def test_it_is_not_ready_while_it_is_down(vocab, tokenizer, monkeypatch):
    until(lambda: tokenizer.is_ready)
    monkeypatch.setattr(restart, "_FIRST_S", 0.05)
    Process.errors[:] = [CorralError("it is gone")] * 1000
    Process.all[0].kill()
    until(lambda: not tokenizer.is_ready)
    Process.errors[:] = []
    until(lambda: tokenizer.is_ready)


def test_texts_are_refused_while_it_is_down(vocab, monkeypatch):
    monkeypatch.setattr(restart, "_FIRST_S", 0.05)
    Process.errors[:] = [CorralError("it is gone")] * 1000
    Process.all[0].kill()
    with pytest.raises(Unavailable, match="it is gone"):
        tokenize(vocab, "a")


def test_another_vocabulary_is_none(vocab, monkeypatch):
    monkeypatch.setattr(Process, "table", table(eot=0))
    Process.all[0].kill()
    with pytest.raises(Unavailable, match=r"model\.gguf"):
        tokenize(vocab, "a")


def test_processes_that_die_by_themselves_come_more_and_more_slowly(vocab, caplog):
    with caplog.at_level(logging.WARNING, "corral"):
        for n in range(1, 5):
            until(lambda n=n: len(Process.all) == n)
            Process.all[-1].kill()
        until(lambda: len(Process.all) == 5)
    assert [record.args["seconds"] for record in caplog.records] == [0.001, 0.002, 0.004, 0.008]


def test_what_waits_is_refused_at_the_end(vocab, tokenizer, pool):
    waiting = pool.submit(tokenize, vocab, WAITS)
    until(lambda: Process.all[0].n_running == 1)
    tokenizer.close()
    for refused in (lambda: waiting.result(GENEROUS_S), lambda: tokenize(vocab, "a")):
        with pytest.raises(Unavailable):
            refused()
    assert len(Process.all) == 1


def test_it_rests_until_there_is_a_text(vocab, tokenizer, caplog):
    tokenize(vocab, "one")
    tokenizer.rest()
    until(lambda: Process.all[0].gone.is_set())
    tokenizer.rest()
    assert len(Process.all) == 1
    assert tokenize(vocab, "two") == tokens_of("two")
    assert (len(Process.all), tokenizer.n_restarts, caplog.text) == (2, 0, "")
    tokenizer.rest()
    until(lambda: Process.all[1].gone.is_set())


def test_it_does_not_rest_with_a_text(vocab, tokenizer, pool):
    waiting = pool.submit(tokenize, vocab, WAITS)
    until(lambda: Process.all[0].n_running)
    tokenizer.rest()
    Process.released.set()
    assert waiting.result() == tokens_of(WAITS)
    assert not Process.all[0].gone.is_set()


def test_it_may_end_before_there_is_a_vocabulary(tokenizer):
    tokenizer.close()
    assert Process.all[0].gone.is_set()
    with pytest.raises(CorralError):
        tokenizer.open(FILE)


def test_a_vocabulary_that_cannot_be_read_is_told(tokenizer):
    Process.errors[:] = [CorralError("it is damaged")]
    with pytest.raises(CorralError, match="it is damaged"):
        tokenizer.open(FILE)
    assert Process.all[0].gone.is_set()
