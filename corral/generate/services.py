"""What routes and the server's own work use, as one value; the composition root opens it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corral.api.answer_log import AnswerLogs
    from corral.api.incoming import Incoming
    from corral.api.ollama.digest import FileDigest
    from corral.api.responses.response_store import ResponseStore
    from corral.api.storage import StateStorage, Storage
    from corral.core.settings import Settings
    from corral.features.batches.runner import BatchRunner
    from corral.features.durable.work import DurableWork
    from corral.features.shared.sharing import Sharing
    from corral.generate.adapter import AdapterStore
    from corral.generate.admission import Admission
    from corral.generate.engine import Engine, Runner
    from corral.generate.key_limits import KeyLimits
    from corral.generate.live_answers import LiveAnswers
    from corral.generate.model import ModelFacts
    from corral.generate.model_directory import ModelDirectory
    from corral.generate.pools import Pools
    from corral.generate.prepare import Defaults, PrepareContext
    from corral.generate.shutdown import Shutdown
    from corral.mcp.sessions import McpSessions
    from corral.media.source import MediaSource
    from corral.schema.parse import RequestModel
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
    responses: ResponseStore
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
