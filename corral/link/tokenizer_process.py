"""A tokenizer process as the front sees it: spawn, open a vocabulary, wait for its end."""

from __future__ import annotations

import socket

from corral.core.errors import CorralError
from corral.core.result import LoadFailed
from corral.link.frame import BlockingChannel, decode_vocab, encode_frame
from corral.link.worker_process import WorkerProcess
from corral.text.vocab import VocabFile, VocabTable

_OPEN_S = 600.0  # for reading a vocabulary


class TokenizerProcess(WorkerProcess):
    """One tokenizer process. `Tokenizer` takes channels from `idle`, returns them, and keeps the counts."""

    def __init__(self, n_channels: int, timeout_s: float) -> None:
        super().__init__("corral.link.tokenizer_worker", "tokenizer", n_channels + 1, timeout_s)
        *others, quick = self.sockets
        self.idle = [BlockingChannel(ours) for ours in others]
        self._quick = [quick]  # until it is taken or closed, whichever thread comes first
        self.was_busy = False  # when it ended
        self.is_late = False  # killed because an answer took too long

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
        return self._quick.pop() if self._quick else None

    def close(self) -> str:
        """End it, and describe how it ended. Channels in use are closed by their users."""
        said = super().close()
        for channel in self.idle:
            channel.close()
        if (quick := self.take_quick()) is not None:
            quick.close()
        return said
