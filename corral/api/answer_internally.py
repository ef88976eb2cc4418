"""Answer what the server itself asks for its clients: routes are called, without HTTP."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from starlette.types import Send

from corral.api.error_handlers import error_response
from corral.api.internal import Ask
from corral.api.policy import ModelUse
from corral.api.router import ApiRoute
from corral.api.streamed_response import send_all
from corral.generate.services import ServerServices

Lend = Callable[[Ask, ModelUse | None], AbstractAsyncContextManager[ServerServices]]


async def answer_internally(route: ApiRoute, ask: Ask, lend: Lend, send: Send) -> None:
    """Have a route answer; errors are answers in the format of its API. `lend`: has the services of its model
    until the answer is complete."""
    async with contextlib.AsyncExitStack() as held:
        try:
            services = await held.enter_async_context(lend(ask, route.policy.model))
            response = await route.answer(ask.incoming, services)
        except Exception as error:
            response = error_response(error, ask.path, route.policy.errors, ask.caller.record.id)
        await send_all(response, send)
