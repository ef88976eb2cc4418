"""Begin the diagnosis of a request that asks for one, before it runs."""

from __future__ import annotations

from starlette.requests import Request

from corral.api.cache_diagnosis import Diagnosis, take_fingerprint
from corral.api.pools import body_bytes
from corral.api.prepare import PreparedCompletion
from corral.api.schema.chat import ChatRequest
from corral.api.state import state_of
from corral.telemetry.scope import record_of


async def begin_diagnosis(
    request: Request, id: str, previous_id: str | None, body: ChatRequest, prepared: PreparedCompletion
) -> Diagnosis | None:
    """Remember the request whose answer has this id, and compare it with the one it names."""
    state, (task, _) = state_of(request), prepared.tasks[0]
    fingerprint = await state.pools.run_sized(body_bytes(request), take_fingerprint, body, task)
    return state.prompt_history.open(record_of(request).client.tenant, id, previous_id, fingerprint)
