"""A tokenizer process in this one: a text's tokens are its characters' numbers, and some texts kill it."""

from __future__ import annotations

import threading

from corral.core.fim import FimTokens
from corral.link.frame import LENGTH_BYTES, decode_segments, encode_frame
from corral.text.vocab import VocabFile, VocabTable

FILE = VocabFile("model.gguf")
GENEROUS_S = 30
N_CHANNELS = 3
# Texts that are not only tokenized.
KILLS, HANGS, WAITS, UNKNOWN = "kills", "hangs", "waits", "unknown"


def table(eot: int = 1) -> VocabTable:
    return VocabTable(
        pieces=b"ab</s>",
        bounds=memoryview(bytearray(16)).cast("i").tobytes(),
        controls=[2],
        unknowns=[],
        eog_tokens=frozenset({2}),
        bos=-1,
        eos=2,
        eot=eot,
        sep=-1,
        adds_bos=False,
        adds_eos=False,
        adds_sep=False,
        fim=FimTokens(),
        chat_templates={},
    )


class Process:
    """In place of `TokenizerProcess`: a text's tokens are its characters' numbers."""

    all: list[Process] = []
    n_deadly = 1 << 30  # processes that `KILLS` kills
    errors: list[Exception] = []  # of the next ones
    table = table()
    released = threading.Event()  # lets `WAITS` go on

    def __init__(self, n_channels: int, timeout_s: float) -> None:
        self.gone = threading.Event()
        self.idle = [Channel(self) for _ in range(n_channels)]
        self.n_running, self.was_busy, self.has_answered, self.is_late = 0, False, False, False
        self.is_silent = False
        self.company: dict[str, int] = {}  # of each text, how many were in here with it
        self.number = len(Process.all)
        Process.all.append(self)

    def open(self, file: VocabFile) -> VocabTable:
        assert file is FILE
        if Process.errors:
            raise Process.errors.pop(0)
        return Process.table

    def wait(self) -> None:
        assert self.gone.wait(GENEROUS_S)

    def kill(self) -> None:
        self.gone.set()

    def end(self) -> int:
        self.kill()
        return -9

    def close(self) -> str:
        self.kill()
        return "it ended"


class Channel:
    def __init__(self, process: Process) -> None:
        self.process = process

    def ask(self, frame: bytes, limit_s: float) -> bytes | None:
        process, segments = self.process, decode_segments(frame[LENGTH_BYTES:])
        text = segments[0][0].decode()
        process.company[text] = process.n_running
        if text == KILLS and process.number < Process.n_deadly:
            process.kill()
        if text == HANGS:
            raise TimeoutError
        while text == WAITS and not (Process.released.wait(0.001) or process.gone.is_set()):
            pass
        if process.gone.is_set():
            return None
        tokens = [[-1] if data == UNKNOWN.encode() else list(data) for data, _, _ in segments]
        answer = [b"".join(token.to_bytes(4, "little", signed=True) for token in each) for each in tokens]
        return encode_frame(answer)[LENGTH_BYTES:]

    def close(self) -> None: ...
