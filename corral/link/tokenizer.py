"""Tokenize in another process, and replace it when it is lost. Safe from any thread.

libllama may abort or hang on a hostile vocabulary or text, which must not affect the front. A text that
was in a process when it died is retried alone in the next one, so a text that kills is identified when it has
killed twice, and only that text is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from corral.core.errors import CorralError, InvalidRequest, Unavailable
from corral.link.frame import decode_tokens, encode_frame
from corral.link.supervisor import MAX_TRIES, ProcessLost, Supervisor
from corral.link.tokenizer_process import TokenizerProcess
from corral.text.vocab import Segment, Vocab, VocabFile, VocabTable, tokens_of

_BYTES_PER_S = 100_000  # slower than any tokenizer on any machine; extends the time limit of long texts


class Tokenizer:
    """Owns the tokenizer process, and the vocabulary that each of its successors must have, too."""

    def __init__(
        self,
        n_channels: int,
        timeout_s: float,
        make: Callable[[int, float], TokenizerProcess] = TokenizerProcess,
    ) -> None:
        """`n_channels`: how many threads can tokenize at once. `timeout_s`: time limit for a short text."""
        self.timeout_s = timeout_s
        self.worker = Supervisor("tokenizer", lambda: make(n_channels, timeout_s), self._open_again)
        self._first: TokenizerProcess | None = None
        self._opened: tuple[VocabFile, VocabTable] | None = None

    @property
    def is_ready(self) -> bool:
        """Whether texts are tokenized now; a resting process is started by the next one."""
        return self.worker.is_ready

    @property
    def n_restarts(self) -> int:
        return self.worker.n_restarts

    def start(self) -> None:
        """Spawn the process; it imports its modules while the engine loads."""
        self._first = self.worker.spawn()

    def open(self, file: VocabFile) -> Vocab:
        """Read the vocabulary; blocks. Raises CorralError if that fails. Call it once."""
        process = self._first
        assert process is not None
        try:
            table = process.open(file)
        except BaseException:
            process.close()
            raise
        self._opened = file, table
        self.worker.watch(process)
        return Vocab(table, self.tokenize_all)

    def close(self) -> None:
        """End the process and refuse waiting texts; blocks until it is gone."""
        self.worker.close()

    def rest(self) -> None:
        """End the process until there is a text for it, unless it has one now."""
        self.worker.rest()

    def tokenize_all(self, segments: Sequence[Segment], n_crashes: int = 0) -> list[list[int]]:
        """`n_crashes`: of processes that these texts were in."""
        frame = encode_frame([(text.encode(), add, parse) for text, add, parse in segments])
        limit_s = self.timeout_s + len(frame) / _BYTES_PER_S
        n_late = 0
        while n_crashes < MAX_TRIES and n_late < MAX_TRIES:
            try:
                answer = self.worker.ask(frame, limit_s, is_suspect=n_crashes > 0)
            except TimeoutError:
                n_late += 1
            except ProcessLost as lost:
                n_crashes += not lost.was_late
            else:
                return [tokens_of(data) for data in decode_tokens(answer)]
        if n_late == MAX_TRIES:
            raise Unavailable(f"the tokenizer did not finish this text within {limit_s:.0f} s")
        raise InvalidRequest(f"the text cannot be tokenized: it crashed the tokenizer {MAX_TRIES} times")

    def _open_again(self, process: TokenizerProcess) -> None:
        """Raises CorralError if the file has another vocabulary now."""
        assert self._opened is not None
        file, table = self._opened
        if process.open(file) != table:
            raise CorralError(f"the vocabulary of '{file.path}' has changed")
