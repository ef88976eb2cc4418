"""Open what routes use of one model, beside its engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from corral.api.storage import StateStorage
from corral.core.settings import ServerSettings, Settings
from corral.generate.adapter import AdapterStore
from corral.generate.admission import Admission
from corral.generate.engine import Engine, Runner
from corral.generate.live_answers import LiveAnswers
from corral.generate.model import ModelFacts
from corral.generate.pools import Pools, n_prompt_threads
from corral.generate.prepare import Defaults, PrepareContext
from corral.generate.services import ServerServices, Services
from corral.media.intake import Intake
from corral.media.local import LocalMedia
from corral.media.source import MediaSource, open_remote
from corral.models.defaults import default_params
from corral.telemetry.dispatcher import Telemetry
from corral.telemetry.live import Monitor
from corral.telemetry.sources import ServerSource

if TYPE_CHECKING:
    from corral.telemetry.prometheus import Metrics


def open_model_services(
    of_server: ServerServices,
    settings: Settings,
    engine: Engine,
    telemetry: Telemetry,
    wake_engine: Callable[[], None],
) -> Services:
    """Raises CorralError if the settings of the model are invalid."""
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


def _open_media(server: ServerSettings) -> MediaSource:
    local = LocalMedia(server.media_path) if server.media_path else None
    return MediaSource(open_remote(server.allow_remote_media), local)


def _open_metrics(server: ServerSettings, source: ServerSource, name: str) -> Metrics | None:
    if not server.metrics:
        return None
    from corral.telemetry.prometheus import Metrics

    return Metrics(source, name)
