"""A tokenizer process as the front sees it: spawn, open a vocabulary, wait for its end."""

from __future__ import annotations

import socket

from corral.core.errors import CorralError
from corral.core.result import LoadFailed
from corral.link.frame import BlockingChannel, decode_vocab, encode_frame
from corral.link.lifecycle import exit_name
from corral.link.process import spawn_module
from corral.text.vocab import VocabFile, VocabTable

_OPEN_S = 600.0  # for reading a vocabulary
_LAST_LINES_S = 1.0  # for relaying its last log lines


class TokenizerProcess:
    """One tokenizer process. `Tokenizer` takes channels from `idle`, returns them, and keeps the counts."""

    def __init__(self, n_channels: int) -> None:
        pairs = [socket.socketpair() for _ in range(2 + n_channels)]
        fds = [theirs.fileno() for _, theirs in pairs]
        try:
            self._process, self._log = spawn_module("corral.link.tokenizer_worker", fds, "corral.tokenizer")
        except OSError as error:
            raise CorralError(f"the tokenizer process cannot be started: {error.strerror or error}") from None
        finally:
            for _, theirs in pairs:
                theirs.close()
        *others, (quick, _) = pairs
        self._life, *self.idle = (BlockingChannel(ours) for ours, _ in others)
        self._quick = [quick]  # until it is taken or closed, whichever thread comes first
        self.n_running = 0
        self.has_answered = False
        self.was_busy = False  # when it ended
        self.is_late = False  # killed because an answer took too long

    def open(self, file: VocabFile) -> VocabTable:
        """Ask it to read the vocabulary; blocks."""
        try:
            body = self._life.ask(encode_frame(file), _OPEN_S)
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

    def wait(self) -> None:
        """Block until it is gone."""
        self._life.ask(b"", None)  # it sends nothing more

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> str:
        """End it, and describe how it ended. Channels in use are closed by their users."""
        self.kill()
        code = self._process.wait()
        self._log.join(_LAST_LINES_S)
        for channel in (self._life, *self.idle):
            channel.close()
        if (quick := self.take_quick()) is not None:
            quick.close()
        return f"the tokenizer process ended with {exit_name(code)}"
