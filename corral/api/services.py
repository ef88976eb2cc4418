"""What routes and the server's own work use, as one value; the composition root opens it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corral.api.adapter import AdapterStore
    from corral.api.admission import Admission
    from corral.api.answer_log import AnswerLogs
    from corral.api.batch.runner import BatchRunner
    from corral.api.dialects.ollama.digest import FileDigest
    from corral.api.dialects.responses.archive import Archive
    from corral.api.durable import DurableWork
    from corral.api.engine import Engine, Runner
    from corral.api.incoming import Incoming
    from corral.api.key_limits import KeyLimits
    from corral.api.live_answers import LiveAnswers
    from corral.api.mcp.sessions import McpSessions
    from corral.api.model import ModelFacts
    from corral.api.model_directory import ModelDirectory
    from corral.api.pools import Pools
    from corral.api.prepare import Defaults, PrepareContext
    from corral.api.schema.parse import RequestModel
    from corral.api.sharing import Sharing
    from corral.api.shutdown import Shutdown
    from corral.api.storage import StateStorage, Storage
    from corral.core.settings import Settings
    from corral.media.source import MediaSource
    from corral.storage.journal import Journal
    from corral.telemetry.dispatcher import Telemetry
    from corral.telemetry.hardware import HardwareMeter
    from corral.telemetry.ledger import Ledger
    from corral.telemetry.live import Monitor
    from corral.telemetry.loop_meter import LoopMeter
    from corral.telemetry.prometheus import Metrics, ServerMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerServices:
    """Of a server: what all of its models share. A request that is for no model gets these.

    `has_keys`: whether requests need a key. `batched_paths`: those that lines of a batch may be for.
    `openapi`: the description of all routes. `begin_work` makes a request durable if it is to be, given its
    body, parsed and as it was sent.
    """

    settings: Settings
    started_at: int
    models: ModelDirectory
    shutdown: Shutdown
    has_keys: Callable[[], bool]
    batched_paths: Callable[[], list[str]]
    openapi: Callable[[], dict[str, Any]]
    ui_settings: Mapping[str, Any]
    pools: Pools
    ledger: Ledger
    loop: LoopMeter
    hardware: HardwareMeter
    server_metrics: ServerMetrics | None
    limits: KeyLimits
    streams: AnswerLogs
    storage: Storage
    responses: Archive
    journal: Journal | None
    begin_work: Callable[[Incoming, Services, RequestModel, bytearray], DurableWork | None]
    batches: BatchRunner | None
    sharing: Sharing | None
    mcp: McpSessions | None
    file_digest: FileDigest


@dataclass(frozen=True, slots=True, kw_only=True)
class Services(ServerServices):
    """Of one model, with those of its server. `settings` and `pools` are the model's own.

    `wake_engine`: begin to load an engine that sleeps, for a request that will soon need it; one of many
    models is loaded only by requests that need it now.
    """

    engine: Engine
    wake_engine: Callable[[], None]
    telemetry: Telemetry
    model: ModelFacts
    adapters: AdapterStore
    defaults: Defaults
    prepare: PrepareContext
    runner: Runner
    admission: Admission
    live: LiveAnswers
    states: StateStorage
    media_source: MediaSource
    monitor: Monitor
    metrics: Metrics | None
