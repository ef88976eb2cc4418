"""Open what routes use: storage, journal, pools, and all else that a server has beside its engine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from corral.api.adapter import AdapterStore
from corral.api.admission import Admission
from corral.api.batch.runner import BatchRunner
from corral.api.dialects.ollama.digest import FileDigest
from corral.api.dialects.responses.archive import Archive
from corral.api.engine import Engine, Runner
from corral.api.key_limits import KeyLimits
from corral.api.live_answers import LiveAnswers
from corral.api.mcp.config import read_servers
from corral.api.mcp.sessions import McpSessions
from corral.api.mcp.web import WEB, WebTransport, web_server
from corral.api.model import ModelFacts
from corral.api.pools import Pools, n_prompt_threads
from corral.api.prepare import Defaults, PrepareContext
from corral.api.services import Services
from corral.api.storage import Storage
from corral.api.stream_session import StreamSessions
from corral.core.params import GenerationParams
from corral.core.settings import ServerSettings, Settings
from corral.media.intake import Intake
from corral.media.local import LocalMedia
from corral.media.source import MediaSource
from corral.storage.front_registry import FrontRegistry
from corral.storage.journal import Journal
from corral.telemetry.dispatcher import Telemetry

if TYPE_CHECKING:
    from corral.api.sharing import Sharing
    from corral.media.remote import RemoteMedia


def open_services(
    settings: Settings,
    engine: Engine,
    telemetry: Telemetry,
    params: GenerationParams,
    shared: Services | None = None,
) -> Services:
    """Raises CorralError if a directory in the settings cannot be used. `shared`: have the chats and
    responses of all models."""
    server = settings.server
    sharing = shared.sharing if shared is not None else _open_sharing(server)
    registry = sharing.registry if sharing is not None else None
    storage = Storage(server, shared.storage if shared is not None else None, registry)
    journal = shared.journal if shared is not None else _open_journal(server, registry)
    remote = _open_remote(server)
    media_source = MediaSource(remote, LocalMedia(server.media_path) if server.media_path else None)
    limits = shared.limits if shared is not None else KeyLimits(telemetry.ledger)
    if server.ledger and shared is None:
        telemetry.ledger.open(Path(server.ledger), is_shared=registry is not None)
    model = ModelFacts(settings, engine)
    admission = Admission(engine, model, telemetry.queue, server.queue_size)
    adapters = AdapterStore(engine, server.lora_dir)
    defaults = Defaults(params, adapters, server.max_predict)
    pools, runner = Pools(n_prompt_threads(server)), Runner(engine, telemetry, limits)
    prepare = PrepareContext(
        model,
        defaults,
        adapters,
        Intake(engine, media_source),
        pools,
        runner,
        server.max_response_mib << 20,
        settings.engine.n_batch,
        server.spm_infill,
    )
    return Services(
        settings=settings,
        engine=engine,
        telemetry=telemetry,
        started_at=int(time.time()),
        model=model,
        adapters=adapters,
        defaults=defaults,
        prepare=prepare,
        pools=pools,
        runner=runner,
        limits=limits,
        admission=admission,
        live=LiveAnswers(engine, runner),
        streams=shared.streams if shared is not None else StreamSessions(),
        storage=storage,
        responses=shared.responses if shared is not None else Archive(storage.documents),
        journal=journal,
        batches=_open_batches(storage, admission, telemetry),
        sharing=sharing,
        mcp=shared.mcp if shared is not None else _open_mcp(server, remote),
        media_source=media_source,
        file_digest=FileDigest(),
        is_one_of_many=shared is not None,
    )


def _open_batches(storage: Storage, admission: Admission, telemetry: Telemetry) -> BatchRunner | None:
    if storage.batches is None:
        return None
    return BatchRunner(storage.batches, lambda: admission.is_open, lambda: telemetry.queue.n_slots)


def _open_sharing(server: ServerSettings) -> Sharing | None:
    if not server.shared_storage:
        return None
    from corral.api.sharing import Sharing  # httpx takes long to import

    return Sharing(server)


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
