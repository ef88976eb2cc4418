"""The engine process: `python -m corral.link.worker FD FD`, a socket for frames and one for descriptors.

The main thread owns everything native. A reader thread converts frames to commands, and aborts a long
decode when its task is cancelled. A heartbeat thread shows that the process is alive.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import sys
import threading
import time

import msgspec

from corral.core.errors import CorralError
from corral.core.result import Heartbeat, LoadFailed, Loading, ModelInfo, Opened, Ready, Stage
from corral.core.settings import EngineSettings
from corral.core.task import Cancel, Embed, HandOver, SlotAction, Stop, Task
from corral.engine import loop
from corral.engine.adapter import load_adapters
from corral.engine.embedding_engine import EmbeddingEngine
from corral.engine.engine import Engine
from corral.engine.generation_engine import GenerationEngine
from corral.gguf.lora_base import with_lora_base
from corral.link.frame import BlockingChannel, decode_command, decode_settings
from corral.link.log import log_to_front
from corral.llama.backend import LlamaBackend
from corral.llama.context_size import total_ctx
from corral.llama.encoder import Encoder
from corral.llama.engine_fingerprint import engine_fingerprint
from corral.llama.library import log_patches
from corral.llama.model import Model
from corral.llama.multimodal import Projector
from corral.memory.probe import fit_limit, fit_memory, measure_need
from corral.tuning.encoding import with_encoding

BEAT_S = 0.5
_LOADING = "the weights into memory"
_WARMING_UP = "the model, so that the first request is as fast as the next"


def main() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    log_to_front()
    channel = BlockingChannel(*(socket.socket(fileno=int(fd)) for fd in sys.argv[1:3]))
    settings = decode_settings(channel.receive() or b"")
    heartbeat = _Beat(channel)
    try:
        inbox: loop.Inbox = queue.SimpleQueue()
        settings, weights = with_encoding(
            with_lora_base(settings),
            lambda what, fraction: channel.send([Loading(Stage.RE_ENCODING, fraction, what)]),
        )
        log_patches()
        if settings.is_gated:
            settings = fit_limit(settings)
            channel.send([measure_need(settings)])
            if channel.receive() is None:
                os._exit(0)
        _stay_on(settings.cpus)
        plan = fit_memory(settings)
        settings = plan.settings if plan is not None else settings
        engine, info = _open(settings, channel, inbox)
        if settings.warmup:
            channel.send([Loading(Stage.WARMING_UP, 0.0, _WARMING_UP)])
            engine.warm_up()
            channel.send([Loading(Stage.WARMING_UP, 1.0, _WARMING_UP)])
    except CorralError as error:
        channel.send([LoadFailed(error.message)])
        raise SystemExit(1) from None
    heartbeat.engine = engine
    threading.Thread(target=_read_commands, args=(channel, engine, inbox), daemon=True).start()
    info = msgspec.structs.replace(
        info,
        weights=weights,
        fingerprint=engine_fingerprint(settings),
        batch_exact=engine.batch_exact,
    )
    channel.send([Ready(info, settings)])
    loop.run(engine, inbox)
    os._exit(0)


def _stay_on(cpus: tuple[int, ...]) -> None:
    """Let the threads that this thread starts from now on run only on these CPUs."""
    if cpus and hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):  # a CPU may be gone
            os.sched_setaffinity(0, cpus)


def _open(settings: EngineSettings, channel: BlockingChannel, inbox: loop.Inbox) -> tuple[Engine, ModelInfo]:
    """Open an engine that generates if the model can, unless the settings ask for embeddings only."""
    model = Model.load(settings, lambda fraction: channel.send([Loading(Stage.LOADING, fraction, _LOADING)]))
    channel.send([Opened(model.path)])
    adapters = load_adapters(model.adapters, settings.lora)
    projector = Projector(model.handle, settings) if settings.mmproj else None
    if settings.only_embeds or not model.can_generate:
        encoder = Encoder(model, settings)
        info = model.describe(
            n_ctx=total_ctx(settings, model),
            n_slots=settings.n_parallel,
            encoder=encoder.info(),
            adapters=adapters,
            projector=projector,
            can_generate=False,
        )
        return EmbeddingEngine(
            encoder,
            model.adapters,
            channel.send,
            wake=lambda: inbox.put(loop.WAKE),
            projector=projector,
            cache_media_bytes=settings.cache_media_mib << 20,
        ), info
    backend = LlamaBackend(model, settings, projector)
    engine = GenerationEngine(backend, settings, emit=channel.send, wake=lambda: inbox.put(loop.WAKE))
    return engine, backend.info(adapters)


class _Beat:
    """Sends a heartbeat twice a second, also while the model loads."""

    def __init__(self, channel: BlockingChannel) -> None:
        self.engine: Engine | None = None
        self._channel = channel
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                self._channel.send([self.engine.heartbeat() if self.engine else Heartbeat(0.0, 0.0)])
            except OSError:
                os._exit(0)
            time.sleep(BEAT_S)


def _read_commands(channel: BlockingChannel, engine: Engine, inbox: loop.Inbox) -> None:
    while True:
        body = channel.receive()
        if body is None:
            os._exit(0)
        command = decode_command(body)
        if isinstance(command, SlotAction | HandOver | Task | Embed) and command.fd >= 0:
            command = msgspec.structs.replace(command, fd=channel.receive_fd())
        engine.is_stopping = isinstance(command, Stop)
        inbox.put(command)
        if isinstance(command, Cancel):
            engine.abort_if_running(command.task_id)
        elif isinstance(command, Task | Embed) and not command.is_batch:
            engine.abort_if_yielding()


if __name__ == "__main__":
    main()
