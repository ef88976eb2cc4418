"""Open what routes use of a server, which all of its models share."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from corral.api.answer_log import AnswerLogs
from corral.api.ollama.digest import FileDigest
from corral.api.openapi import describe
from corral.api.responses.response_store import ResponseStore
from corral.api.route_table import RouteTable
from corral.api.storage import Storage
from corral.core.settings import ServerSettings, Settings
from corral.features.batches.runner import BatchRunner
from corral.features.durable.begin import begin_work
from corral.generate.key_limits import KeyLimits
from corral.generate.model_directory import ModelDirectory
from corral.generate.pools import Pools, n_prompt_threads
from corral.generate.services import ServerServices
from corral.generate.shutdown import Shutdown
from corral.mcp.config import read_servers
from corral.mcp.sessions import McpSessions
from corral.mcp.web import WEB, WebTransport, web_server
from corral.media.source import open_remote
from corral.server.access import Keys
from corral.server.page import ui_settings
from corral.storage.front_registry import FrontRegistry
from corral.storage.journal import Journal
from corral.telemetry.hardware import HardwareMeter
from corral.telemetry.ledger import Ledger
from corral.telemetry.loop_meter import LoopMeter

if TYPE_CHECKING:
    from corral.features.shared.sharing import Sharing
    from corral.telemetry.prometheus import ServerMetrics


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
        streams=AnswerLogs(),
        storage=storage,
        responses=ResponseStore(storage.documents),
        journal=_open_journal(server, registry),
        begin_work=begin_work,
        batches=_open_batches(storage, models),
        sharing=sharing,
        mcp=_open_mcp(server),
        file_digest=FileDigest(),
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
    from corral.features.shared.sharing import Sharing

    return Sharing(server)


def _open_journal(server: ServerSettings, registry: FrontRegistry | None) -> Journal | None:
    if not server.journal:
        return None
    n_bytes, age_s = server.journal_max_mib << 20, server.journal_max_age_s
    front = registry.id if registry is not None else ""
    return Journal(Path(server.journal), n_bytes, age_s, server.journal_fsync, front)


def _open_mcp(server: ServerSettings) -> McpSessions | None:
    given = read_servers(server.mcp_servers_config, server.mcp_servers_json)
    remote = open_remote(server.allow_remote_media)
    if remote is not None and all(each.name != WEB for each in given):
        return McpSessions((*given, web_server()), lambda: WebTransport(remote))
    is_open = server.mcp_servers_config or server.mcp_servers_json or server.tools
    return McpSessions(given) if is_open else None


def _open_server_metrics(server: ServerSettings, loop: LoopMeter) -> ServerMetrics | None:
    if not server.metrics:
        return None
    from corral.telemetry.prometheus import ServerMetrics  # slow import

    return ServerMetrics(loop)
