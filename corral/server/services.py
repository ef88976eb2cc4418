"""Open what routes use: storage, journal, pools, all that a server or a model has beside an engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from corral.api.model_directory import ModelDirectory
from corral.api.openapi import describe
from corral.api.pools import Pools, n_prompt_threads
from corral.api.prepare import Defaults, PrepareContext
from corral.api.route_table import RouteTable
from corral.api.services import ServerServices, Services
from corral.api.shutdown import Shutdown
from corral.api.storage import StateStorage, Storage
from corral.api.stream_session import StreamSessions
from corral.core.settings import ServerSettings, Settings
from corral.media.intake import Intake
from corral.media.local import LocalMedia
from corral.media.source import MediaSource
from corral.server.access import Keys
from corral.server.defaults import default_params
from corral.server.page import ui_settings
from corral.storage.front_registry import FrontRegistry
from corral.storage.journal import Journal
from corral.telemetry.dispatcher import Telemetry
from corral.telemetry.hardware import HardwareMeter
from corral.telemetry.ledger import Ledger
from corral.telemetry.live import Monitor
from corral.telemetry.loop_meter import LoopMeter
from corral.telemetry.sources import ServerSource

if TYPE_CHECKING:
    from corral.api.sharing import Sharing
    from corral.media.remote import RemoteMedia
    from corral.telemetry.prometheus import Metrics, ServerMetrics


def open_services(
    settings: Settings,
    models: ModelDirectory,
    keys: Keys,
    table: RouteTable,
    ledger: Ledger,
    loop: LoopMeter,
) -> ServerServices:
    """Open what all models share. Raises CorralError if a file or directory in the settings is unusable."""
    server = settings.server
    sharing = _open_sharing(server)
    registry = sharing.registry if sharing is not None else None
    storage = Storage(server, registry)
    if server.ledger:
        ledger.open(Path(server.ledger), is_shared=registry is not None)
    return ServerServices(
        settings=settings,
        started_at=int(time.time()),
        models=models,
        shutdown=Shutdown(),
        has_keys=lambda: bool(keys),
        batched_paths=table.batched,
        openapi=cache(lambda: describe(table, bool(keys))),
        ui_settings=ui_settings(server),
        pools=Pools(n_prompt_threads(server)),
        ledger=ledger,
        loop=loop,
        hardware=HardwareMeter(),
        server_metrics=_open_server_metrics(server, loop),
        limits=KeyLimits(ledger),
        streams=StreamSessions(),
        storage=storage,
        responses=Archive(storage.documents),
        journal=_open_journal(server, registry),
        batches=_open_batches(storage, models),
        sharing=sharing,
        mcp=_open_mcp(server),
        file_digest=FileDigest(),
    )


def open_model_services(
    of_server: ServerServices,
    settings: Settings,
    engine: Engine,
    telemetry: Telemetry,
    wake_engine: Callable[[], None],
) -> Services:
    """Open those of a model. Raises CorralError if its settings are invalid."""
    server = settings.server
    media_source = _open_media(server)
    model = ModelFacts(settings, engine)
    admission = Admission(engine, model, telemetry.queue, server.queue_size, of_server.shutdown)
    adapters = AdapterStore(engine, server.lora_dir)
    defaults = Defaults(default_params(settings), adapters, server.max_predict)
    pools, runner = Pools(n_prompt_threads(server)), Runner(engine, telemetry, of_server.limits)
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
    states = StateStorage(server)
    source = ServerSource(
        settings,
        telemetry,
        engine,
        states.sessions,
        adapters,
        lambda tokens: model.vocab.detokenize(tokens),
    )
    shared: dict[str, Any] = {each.name: getattr(of_server, each.name) for each in fields(of_server)}
    own: dict[str, Any] = {"settings": settings, "pools": pools}
    return Services(
        **{**shared, **own},
        engine=engine,
        wake_engine=wake_engine,
        telemetry=telemetry,
        model=model,
        adapters=adapters,
        defaults=defaults,
        prepare=prepare,
        runner=runner,
        admission=admission,
        live=LiveAnswers(engine, runner),
        states=states,
        media_source=media_source,
        monitor=Monitor(source, model.name),
        metrics=_open_metrics(of_server.settings.server, source, model.name),
    )


def _open_batches(storage: Storage, models: ModelDirectory) -> BatchRunner | None:
    if storage.batches is None:
        return None
    return BatchRunner(
        storage.batches, lambda: models.is_ready, lambda: models.n_at_once, has_many_models=models.are_named
    )


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


def _open_mcp(server: ServerSettings) -> McpSessions | None:
    given = read_servers(server.mcp_servers_config, server.mcp_servers_json)
    remote = _open_remote(server)
    if remote is not None and all(each.name != WEB for each in given):
        return McpSessions((*given, web_server()), lambda: WebTransport(remote))
    is_open = server.mcp_servers_config or server.mcp_servers_json or server.tools
    return McpSessions(given) if is_open else None


def _open_media(server: ServerSettings) -> MediaSource:
    return MediaSource(_open_remote(server), LocalMedia(server.media_path) if server.media_path else None)


def _open_remote(server: ServerSettings) -> RemoteMedia | None:
    if not server.allow_remote_media:
        return None
    from corral.media.remote import RemoteMedia  # takes a while, and few servers need it

    return RemoteMedia()


def _open_server_metrics(server: ServerSettings, loop: LoopMeter) -> ServerMetrics | None:
    if not server.metrics:
        return None
    from corral.telemetry.prometheus import ServerMetrics  # slow import

    return ServerMetrics(loop)


def _open_metrics(server: ServerSettings, source: ServerSource, name: str) -> Metrics | None:
    if not server.metrics:
        return None
    from corral.telemetry.prometheus import Metrics

    return Metrics(source, name)
