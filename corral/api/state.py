"""The application's state for its routes; each takes the values that it uses."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.requests import Request

from corral.api.adapter import AdapterStore
from corral.api.admission import Admission
from corral.api.batch.runner import BatchRunner
from corral.api.dialects.ollama.digest import FileDigest
from corral.api.dialects.responses.archive import Archive
from corral.api.dialects.responses.shared_archive import SharedArchive
from corral.api.engine import Engine, Runner
from corral.api.key_limits import KeyLimits
from corral.api.live_answers import LiveAnswers
from corral.api.mcp.config import read_servers
from corral.api.mcp.sessions import McpSessions
from corral.api.mcp.web import WEB, WebTransport, web_server
from corral.api.model import ModelFacts
from corral.api.pools import Pools, n_prompt_threads
from corral.api.prepare import Defaults, PrepareContext
from corral.api.storage import Storage
from corral.api.stream_session import StreamSessions
from corral.core.params import GenerationParams
from corral.core.settings import ServerSettings, Settings
from corral.media.intake import Intake
from corral.media.local import LocalMedia
from corral.media.source import MediaSource
from corral.storage.document_store import DocumentStore
from corral.storage.front_registry import FrontRegistry
from corral.storage.journal import Journal
from corral.storage.shared_documents import SharedDocumentStore
from corral.telemetry.dispatcher import Telemetry

if TYPE_CHECKING:
    from corral.api.sharing import Sharing
    from corral.media.remote import RemoteMedia


class AppState:
    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        telemetry: Telemetry,
        params: GenerationParams,
        shared: AppState | None = None,
    ) -> None:
        """Raises CorralError if a directory in the settings cannot be used. `shared`: the state that has the
        chats and responses of all models."""
        server = settings.server
        self.settings = settings
        self.engine = engine
        self._is_one_of_many = shared is not None
        self.telemetry = telemetry
        self.started_at = int(time.time())
        self.model = ModelFacts(settings, engine)
        self.adapters = AdapterStore(engine, server.lora_dir)
        self.defaults = Defaults(params, self.adapters, server.max_predict)
        self.sharing: Sharing | None = shared.sharing if shared is not None else _open_sharing(server)
        registry = self.sharing.registry if self.sharing is not None else None
        self.storage: Storage = Storage(server, shared.storage if shared is not None else None, registry)
        self.journal: Journal | None = (
            shared.journal if shared is not None else _open_journal(server, registry)
        )
        self.streams: StreamSessions = shared.streams if shared is not None else StreamSessions()
        self.responses: Archive = (
            shared.responses if shared is not None else _open_archive(self.storage.documents)
        )
        remote = _open_remote(server)
        self.mcp: McpSessions | None = shared.mcp if shared is not None else _open_mcp(server, remote)
        self.file_digest = FileDigest()
        self.pools = Pools(n_prompt_threads(server))
        self.limits: KeyLimits = shared.limits if shared is not None else KeyLimits(telemetry.ledger)
        self.runner = Runner(engine, telemetry, self.limits)
        self.live = LiveAnswers(engine, self.runner)
        if server.ledger and shared is None:
            telemetry.ledger.open(Path(server.ledger), is_shared=registry is not None)
        self.admission = Admission(engine, self.model, telemetry.queue, server.queue_size)
        batches = self.storage.batches
        is_open, n_slots = lambda: self.admission.is_open, lambda: telemetry.queue.n_slots
        self.batches = BatchRunner(batches, is_open, n_slots) if batches is not None else None
        local = LocalMedia(server.media_path) if server.media_path else None
        self.media_source = MediaSource(remote, local)
        intake = Intake(engine, self.media_source)
        self.prepare = PrepareContext(
            self.model,
            self.defaults,
            self.adapters,
            intake,
            self.pools,
            self.runner,
            server.max_response_mib << 20,
            settings.engine.n_batch,
            server.spm_infill,
        )

    def wake_engine(self) -> None:
        """Begin to load an engine that sleeps; one of many models is loaded only by requests that need it."""
        if not self._is_one_of_many:
            self.engine.wake()


def state_of(request: Request) -> AppState:
    state: AppState = request.app.state.api
    return state


def _open_sharing(server: ServerSettings) -> Sharing | None:
    if not server.shared_storage:
        return None
    from corral.api.sharing import Sharing  # httpx takes long to import

    return Sharing(server)


def _open_archive(documents: DocumentStore) -> Archive:
    if isinstance(documents, SharedDocumentStore):
        return SharedArchive(documents)
    return Archive(documents)


def _open_journal(server: ServerSettings, registry: FrontRegistry | None) -> Journal | None:
    if not server.journal:
        return None
    n_bytes, age_s = server.journal_max_mib << 20, server.journal_max_age_s
    front = registry.id if registry is not None else ""
    return Journal(Path(server.journal), n_bytes, age_s, server.journal_fsync, front)


def _open_mcp(server: ServerSettings, remote: RemoteMedia | None) -> McpSessions | None:
    given = read_servers(server.mcp_servers_config, server.mcp_servers_json)
    if remote is not None and all(each.name != WEB for each in given):
        return McpSessions((*given, web_server()), lambda: WebTransport(remote))
    is_open = server.mcp_servers_config or server.mcp_servers_json or server.tools
    return McpSessions(given) if is_open else None


def _open_remote(server: ServerSettings) -> RemoteMedia | None:
    if not server.allow_remote_media:
        return None
    from corral.media.remote import RemoteMedia  # takes a while, and few servers need it

    return RemoteMedia()
