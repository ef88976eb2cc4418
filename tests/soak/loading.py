"""Engines for many files, one after the other: `python -m tests.soak.loading`, a job for each line of JSON.

Each is the real engine process, forked from this one so that nothing has to be imported again: it loads the
files and does one piece of work. If it has survived, a second one does what the tokenizer and the front do
with the same file: it opens the vocabulary and uses it. Says for every job what became of the two.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass

from corral.chat.jinja_template import ChatTemplate
from corral.core.errors import CorralError
from corral.core.modifier import ScaledFile
from corral.core.params import GenerationParams
from corral.core.result import Event, Failed, LastResult, LoadFailed, ModelInfo, Ready
from corral.core.settings import EngineSettings, Settings
from corral.core.task import Embed, Task
from corral.link import worker
from corral.link.frame import FrameAssembler, decode_events, encode_frame
from corral.llama import library
from corral.llama.model import Model
from corral.models.chat import chat_settings
from corral.text.vocab import Vocab

HANG_S = 120.0
MAX_BYTES = 12 << 30  # of addresses: a file that wants more does not take the machine with it
TEXTS = [
    "",
    " ",
    "hello world",
    "naïve 日本 🙂 \x00\x7f",
    "<s><|im_start|></s>",
    "a" * 5000,
    "\n\t  \r\n",
    "\ufffd",
]


@dataclass(frozen=True, slots=True)
class Job:
    model: str
    lora: str = ""
    mmproj: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`engine`: served, failed (later), refused, crashed, hung; `front`: fine, refused, or worse."""

    engine: str
    reason: str = ""
    front: str = ""


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        outcome = _try(Job(**json.loads(line)))
        sys.stdout.write(json.dumps(asdict(outcome)) + "\n")
        sys.stdout.flush()


def _try(job: Job) -> Outcome:
    engine, reason = _run_engine(job)
    if engine not in ("served", "failed"):
        return Outcome(engine, reason)
    return Outcome(engine, reason, _run_front(job))


def _settings(job: Job) -> EngineSettings:
    lora = (ScaledFile(job.lora),) if job.lora else ()
    return EngineSettings(model=job.model, lora=lora, mmproj=job.mmproj, n_ctx=256, n_threads=1)


def _run_engine(job: Job) -> tuple[str, str]:
    ours, theirs = socket.socketpair()
    parcels, their_parcels = socket.socketpair()
    pid = _fork(lambda: _be_engine(theirs, their_parcels), (ours, parcels))
    theirs.close()
    their_parcels.close()
    with ours, parcels:
        ours.sendall(encode_frame(_settings(job)))
        outcome = _talk(ours)
    status = _reap(pid)
    if outcome is None:
        return "crashed", status
    return outcome


def _be_engine(sock: socket.socket, parcels: socket.socket) -> None:
    sys.argv = ["worker", str(sock.detach()), str(parcels.detach())]
    worker.main()


def _talk(sock: socket.socket) -> tuple[str, str] | None:
    """What the engine says in the end; nothing if it is gone before."""
    frames, deadline = FrameAssembler(), time.monotonic() + HANG_S
    while select.select([sock], [], [], max(0.0, deadline - time.monotonic()))[0]:
        try:
            data = sock.recv(65536)
        except ConnectionError:
            return None
        if not data:
            return None
        for event in (event for body in frames.feed(data) for event in decode_events(body)):
            if (outcome := _outcome(event, sock)) is not None:
                return outcome
    return "hung", f"nothing for {HANG_S:g} s"


def _outcome(event: Event, sock: socket.socket) -> tuple[str, str] | None:
    if isinstance(event, LoadFailed):
        return "refused", event.message
    if isinstance(event, Ready):
        if errors := [adapter.error for adapter in event.info.adapters if adapter.error]:
            return "refused", errors[0]  # by the front, which is told of it
        sock.sendall(encode_frame(_work(event.info)))
    elif isinstance(event, Failed):
        return "failed", event.error.message
    elif isinstance(event, LastResult):
        return "served", ""
    return None


def _work(info: ModelInfo) -> Task | Embed:
    prompt, lora = list(range(1, 20)), tuple((adapter.id, 1.0) for adapter in info.adapters)
    if info.can_generate:
        return Task(id=1, prompt=prompt, params=GenerationParams(n_predict=4, lora=lora))
    return Embed(id=1, inputs=[prompt])


def _run_front(job: Job) -> str:
    reader, writer = os.pipe()
    pid = _fork(lambda: _be_front(job, writer), ())
    os.close(writer)
    with os.fdopen(reader) as said:
        if not select.select([said], [], [], HANG_S)[0]:
            _reap(pid)
            return "hung"
        text = said.read()
    status = _reap(pid)
    return text or status


def _be_front(job: Job, writer: int) -> None:
    """As the tokenizer process and `models/front.py` do it, and then as requests do."""
    settings = Settings(engine=_settings(job))
    try:
        library.start(verbose=False)
        model = Model.open(settings.engine.model, vocab_only=True)
        words = Vocab(model.vocab.table(model.chat_templates), model.vocab.tokenize_all)
        chat_settings(settings.server, words.chat_templates, words, ChatTemplate)
        for text in TEXTS:
            for parses in (False, True):
                words.detokenize(words.tokenize(text, add_special=True, parse_special=parses))
        words.detokenize(list(range(words.n_tokens)))
        said = (words.bos_text, words.eos_text, words.eot, words.fim, words.control_texts)
        os.write(writer, b"fine" if said else b"")
    except CorralError as error:
        os.write(writer, f"refused: {error.message}".encode())
    except BaseException:
        os.write(writer, f"died: {traceback.format_exc()}".encode())


def _fork(child: Callable[[], None], to_close: tuple[socket.socket, ...]) -> int:
    pid = os.fork()
    if pid:
        return pid
    for sock in to_close:
        sock.close()
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    try:
        child()
    finally:
        os._exit(0)


def _reap(pid: int) -> str:
    """Ends a process, if it does not by itself; how it ended."""
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            code = os.waitstatus_to_exitcode(status)
            return signal.Signals(-code).name if code < 0 else f"code {code}"
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "ended by us"


if __name__ == "__main__":
    main()
