"""What routes and the server's own work use, as one value; the composition root opens it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corral.api.adapter import AdapterStore
    from corral.api.admission import Admission
    from corral.api.batch.runner import BatchRunner
    from corral.api.dialects.ollama.digest import FileDigest
    from corral.api.dialects.responses.archive import Archive
    from corral.api.engine import Engine, Runner
    from corral.api.key_limits import KeyLimits
    from corral.api.live_answers import LiveAnswers
    from corral.api.mcp.sessions import McpSessions
    from corral.api.model import ModelFacts
    from corral.api.pools import Pools
    from corral.api.prepare import Defaults, PrepareContext
    from corral.api.sharing import Sharing
    from corral.api.storage import Storage
    from corral.api.stream_session import StreamSessions
    from corral.core.settings import Settings
    from corral.media.source import MediaSource
    from corral.storage.journal import Journal
    from corral.telemetry.dispatcher import Telemetry


@dataclass(frozen=True, slots=True)
class Services:
    """Of one model. Where there are many, they share what has the chats, streams and responses of all."""

    settings: Settings
    engine: Engine
    telemetry: Telemetry
    started_at: int
    model: ModelFacts
    adapters: AdapterStore
    defaults: Defaults
    prepare: PrepareContext
    pools: Pools
    runner: Runner
    limits: KeyLimits
    admission: Admission
    live: LiveAnswers
    streams: StreamSessions
    storage: Storage
    responses: Archive
    journal: Journal | None
    batches: BatchRunner | None
    sharing: Sharing | None
    mcp: McpSessions | None
    media_source: MediaSource
    file_digest: FileDigest
    is_one_of_many: bool

    def wake_engine(self) -> None:
        """Begin to load an engine that sleeps; one of many models is loaded only by requests that need it."""
        if not self.is_one_of_many:
            self.engine.wake()
