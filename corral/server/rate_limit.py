"""Limits of API keys: tokens per minute and day, and requests at a time; what exceeds them is a 429."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Awaitable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corral.api.error import ErrorAnswer
from corral.api.trust import is_internal
from corral.core.client import Client
from corral.core.errors import TooManyRequests
from corral.telemetry.ledger import DAY_S, Ledger
from corral.telemetry.scope import record_in

_PATHS = frozenset(
    [
        "/v1/chat/completions",
        "/chat/completions",
        "/v1/completions",
        "/completion",
        "/completions",
        "/infill",
        "/v1/responses",
        "/responses",
        "/v1/responses/compact",
        "/responses/compact",
        "/v1/audio/transcriptions",
        "/audio/transcriptions",
        "/v1/messages",
        "/v1/receipts/replay",
        "/api/chat",
        "/api/generate",
        "/api/embed",
        "/api/embeddings",
        "/v1/embeddings",
        "/embedding",
        "/embeddings",
        "/rerank",
        "/reranking",
        "/v1/rerank",
        "/v1/reranking",
        "/classify",
        "/v1/classify",
    ]
)


class RateLimit:
    """ASGI middleware after access control. Mutable: the requests at work, by client."""

    def __init__(self, app: ASGIApp, ledger: Ledger) -> None:
        self._app = app
        self._ledger = ledger
        self._running: Counter[str] = Counter()

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        client = record_in(scope).client if scope["type"] == "http" and scope["path"] in _PATHS else None
        if client is None or not client.limits or scope["method"] != "POST":
            return self._app(scope, receive, send)
        headers, error = self._check(client, is_internal(scope))
        if error is not None:
            if not is_internal(scope):
                self._ledger.on_refused(client)
            return ErrorAnswer(error, headers)(scope, receive, send)
        return self._run(client, headers, scope, receive, send)

    async def _run(
        self,
        client: Client,
        headers: list[tuple[bytes, bytes]],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        def send_with_limits(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *headers]
            return send(message)

        n = not is_internal(scope)
        self._running[client.id] += n
        try:
            await self._app(scope, receive, send_with_limits)
        finally:
            self._running[client.id] -= n

    def _check(
        self, client: Client, is_batch: bool
    ) -> tuple[list[tuple[bytes, bytes]], TooManyRequests | None]:
        """Return what a response says of the limits, and why the request is refused, if it is."""
        limits, error = client.limits, None
        headers: list[tuple[str, object]] = []
        if limits.concurrent and not is_batch:
            left = limits.concurrent - self._running[client.id]
            headers += _headers("requests", limits.concurrent, max(0, left - 1), 1)
            if left <= 0:
                error = _refusal(f"{limits.concurrent} requests at a time", 1)
        budgets = self._budgets(client)
        for name, limit, used, reset_s in budgets:
            if used >= limit:
                error = _refusal(f"{limit} tokens per {name}", reset_s)
        if budgets:
            _, limit, used, reset_s = min(budgets, key=lambda budget: budget[1] - budget[2])
            headers += _headers("tokens", limit, max(0, limit - used), reset_s)
        return [(name.encode(), str(value).encode()) for name, value in headers], error

    def _budgets(self, client: Client) -> list[tuple[str, int, int, int]]:
        """Return the name of each budget, its tokens, those used, and the seconds until it is refilled."""
        limits, budgets = client.limits, []
        if limits.tokens_per_minute:
            used, reset_s = self._ledger.used_in_minute(client)
            budgets.append(("minute", limits.tokens_per_minute, used, max(1, math.ceil(reset_s))))
        if limits.tokens_per_day:
            reset = DAY_S - int(time.time()) % DAY_S
            budgets.append(("day", limits.tokens_per_day, self._ledger.today(client).tokens, reset))
        return budgets


def _headers(kind: str, limit: int, left: int, reset_s: int) -> list[tuple[str, object]]:
    values = {"limit": limit, "remaining": left, "reset": f"{reset_s}s"}
    return [(f"x-ratelimit-{name}-{kind}", value) for name, value in values.items()]


def _refusal(limit: str, retry_after_s: int) -> TooManyRequests:
    return TooManyRequests(f"the limit of this API key is reached: {limit}", retry_after_s=retry_after_s)
