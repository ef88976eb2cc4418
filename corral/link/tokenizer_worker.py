"""The tokenizer process: `python -m corral.link.tokenizer_worker FD FD ...`.

The first socket receives the file to open and returns the table of its tokens; it closes when the front is
gone. Every other socket is served by a thread: texts in, tokens out.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import socket
import sys
import threading

from corral.core.errors import CorralError
from corral.core.result import LoadFailed
from corral.link.frame import BlockingChannel, decode_segments, decode_vocab_file
from corral.link.log import log_to_front
from corral.llama import library
from corral.llama.model import Model
from corral.llama.vocab import NativeVocab
from corral.text.vocab import VocabFile

_STACK_BYTES = 256 << 20  # some tokenizers recurse per character of a long text
_MIN_STACK_BYTES = 1 << 20
_log = logging.getLogger("corral")


def main() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    log_to_front()
    life, *channels = (BlockingChannel(socket.socket(fileno=int(fd))) for fd in sys.argv[1:])
    if (body := life.receive()) is not None:
        _serve_all(_open(decode_vocab_file(body), life), channels)
        life.receive()  # returns when the front is gone
    os._exit(0)


def _open(file: VocabFile, life: BlockingChannel) -> NativeVocab:
    try:
        library.start(verbose=False)
        model = Model.open(file.path, vocab_only=True, overrides=file.overrides)
        life.send(model.vocab.table(model.chat_templates))
    except CorralError as error:
        life.send(LoadFailed(error.message))
        raise SystemExit(1) from None
    return model.vocab


def _serve_all(vocab: NativeVocab, channels: list[BlockingChannel]) -> None:
    threading.stack_size(_stack_bytes(len(channels)))
    for channel in channels:
        threading.Thread(target=_serve, args=(vocab, channel), daemon=True).start()


def _stack_bytes(n_threads: int) -> int:
    """A quarter of the address space at most, where `ulimit -v` limits it."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return _STACK_BYTES
    page = resource.getpagesize()
    return max(_MIN_STACK_BYTES, min(_STACK_BYTES, limit // (4 * n_threads) // page * page))


def _serve(vocab: NativeVocab, channel: BlockingChannel) -> None:
    try:
        while (body := channel.receive()) is not None:
            channel.send([vocab.tokenize_bytes(*segment) for segment in decode_segments(body)])
    except OSError:
        os._exit(0)  # the front is gone
    except BaseException:
        _log.exception("unexpected error in the tokenizer")
        os._exit(1)


if __name__ == "__main__":
    main()
