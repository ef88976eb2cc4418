"""What the routes stand on: the engine, the model's words, the settings."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
from fastapi import Request

from corral.api.adapter import AdapterEngine, AdapterStore
from corral.api.admission import check_queue
from corral.api.body import read_json
from corral.api.disconnect import run_for_client
from corral.api.error import still_loading
from corral.api.prepare import Limits, PreparedCompletion, cap_warnings
from corral.api.prepare_chat import ChatSettings, ChatVocabulary
from corral.api.prepare_embedding import PairVocabulary
from corral.api.prepare_infill import InfillVocabulary
from corral.api.schema.completion import GenerationFields
from corral.api.schema.parse import parse_request
from corral.api.system_prompt import SystemPrompt
from corral.core.client import ANONYMOUS, Client
from corral.core.errors import Conflict, NotSupported, Unavailable
from corral.core.params import GenerationParams, Guidance
from corral.core.result import Loading, ModelInfo, SlotReport
from corral.core.settings import ServerSettings, Settings
from corral.core.task import Busy, SlotAction, Task
from corral.link.client import TaskT
from corral.link.lifecycle import EngineState
from corral.link.observer import TaskObserver
from corral.link.pending_task import MediaFile
from corral.link.stream import TaskStream
from corral.media.collect import Collector
from corral.media.intake import Intake, MediaLayouter, MediaVocab, RequestMedia, UnusableImages
from corral.media.local import LocalMedia
from corral.media.source import MediaSource
from corral.storage.chat_store import ChatStore
from corral.storage.save_directory import SaveDirectory
from corral.storage.session import SessionStore, spill_directory
from corral.telemetry.dispatcher import Telemetry
from corral.telemetry.record import RequestRecord
from corral.telemetry.scope import record_of

T = TypeVar("T")
FieldsT = TypeVar("FieldsT", bound=GenerationFields)

_MAX_BLOBS = 2  # states in memory at once for each slot and way, beside sessions
_SHORT_BYTES = 64 << 10  # of a body, whose texts are looked through at once
LARGE_BYTES = 1 << 20  # of a request or its answer, that prompts should not have to wait for
_PROMPT_THREADS, _MAX_PROMPT_THREADS = 4, 32  # they wait for the tokenizer most of the time


class Engine(AdapterEngine, MediaLayouter, Protocol):
    """The engine as routes use it; `EngineClient` is the real one."""

    @property
    def state(self) -> EngineState: ...

    @property
    def info(self) -> ModelInfo | None: ...

    @property
    def loading(self) -> Loading:
        """How far a start is, while there is one."""
        ...

    @property
    def n_restarts(self) -> int:
        """Engines that were lost, and followed by another one."""
        ...

    @property
    def is_silent(self) -> bool:
        """Whether it gives no sign of life although it should."""
        ...

    @property
    def down_because(self) -> str:
        """Why it has failed for good, if it has."""
        ...

    def submit(
        self, task: TaskT, observer: TaskObserver, media: MediaFile | None = None
    ) -> tuple[TaskT, TaskStream]: ...

    async def act(self, action: SlotAction, fd: int = -1) -> SlotReport: ...


class Vocab(ChatVocabulary, InfillVocabulary, PairVocabulary, Protocol):
    """The model's vocabulary, in the front."""

    @property
    def control_texts(self) -> list[str]: ...

    @property
    def eos_text(self) -> str: ...

    @property
    def eot(self) -> int: ...

    def piece(self, token: int, special: bool = False) -> bytes: ...

    def detokenize(self, tokens: list[int]) -> str: ...


class Service:
    def __init__(
        self, settings: Settings, engine: Engine, telemetry: Telemetry, defaults: GenerationParams
    ) -> None:
        self.settings = settings
        self.engine = engine
        self.telemetry = telemetry
        self._defaults = defaults
        self.adapters = AdapterStore(engine, settings.server.lora_dir)
        self._intake = Intake(engine, _media_source(settings.server))
        self.started_at = int(time.time())
        self._is_draining = False
        path = settings.server.slot_save_path
        self.saves = SaveDirectory(Path(path)) if path else None
        spill = spill_directory(self.saves) if self.saves and settings.server.slots else None
        chats = settings.server.chats_path
        self.chats = ChatStore(Path(chats)) if chats else None
        self._blob_limits: dict[tuple[int, str], asyncio.Semaphore] = {}
        self.sessions = SessionStore(settings.server.sessions_ram_mib << 20, spill)
        self._vocab: Vocab | None = None
        self._chat: ChatSettings | None = None
        self.rerank_template = ""
        self.system_prompt = SystemPrompt()
        self._prompts = ThreadPoolExecutor(n_prompt_threads(settings.server), "prompt")
        self._texts = ThreadPoolExecutor(1, "text")

    @property
    def model_name(self) -> str:
        """As answers name the model: `--alias`, or the name of its file without the directory."""
        return self.settings.server.alias or Path(self.settings.engine.model).name

    @property
    def vocab(self) -> Vocab:
        return self._require(self._vocab)

    @property
    def chat(self) -> ChatSettings:
        return self._require(self._chat)

    @property
    def info(self) -> ModelInfo:
        return self._require(self.engine.info)

    @property
    def limits(self) -> Limits:
        return Limits(self.info.n_ctx, self.info.n_slots, self.adapters.ids)

    @property
    def defaults(self) -> GenerationParams:
        """What a request gets that asks for nothing in particular."""
        return msgspec.structs.replace(self._defaults, lora=self.adapters.config)

    @property
    def drafts(self) -> bool:
        """Whether it decodes speculatively."""
        return self.settings.engine.drafts and self._defaults.speculative.n_max > 0

    def open(self, vocab: Vocab, chat: ChatSettings, rerank_template: str = "") -> None:
        """The model is loaded: requests can be served from now on."""
        self._vocab = vocab
        self._chat = chat
        self.rerank_template = rerank_template

    def drain(self) -> None:
        """What runs is finished, nothing else should come: `/ready` says so."""
        self._is_draining = True

    def guide(self, guidance: Guidance | None) -> None:
        """Have all requests steer away from a negative prompt, unless they say otherwise."""
        self._defaults = msgspec.structs.replace(self._defaults, guidance=guidance)

    def piece(self, token: int) -> bytes:
        """A token's bytes, control tokens included."""
        return self.vocab.piece(token, special=True)

    def check_health(self, tells_why: bool = True) -> None:
        """Raises unless there is an engine, or will be one as soon as it wakes up. `tells_why`: paths may be
        named."""
        state = self.engine.state
        if state is EngineState.FAILED:
            reason = f": {self.engine.down_because}" if tells_why and self.engine.down_because else ""
            raise Unavailable(f"The engine is down{reason}")
        if state is EngineState.RESTARTING:
            raise Unavailable("Engine restarting")
        if state is EngineState.LOADING or self._vocab is None:
            raise still_loading(self.engine.loading)

    def check_answers(self, tells_why: bool = True) -> None:
        """Raises also if the engine is there, but has not been heard for a while."""
        self.check_health(tells_why)
        if self.engine.is_silent:
            raise Unavailable("The engine does not answer")

    def check_ready(self, tells_why: bool = True) -> None:
        """Raises unless a request would be taken on now."""
        self.check_answers(tells_why)
        if self._is_draining:
            raise Unavailable("The server is shutting down")
        queue = self.telemetry.queue
        if queue.n_waiting + queue.n_running >= queue.n_slots + self.settings.server.queue_size:
            raise Unavailable("All slots are busy, and as many requests wait as --queue-size allows")

    @contextlib.asynccontextmanager
    async def limit_blobs(self, slot: int, way: str, busy: Busy) -> AsyncIterator[None]:
        """Wait until there is room in memory for one more state that is on this way from or to a slot."""
        limit = self._blob_limits.setdefault((slot, way), asyncio.Semaphore(_MAX_BLOBS))
        if busy is Busy.REFUSE and limit.locked():
            raise Conflict(f"{_MAX_BLOBS} states of slot {slot} are still on their way")
        async with limit:
            yield

    async def act(self, request: Request, action: SlotAction, fd: int = -1) -> SlotReport:
        """Have the engine do something with a slot, but not longer than the client stays to hear of it."""
        self.check_health()
        action = msgspec.structs.replace(action, tenant=record_of(request).client.tenant)
        return await run_for_client(self.engine.act(action, fd), request.receive)

    async def apply_server_changes(
        self, request: Request, body: GenerationFields, prepared: PreparedCompletion
    ) -> PreparedCompletion:
        """Carry out what a request changes for all, and take in what has changed since it was prepared."""
        await self._change_system_prompt(request, prepared)
        if "lora" in body.model_fields_set:
            return prepared
        params = msgspec.structs.replace(prepared.params, lora=self.adapters.config)
        return replace(prepared, params=params)

    async def _change_system_prompt(self, request: Request, prepared: PreparedCompletion) -> None:
        """From now on all prompts begin with what a request asks for, if it does."""
        change, params = prepared.change, prepared.params
        if change is None:
            return
        if params.constraint is not None:
            # Only the engine can tell whether a grammar is right; a request that is wrong changes nothing.
            prompt = list(change.tokens) or max(prepared.prompts, key=len)
            media = prepared.media.of(prompt) if prepared.media is not None else None
            await run_for_client(self.evaluate(prompt, params, media), request.receive)
        self.system_prompt = change

    async def evaluate(
        self, prompt: list[int], params: GenerationParams, media: MediaFile | None = None
    ) -> None:
        """Have the engine do everything but answer; what it refuses is raised."""
        task = new_task(prompt, msgspec.structs.replace(params, n_predict=0), ANONYMOUS, media)
        _, results = self.engine.submit(task, self.telemetry.follow(RequestRecord()), media)
        async for _ in results:
            pass

    async def extract_media(
        self, request: Request, mark: Callable[[Collector], T]
    ) -> tuple[T, RequestMedia | None, list[str]]:
        """What is left of a request's content once its media are marked, what these have become, and warnings
        of those that turned out not to be any."""
        unusable: dict[str, str] = {}
        while True:
            collector = Collector(self.info.media, unusable)
            n_bytes = int(request.headers.get("content-length") or LARGE_BYTES)
            is_short = n_bytes < _SHORT_BYTES
            marked = mark(collector) if is_short else await self.run_in_pool(n_bytes, mark, collector)
            if not collector.refs:
                return marked, None, collector.warnings
            taking = self._intake.take(collector, self.info, record_of(request).client.tenant)
            try:
                return marked, await run_for_client(taking, request.receive), collector.warnings
            except UnusableImages as error:
                unusable |= error.reasons

    def vocab_for(self, media: RequestMedia | None) -> Vocab:
        """The vocabulary, for texts in which media are marked."""
        return self.vocab if media is None else MediaVocab(self.vocab, media)

    async def read(self, request: Request, default: Any = None) -> Any:
        """The body as JSON; an empty one is the default, if there is any."""
        return await read_json(request, self.settings.server.max_body_mib << 20, default)

    async def take(self, model: type[FieldsT], request: Request) -> tuple[FieldsT, list[str]]:
        """A request for something to generate, and its warnings; nothing is read where there is no room."""
        self.check_queue(record_of(request).client)
        body, warnings = parse_request(model, await self.read(request))
        return body, [*warnings, *cap_warnings(body, self._defaults)]

    def check_queue(self, client: Client, n: int = 1, max_queue_ms: int = -1) -> None:
        """Whether so many orders of a client may wait now."""
        n_places = self.settings.server.queue_size
        check_queue(self.telemetry.queue, n_places, client, n, max_queue_ms)

    async def run_in_prompt_pool(self, function: Callable[..., T], *args: Any) -> T:
        """Run work on prompts, which are bounded by the context, off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._prompts, function, *args)

    async def run_in_pool(self, n_bytes: int, function: Callable[..., T], *args: Any) -> T:
        """Run work on so many bytes where it is in nobody's way."""
        run = self.run_in_prompt_pool if n_bytes < LARGE_BYTES else self.run_in_text_pool
        return await run(function, *args)

    async def run_in_text_pool(self, function: Callable[..., T], *args: Any) -> T:
        """Run work on texts of any length off the event loop, where no prompt has to wait for it."""
        return await asyncio.get_running_loop().run_in_executor(self._texts, function, *args)

    def _require(self, value: T | None) -> T:
        if value is None:
            raise still_loading(self.engine.loading)
        return value


def _media_source(server: ServerSettings) -> MediaSource:
    local = LocalMedia(server.media_path) if server.media_path else None
    if not server.allow_remote_media:
        return MediaSource(None, local)
    from corral.media.remote import RemoteMedia  # takes a while, and few servers need it

    return MediaSource(RemoteMedia(), local)


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def new_task(
    prompt: list[int], params: GenerationParams, client: Client, media: MediaFile | None = None
) -> Task:
    return Task(
        prompt=prompt,
        params=params,
        media=media.media[0] if media is not None else [],
        client=client.id,
        weight=client.weight,
        tenant=client.tenant,
    )


async def require_generation(request: Request) -> None:
    """For routes that are of no use on a server that only embeds."""
    service = service_of(request)
    if service.info.can_generate:
        return
    if service.settings.engine.only_embeds:
        raise NotSupported("This server does not support completions. Start it without `--embeddings`")
    raise NotSupported("This server does not support completions: its model makes vectors, no text")


def n_prompt_threads(server: ServerSettings) -> int:
    return max(_PROMPT_THREADS, min(server.n_threads_http, _MAX_PROMPT_THREADS))
