"""The whole server in this process: the product's own start, life and stop around a fake engine.

The only place that knows how a server is put together. What is replaced: the sockets, the engine process (by
the fake backend), the processes of tokenizer and templates, the wall clock and the draws of seeds.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any
from unittest import mock

import msgspec
import numpy as np
from starlette.types import ASGIApp

from corral.chat.jinja_template import ChatTemplate
from corral.core.catalog import CatalogModel
from corral.core.draw import Redraw
from corral.core.errors import CorralError, Unavailable
from corral.core.fim import FimTokens
from corral.core.params import SamplingParams
from corral.core.pooling import Pooling
from corral.core.result import Loading, MemoryPlan, ModelInfo, TokenProb, TokenProbs
from corral.core.settings import EngineSettings, ServerSettings, Settings
from corral.core.top_probs import TopProbs
from corral.link.client import TaskT
from corral.link.engine_state import EngineState
from corral.link.observer import TaskObserver
from corral.link.pending_task import MediaFile
from corral.link.stream import TaskStream
from corral.memory.plan import HOST
from corral.models.life import CatalogLife
from corral.models.only_life import OnlyLife
from corral.server.drain import Drain
from corral.server.listen import Listener
from corral.server.run import serve
from corral.text.vocab import VocabFile
from tests.contract.inline import InlineEngine
from tests.contract.scripted import TEMPLATES, CharVocab, ScriptedSampler
from tests.golden.case import Model
from tests.unit.fake import FakeBackend, FakeEncoder

START = 1_700_000_000  # 2023-11-14, when all of this happens
MODELS = ("m", "n")  # of a server with many; a server with one has the first


class GoldenVocab(CharVocab):
    chat_templates: dict[str, str] = {}

    def __init__(self) -> None:
        super().__init__()
        self.fim = FimTokens(1 + 0xE000, 1 + 0xE001, 1 + 0xE002)


class GoldenSampler(ScriptedSampler):
    """Writes `says`; a character that is taken back begins `instead`. `breaks_after`: characters."""

    def __init__(self, params: SamplingParams, model: Model) -> None:
        super().__init__(params, model.says, 0)
        self._model = model
        self._index = -1
        self._redrawn_at: int | None = None

    def sample(
        self, logits: np.ndarray, index: int, redraw: Redraw | None = None
    ) -> tuple[int, TokenProbs | None]:
        if index == self._model.breaks_after:
            raise CorralError("the fake engine breaks here")
        if redraw is not None and self._redrawn_at is None:
            self._redrawn_at = index
        text = self._model.says if self._redrawn_at is None else self._model.instead
        token = 1 + ord(text[index]) if index < len(text) else 0
        n, other = self._params.n_probs, TokenProb(1 + ord("-"), 0.25)
        return token, TokenProbs(
            first := TokenProb(token, 0.5), TopProbs.of([first, other][:n])
        ) if n else None

    def rewind(self, n: int) -> bool:
        return True


class GoldenBackend(FakeBackend):
    def __init__(self, model: Model) -> None:
        encoder = FakeEncoder(Pooling(model.pooling), labels=model.labels) if model.pooling else None
        super().__init__(n_seq=model.n_slots, n_ctx=8192, encoder=encoder)
        self.vocab = GoldenVocab()
        self.n_vocab = self.vocab.n_tokens
        self.model = model

    def info(self) -> ModelInfo:
        return msgspec.structs.replace(super().info(), n_vocab=self.n_vocab)

    def open_sampler(
        self, params: SamplingParams, prompt: Sequence[int], grammar: Any = None
    ) -> GoldenSampler:
        return GoldenSampler(params, self.model)


class FakeLifecycle:
    """The life of an engine that is ready at once, or never."""

    def __init__(self, engine: FakeEngine, settings: EngineSettings, is_ready: bool) -> None:
        self._engine = engine
        self._is_ready = is_ready
        self._owner: Any = None
        self._closed = asyncio.Event()
        self.settings = settings
        self.loading = Loading()
        self.pids: list[int] = []

    def owned_by(self, owner: Any) -> None:
        self._owner = owner

    async def start(self) -> ModelInfo:
        if not self._is_ready:
            self._engine.state = EngineState.LOADING
            await self._closed.wait()
            raise _stopping()
        if self._owner is not None:
            await self._owner.admit(MemoryPlan({HOST: 1 << 20}))
        self._engine.state = EngineState.READY
        assert self._engine.info is not None
        return self._engine.info

    def load_again(self) -> None:
        self._engine.state = EngineState.READY

    def begin_unload(self) -> None:
        self._engine.state = EngineState.SLEEPING

    async def wait_unloaded(self) -> None: ...

    async def opened(self) -> str:
        return self.settings.model

    def check_up(self) -> None:
        if self._engine.state is EngineState.FAILED:
            raise Unavailable("The engine is down: it broke")

    def wake(self) -> None:
        self._engine.wake()

    def dismiss(self) -> None:
        self._engine.dismiss()

    async def close(self) -> None:
        self._closed.set()
        self._engine.dismiss()


class FakeEngine(InlineEngine):
    """In place of `EngineClient`."""

    def __init__(self, model: Model, settings: EngineSettings, telemetry: Any) -> None:
        super().__init__(GoldenBackend(model), settings)
        self.telemetry = telemetry
        telemetry.on_slots(self.info.n_slots)
        self.lifecycle = FakeLifecycle(self, settings, model.is_ready)

    @property
    def is_busy(self) -> bool:
        return bool(self.n_tasks)

    def submit(
        self, task: TaskT, observer: TaskObserver, media: MediaFile | None = None
    ) -> tuple[TaskT, TaskStream]:
        self.lifecycle.check_up()
        return super().submit(task, observer, media)

    def dismiss(self) -> None:
        for _, stream in self._tasks.values():
            stream.fail(_stopping())


def _stopping() -> Unavailable:
    return Unavailable("the server is shutting down")


class FakeRenderer:
    """In place of `Renderer`: templates without a process."""

    is_ready = True
    template = staticmethod(cache(ChatTemplate))

    def __init__(self, _timeout_s: float) -> None: ...

    def start(self) -> None: ...

    def rest(self) -> None: ...

    def close(self) -> None: ...


class FakeTokenizer:
    """In place of `Tokenizer`, and of its process."""

    is_ready = True
    n_restarts = 0

    def __init__(self, _n_channels: int, _timeout_s: float) -> None:
        self.worker = self
        self._vocab = GoldenVocab()

    def open(self, _file: VocabFile) -> GoldenVocab:
        return self._vocab

    def enter_quick(self) -> None: ...

    def tokenize_all(self, segments: Any, _n_crashes: int = 0) -> list[list[int]]:
        return self._vocab.tokenize_all(segments)

    def start(self) -> None: ...

    def rest(self) -> None: ...

    def close(self) -> None: ...


class FakeHttpServer:
    """In place of `HttpServer`: has the application, and no sockets."""

    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        listener: Listener,
        tls: None,
        on_listening: Callable[[str], None],
        drain: Drain,
    ) -> None:
        self.app = app
        self.address = "http://127.0.0.1:8080"
        self.connections: list[Any] = []
        self.keys: Any = None
        self._on_listening = on_listening
        self._drain = drain
        self._stopped = asyncio.Event()

    async def run_here(self) -> None:
        self._on_listening(self.address)
        await self._stopped.wait()

    def stop(self) -> None:
        self._drain.begin()
        self._stopped.set()


class Started:
    """A running server: its application, and the engines of its models. Is its own `Reporter`."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._http: FakeHttpServer | None = None
        self._ready = asyncio.Event()
        self.engines: list[FakeEngine] = []

    @property
    def app(self) -> ASGIApp:
        assert self._http is not None
        return self._http.app

    @property
    def engine(self) -> FakeEngine:
        """That of the first model."""
        return self.engines[0]

    def open_http(self, *args: Any, **options: Any) -> FakeHttpServer:
        self._http = FakeHttpServer(*args, **options)
        return self._http

    def open_engine(
        self, settings: EngineSettings, _timeout_s: float, telemetry: Any, *_: Any, **__: Any
    ) -> Any:
        self.engines.append(FakeEngine(self._model, settings, telemetry))
        return self.engines[-1]

    def stop(self) -> None:
        assert self._http is not None
        self._http.stop()

    def go(self) -> None:
        """Let requests come."""
        self._ready.set()

    async def until_ready(self) -> None:
        await self._ready.wait()

    def loading(self, loading: Loading) -> None: ...

    def restarting(self, reason: str) -> None: ...

    def located(self, settings: Settings) -> None: ...

    def ready(self, address: str, info: ModelInfo) -> None:
        self.go()

    def ready_for_many(self, address: str, names: Sequence[str]) -> None:
        self.go()


@contextlib.asynccontextmanager
async def started(model: Model, is_many: bool, **options: Any) -> AsyncIterator[Started]:
    """Start a server, with one model or with many, whose model answers as told."""
    options = {"port": 0, "sse_ping_s": -1, "models_memory_mib": 4096, **options}
    if "chat_template" not in options:
        options["chat_template_file"] = str(TEMPLATES / f"{model.template}.jinja")
    server, started = ServerSettings(**options), Started(model)
    with _replaced(started):
        life = asyncio.create_task(
            _serve_many(server, model, started) if is_many else _serve(server, model, started)
        )
        ready = asyncio.create_task(started.until_ready())
        await asyncio.wait({life, ready}, return_when=asyncio.FIRST_COMPLETED)
        if life.done():
            life.result()
        try:
            yield started
        finally:
            started.stop()
            await life


async def _serve(server: ServerSettings, model: Model, started: Started) -> None:
    settings = _settings_of(MODELS[0], server, model)
    if not model.is_ready:
        started.go()
    await serve(settings, lambda _: None, partial(OnlyLife, settings, started))


async def _serve_many(server: ServerSettings, model: Model, started: Started) -> None:
    catalog = [
        CatalogModel(name=name, settings=_settings_of(name, server, model), aliases=(f"{name}-alias",))
        for name in MODELS
    ]
    settings = _settings_of("", server, model)
    life = partial(CatalogLife, catalog, settings, started, locate=lambda settings, _tell: settings)
    await serve(settings, lambda _: None, life)


def _settings_of(name: str, server: ServerSettings, model: Model) -> Settings:
    engine = EngineSettings(model=f"/models/{name}.gguf", n_parallel=model.n_slots, cache_ram_mib=0)
    return Settings(engine=engine, server=msgspec.structs.replace(server, alias=name))


@contextlib.contextmanager
def _replaced(started: Started) -> Iterator[None]:
    """Replace what is not the front, and what differs between two runs."""
    interval = sys.getswitchinterval()
    with contextlib.ExitStack() as replaced:
        replaced.enter_context(mock.patch("corral.server.run.HttpServer", started.open_http))
        replaced.enter_context(mock.patch("corral.models.engines.EngineClient", started.open_engine))
        replaced.enter_context(mock.patch("corral.models.text_processes.Tokenizer", FakeTokenizer))
        for place in ("corral.models.text_processes", "corral.models.many"):
            replaced.enter_context(mock.patch(f"{place}.Renderer", FakeRenderer))
        replaced.enter_context(mock.patch("corral.models.front.gc"))  # this process has many servers
        replaced.enter_context(mock.patch.object(time, "time", return_value=float(START)))
        replaced.enter_context(mock.patch.object(secrets, "randbelow", lambda n: 42 % n))
        try:
            yield
        finally:
            sys.setswitchinterval(interval)
