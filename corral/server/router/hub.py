"""The hub: the application around those of the models. It has the keys, the pages, the chats and responses.

It is built like the application of one model, but without an engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

from starlette.applications import Starlette
from starlette.types import ASGIApp

from corral.api.batch.runner import BatchRunner
from corral.api.engine import Engine
from corral.core.errors import Unavailable
from corral.core.result import Loading, ModelInfo
from corral.core.settings import Settings
from corral.link.lifecycle import EngineState
from corral.server.app import create_app
from corral.server.defaults import default_params
from corral.server.internal import Lend
from corral.server.router.routes import router
from corral.server.services import open_services
from corral.telemetry.dispatcher import Telemetry


class NoModelNamed(Unavailable, AttributeError):
    """Also an AttributeError, so that `hasattr` and `isinstance` find out what `NoEngine` has not."""


class NoEngine:
    """The part of an `Engine` that the routes of the hub may read."""

    state = EngineState.READY
    info: ModelInfo | None = None
    loading = Loading()
    n_restarts = 0
    is_silent = False
    down_because = ""

    def __getattr__(self, name: str) -> object:
        raise NoModelNamed("the request names no model")


def create_hub(
    settings: Settings, dispatch: Callable[[ASGIApp], ASGIApp], lend: Lend, n_parallel: int = 1
) -> Starlette:
    """Raises CorralError if a file or directory in the settings is unusable. `n_parallel`: lines of batches
    that run at once."""
    services = open_services(settings, cast(Engine, NoEngine()), Telemetry(), default_params(settings))
    if services.storage.batches is not None:
        admission = services.admission
        batches = BatchRunner(
            services.storage.batches,
            lambda: not admission.is_draining,
            lambda: n_parallel,
            has_many_models=True,
        )
        services = replace(services, batches=batches)
    return create_app(services, first=router.routes, dispatch=dispatch, lend=lend)
