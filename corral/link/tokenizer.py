"""Tokenize in another process, and replace it when it is lost. Safe from any thread.

libllama may abort or hang on a hostile vocabulary or text, which must not affect the front. Texts that
were in a process when it died are retried one at a time in the next one. So a text that kills is
identified when it has killed twice, and only that text is refused.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence

from corral.core.errors import InvalidRequest, Unavailable
from corral.link.frame import BlockingChannel, decode_tokens, encode_frame
from corral.link.lifecycle import shutting_down
from corral.link.restart import Life, RestartPolicy
from corral.link.tokenizer_process import TokenizerProcess
from corral.link.worker_process import reason_of
from corral.text.vocab import Segment, Vocab, VocabFile, VocabTable, tokens_of

MAX_TRIES = 2
_BYTES_PER_S = 100_000  # slower than any tokenizer on any machine; extends the time limit of long texts
_log = logging.getLogger("corral")


class Tokenizer:
    """Owns the tokenizer process. A thread watches the process and starts the next one."""

    def __init__(
        self,
        n_channels: int,
        timeout_s: float,
        make: Callable[[int, float], TokenizerProcess] = TokenizerProcess,
    ) -> None:
        """`n_channels`: how many threads can tokenize at once. `timeout_s`: time limit for a short text."""
        self._n_channels = n_channels
        self.timeout_s = timeout_s
        self._make = make
        self._policy = RestartPolicy(n_failures=sys.maxsize)
        self._changed = threading.Condition()  # guards everything below
        self._newest: TokenizerProcess | None = None
        self._process: TokenizerProcess | None = None  # ready for texts
        self._refusal = ""  # why texts are refused instead of waiting for a process
        self._n_suspects = 0  # retries after a crash, waiting or running
        self._is_resting = False  # until the next text
        self._rested: TokenizerProcess | None = None
        self._closing = threading.Event()
        self._watcher: threading.Thread | None = None
        self.n_restarts = 0

    @property
    def is_ready(self) -> bool:
        """Whether texts are tokenized now; a resting process is started by the next one."""
        process = self._process
        return self._is_resting if process is None else not process.is_silent

    def start(self) -> None:
        """Spawn the process; it imports its modules while the engine loads."""
        self._spawn()

    def open(self, file: VocabFile) -> Vocab:
        """Read the vocabulary; blocks. Raises CorralError if that fails. Call it once."""
        process = self._newest
        assert process is not None
        table = self._read(process, file)
        with self._changed:
            if self._closing.is_set():
                raise shutting_down()
            self._watcher = threading.Thread(target=self._watch, args=(process, file, table), daemon=True)
            self._watcher.start()
        return Vocab(table, self.tokenize_all)

    def close(self) -> None:
        """End the process and refuse waiting texts; blocks until it is gone."""
        with self._changed:
            self._closing.set()
            self._refuse(shutting_down().message)
            newest, watcher = self._newest, self._watcher
        if newest is not None:
            newest.kill()
        if watcher is not None:
            watcher.join()
        elif newest is not None:
            newest.close()

    def rest(self) -> None:
        """End the process until there is a text for it, unless it has one now."""
        with self._changed:
            process = self._process
            if process is None or process.n_running or self._n_suspects:
                return
            self._is_resting, self._rested, self._process = True, process, None
        process.kill()

    def tokenize_all(self, segments: Sequence[Segment], n_crashes: int = 0) -> list[list[int]]:
        """`n_crashes`: of processes that these texts were in."""
        frame = encode_frame([(text.encode(), add, parse) for text, add, parse in segments])
        limit_s = self.timeout_s + len(frame) / _BYTES_PER_S
        n_late = 0
        while n_crashes < MAX_TRIES and n_late < MAX_TRIES:
            is_suspect = n_crashes > 0
            process, channel = self._enter(is_suspect)
            answer = None
            try:
                answer = channel.ask(frame, limit_s)
            except TimeoutError:
                n_late += 1
                process.is_late = True
            finally:
                self._leave(process, channel, is_suspect, is_lost=answer is None)
            if answer is not None:
                return [tokens_of(data) for data in decode_tokens(answer)]
            n_crashes += not process.is_late  # a timeout says nothing about the other texts in the process
        if n_late == MAX_TRIES:
            raise Unavailable(f"the tokenizer did not finish this text within {limit_s:.0f} s")
        raise InvalidRequest(f"the text cannot be tokenized: it crashed the tokenizer {MAX_TRIES} times")

    def _enter(self, is_suspect: bool) -> tuple[TokenizerProcess, BlockingChannel]:
        """Wait for a free channel. A suspect waits until it is alone, others until there is no suspect."""
        with self._changed:
            self._n_suspects += is_suspect
            if self._is_resting:
                self._is_resting = False
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._refusal or self._can_enter(is_suspect))
            if self._refusal:
                self._n_suspects -= is_suspect
                raise Unavailable(self._refusal)
            assert self._process is not None
            self._process.n_running += 1
            return self._process, self._process.idle.pop()

    def enter_quick(self) -> TokenizerProcess | None:
        """Return the process for short texts that need no thread; None: it is not ready."""
        with self._changed:
            if self._process is None or self._n_suspects or self._refusal:
                return None
            self._process.n_running += 1
            return self._process

    def leave_quick(self, process: TokenizerProcess, is_lost: bool) -> None:
        with self._changed:
            self._note_end(process, is_lost)
        if is_lost:
            process.kill()

    def _note_end(self, process: TokenizerProcess, is_lost: bool) -> None:
        process.n_running -= 1
        process.has_answered |= not is_lost
        process.was_busy |= is_lost
        if is_lost and self._process is process:
            self._process = None  # before the watcher notices, so that no retry enters it
        self._changed.notify_all()

    def _can_enter(self, is_suspect: bool) -> bool:
        process = self._process
        if process is None or not process.idle:
            return False
        return process.n_running == 0 if is_suspect else self._n_suspects == 0

    def _leave(
        self, process: TokenizerProcess, channel: BlockingChannel, is_suspect: bool, is_lost: bool
    ) -> None:
        with self._changed:
            self._n_suspects -= is_suspect
            self._note_end(process, is_lost)
            if self._process is process:
                process.idle.append(channel)
            else:
                channel.close()
        if is_lost:
            process.kill()  # if it is still alive

    def _refuse(self, reason: str) -> None:
        self._refusal = reason
        self._changed.notify_all()

    def _watch(self, process: TokenizerProcess | None, file: VocabFile, table: VocabTable) -> None:
        while process is not None:
            began_at = time.monotonic()
            with self._changed:
                if not self._closing.is_set():
                    self._process = process
                    self._refuse("")
            process.wait()
            with self._changed:
                self._process = None
                was_busy = process.was_busy or process.n_running > 0
                life = Life(time.monotonic() - began_at, was_busy, process.has_answered)
                was_rested = self._rested is process
            reason = process.close()
            process = self._wake(file, table) if was_rested else self._replace(reason, life, file, table)

    def _wake(self, file: VocabFile, table: VocabTable) -> TokenizerProcess | None:
        """Wait for the next text, then start a process; None if the server is shutting down."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_resting or self._closing.is_set())
        if self._closing.is_set():
            return None
        try:
            process = self._spawn()
            if self._read(process, file) == table:
                return process
            process.close()
            reason = f"the vocabulary of '{file.path}' has changed"
        except Exception as error:
            reason = reason_of(error)
        return self._replace(reason, Life(None), file, table)

    def _replace(
        self, reason: str, life: Life, file: VocabFile, table: VocabTable
    ) -> TokenizerProcess | None:
        """Start the next process; None if the server is shutting down."""
        while not self._closing.is_set():
            delay_s = self._policy.end(life)
            assert delay_s is not None
            self.n_restarts += 1
            fields = {"reason": reason, "restart": self.n_restarts, "seconds": delay_s}
            _log.warning("%(reason)s; restart %(restart)d in %(seconds)g s", fields)
            if self._closing.wait(delay_s):
                break
            try:
                process = self._spawn()
                if self._read(process, file) == table:
                    return process
                process.close()
                reason = f"the vocabulary of '{file.path}' has changed"
            except Exception as error:
                reason = reason_of(error)
            life = Life(None)
            with self._changed:
                if not self._closing.is_set():
                    self._refuse(f"The tokenizer is down: {reason}")
        return None

    def _spawn(self) -> TokenizerProcess:
        process = self._make(self._n_channels, self.timeout_s)
        with self._changed:
            self._newest = process
            is_closing = self._closing.is_set()
        if is_closing:
            process.close()
            raise shutting_down()
        return process

    def _read(self, process: TokenizerProcess, file: VocabFile) -> VocabTable:
        try:
            return process.open(file)
        except BaseException:
            process.close()
            raise
