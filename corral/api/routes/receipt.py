"""`POST /v1/receipts/replay`: evaluate again what a receipt of this server says."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from corral.api.body import JsonResponse, parse_body
from corral.api.choice import n_common
from corral.api.disconnect import run_for_client
from corral.api.openapi import answers, body_of, shape
from corral.api.receipt import read_task
from corral.api.respond import check_admission
from corral.api.router import Router
from corral.api.schema.receipt import ReceiptRequest
from corral.api.state import state_of
from corral.core.build import BUILD
from corral.core.errors import InvalidRequest, NotSupported
from corral.core.result import Tokens
from corral.link.stream import TaskStream
from corral.telemetry.scope import record_of

router = Router()

_REPLAY = shape(
    object="string",
    identical="boolean",
    n_tokens="integer",
    differs_at="integer|null",
    expected="integer|null",
    got="integer|null",
    same_build="boolean",
    same_model="boolean",
)


@router.post(
    "/v1/receipts/replay", openapi_extra=body_of(ReceiptRequest), responses=answers(_REPLAY, 400, 501)
)
async def replay(request: Request) -> Response:
    """Evaluate the answer of a receipt again, and compare the tokens."""
    state, client = state_of(request), record_of(request).client
    if state.receipt_key is None:
        raise NotSupported("the server has no key for receipts (--receipt-key)")
    check_admission(request)
    receipt = (await parse_body(request, ReceiptRequest)).receipt
    if not await state.pools.run_text(state.receipt_key.accepts, receipt):
        raise InvalidRequest("is not signed by this server", field="receipt")
    task = read_task(receipt, state.defaults.system_prompt.tokens, state.model.info.n_ctx, client)
    digest = await state.file_digest.wait(state.model.path)
    _, results = state.runner.submit(task, record_of(request))
    try:
        tokens = await run_for_client(_collect(results), request.receive)
    finally:
        results.close()
    is_same = digest == receipt["model_sha256"]
    return JsonResponse({**_compare(receipt, tokens), "same_model": is_same})


async def _collect(results: TaskStream) -> list[int]:
    return [token async for result in results if isinstance(result, Tokens) for token in result.tokens]


def _compare(receipt: dict[str, Any], tokens: list[int]) -> dict[str, Any]:
    expected = receipt["tokens"]
    at, is_same = n_common(expected, tokens), expected == tokens
    return {
        "object": "receipt.replay",
        "identical": is_same,
        "n_tokens": len(tokens),
        "differs_at": None if is_same else at,
        "expected": expected[at] if at < len(expected) else None,
        "got": tokens[at] if at < len(tokens) else None,
        "same_build": receipt["build"] == BUILD,
    }
