"""What the application has for its routes; each takes the values that it uses."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from fastapi import Request

from corral.api.adapter import AdapterStore
from corral.api.admission import Admission
from corral.api.model import ModelFacts
from corral.api.pools import Pools
from corral.api.prepare import Defaults, PrepareContext
from corral.api.runner import Engine, Runner
from corral.api.storage import Storage
from corral.core.params import GenerationParams
from corral.core.settings import ServerSettings, Settings
from corral.media.intake import Intake
from corral.media.local import LocalMedia
from corral.media.source import MediaSource
from corral.telemetry.dispatcher import Telemetry


@dataclass(slots=True)
class AppState:
    settings: Settings
    engine: Engine
    telemetry: Telemetry
    model: ModelFacts
    adapters: AdapterStore
    storage: Storage
    pools: Pools
    runner: Runner
    admission: Admission
    defaults: Defaults
    prepare: PrepareContext
    started_at: int = field(default_factory=lambda: int(time.time()))


def state_of(request: Request) -> AppState:
    state: AppState = request.app.state.api
    return state


def create_state(
    settings: Settings, engine: Engine, telemetry: Telemetry, params: GenerationParams
) -> AppState:
    """Raises CorralError if a directory that the settings name is not as it should be."""
    model, pools, runner = (
        ModelFacts(settings, engine),
        Pools(settings.server.n_threads_http),
        Runner(engine, telemetry),
    )
    adapters = AdapterStore(engine, settings.server.lora_dir)
    defaults = Defaults(params, adapters)
    intake = Intake(engine, _media_source(settings.server))
    return AppState(
        settings=settings,
        engine=engine,
        telemetry=telemetry,
        model=model,
        adapters=adapters,
        storage=Storage(settings.server),
        pools=pools,
        runner=runner,
        admission=Admission(engine, model, telemetry.queue, settings.server.queue_size),
        defaults=defaults,
        prepare=PrepareContext(model, defaults, adapters, intake, pools, runner),
    )


def _media_source(server: ServerSettings) -> MediaSource:
    local = LocalMedia(server.media_path) if server.media_path else None
    if not server.allow_remote_media:
        return MediaSource(None, local)
    from corral.media.remote import RemoteMedia  # takes a while, and few servers need it

    return MediaSource(RemoteMedia(), local)
