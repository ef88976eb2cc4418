"""A tokenizer process as the front sees it: it opens a vocabulary, and has a socket for the event loop."""

from __future__ import annotations

import socket

from corral.core.errors import CorralError
from corral.core.result import LoadFailed
from corral.link.frame import decode_vocab, encode_frame
from corral.link.worker_process import WorkerProcess
from corral.text.vocab import VocabFile, VocabTable

_OPEN_S = 600.0  # for reading a vocabulary


class TokenizerProcess(WorkerProcess):
    def __init__(self, n_channels: int, timeout_s: float) -> None:
        super().__init__("corral.link.tokenizer_worker", "tokenizer", n_channels + 1, timeout_s)
        self._quick = [self.idle.pop()]  # until it is taken or closed, whichever thread comes first

    def open(self, file: VocabFile) -> VocabTable:
        """Ask it to read the vocabulary; blocks."""
        try:
            body = self.life.ask(encode_frame(file), _OPEN_S)
        except TimeoutError:
            raise CorralError(
                f"the tokenizer process did not read '{file.path}' within {_OPEN_S:g} s"
            ) from None
        if body is None:
            raise CorralError(self.close())
        answer: VocabTable | LoadFailed = decode_vocab(body)
        if isinstance(answer, LoadFailed):
            raise CorralError(answer.message)
        return answer

    def take_quick(self) -> socket.socket | None:
        """Return the socket for short texts, to its only user, who closes it; None: too late."""
        return self._quick.pop().detach() if self._quick else None

    def close(self) -> str:
        said = super().close()
        if (quick := self.take_quick()) is not None:
            quick.close()
        return said
