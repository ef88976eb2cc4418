"""What every request passes before the application."""

from __future__ import annotations

from collections.abc import Awaitable

from starlette.types import ASGIApp, Receive, Scope, Send

from corral.core.settings import ServerSettings
from corral.server.cors import Cors, cors_policy
from corral.server.hosts import HostControl, allowed_names
from corral.server.listen import Reach
from corral.server.peers import guard_peers
from corral.server.prefix import under_prefix


class Edge:
    """ASGI application. `application`: set as soon as it is built; its routes know the formats of errors."""

    def __init__(self, app: ASGIApp, server: ServerSettings, reach: Reach) -> None:
        guarded = HostControl(app, allowed_names(server, reach))  # pages of other sites that rebind names
        prefixed = under_prefix(guarded, server.api_prefix)  # proxies that do not remove it
        shared = Cors(prefixed, cors_policy(server))  # pages of other sites, and preflights
        self._app = guard_peers(shared, server, reach)  # who may connect at all
        self.application: ASGIApp | None = None

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if self.application is not None:
            scope["app"] = self.application
        return self._app(scope, receive, send)
