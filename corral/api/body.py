"""Read request bodies and write answers as JSON, whatever content type the client declares.

A long body is parsed and checked in a thread, a piece at a time, so that other requests are served meanwhile.
"""

from __future__ import annotations

import asyncio
from codecs import BOM_UTF8
from collections.abc import AsyncIterable, Callable, Mapping
from typing import Any, TypeVar

import orjson
from starlette.responses import Response

from corral.api.json_encode import encode_json
from corral.api.json_pieces import NotJson, parse_pieces
from corral.core.errors import InvalidRequest, TooLarge
from corral.generate.services import ServerServices
from corral.schema.parse import RequestT, build, check_fields, is_built, parse_request
from corral.telemetry.record import RequestRecord
from corral.text.json_depth import MAX_FIELDS, SLICE_BYTES, JsonGuard

T = TypeVar("T")
Headers = Mapping[str, str]  # names in small letters

_NAMED_BYTES = 2 * SLICE_BYTES  # of a body with too many fields, in which the first of them are looked for


class JsonResponse(Response):
    media_type = "application/json; charset=utf-8"

    def render(self, content: Any) -> bytes:
        return encode_json(content)


async def read_body(
    headers: Headers,
    parts: AsyncIterable[bytes],
    record: RequestRecord,
    services: ServerServices,
    model: type[RequestT],
    default: Any = None,
) -> tuple[RequestT, bytearray]:
    """Return the body, parsed and as it was sent. `default`: stands for an empty one."""
    body, guard = await _receive(headers, parts, services, model)
    if not is_built(model):
        await asyncio.to_thread(build, model)
    if default is not None and not body:
        return parse_request(model, default), body
    if len(body) < SLICE_BYTES:
        return parse_request(model, _load(body)), body
    return await _run_long(record, services, _parse_long, model, body, guard), body


async def read_json(
    headers: Headers, parts: AsyncIterable[bytes], record: RequestRecord, services: ServerServices
) -> Any:
    """Return the body, parsed as JSON."""
    body, guard = await _receive(headers, parts, services)
    if len(body) < SLICE_BYTES:
        return _load(body)
    return await _run_long(record, services, _load_long, body, guard)


async def _run_long(
    record: RequestRecord, services: ServerServices, function: Callable[..., T], *args: Any
) -> T:
    record.is_large = True
    return await services.pools.run_text(record.client, function, *args)


async def _receive(
    headers: Headers,
    parts: AsyncIterable[bytes],
    services: ServerServices,
    model: type[RequestT] | None = None,
) -> tuple[bytearray, JsonGuard]:
    """Return the body. Refuse it while it is received if it exceeds `--max-body-mb`, or has more fields than
    a model may have."""
    max_bytes = services.settings.server.max_body_mib << 20
    _check_head(headers, max_bytes)
    body, guard = bytearray(), JsonGuard(MAX_FIELDS if model is not None else None)
    async for part in parts:
        body += part
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
        if body.startswith(BOM_UTF8):  # ignored by llama-server, too
            body[: len(BOM_UTF8)] = b" " * len(BOM_UTF8)
        guard.feed(part)
        if model is not None and guard.has_many_fields:
            check_fields(model, _first_fields(body, guard), is_whole=False)
    guard.finish(is_long=len(body) >= SLICE_BYTES)
    if model is not None and guard.has_many_fields:
        check_fields(model, _first_fields(body, guard), is_whole=False)
    return body, guard


def _check_head(headers: Headers, max_bytes: int) -> None:
    """Refuse a body by its header, so that the client need not send it."""
    coding = headers.get("content-encoding", "identity").lower()
    if coding != "identity":
        raise InvalidRequest(f"the body must not be compressed; its Content-Encoding is '{coding:.32}'")
    if int(headers.get("content-length", "0")) > max_bytes:
        raise _too_large(max_bytes)


def _too_large(max_bytes: int) -> TooLarge:
    return TooLarge(f"the body is larger than {max_bytes >> 20} MiB (--max-body-mb)")


def _first_fields(body: bytearray, guard: JsonGuard) -> Any:
    """Return the first fields of the body, as far as they can be parsed at once."""
    end = max((cut for cut in guard.cuts[1] if cut < _NAMED_BYTES), default=0)
    closing = b"]" if body.lstrip()[:1] == b"[" else b"}"
    return _load(body[:end] + closing) if end else {}


def _parse_long(model: type[RequestT], body: bytearray, guard: JsonGuard) -> RequestT:
    return parse_request(model, _load_long(body, guard))


def _load_long(body: bytearray, guard: JsonGuard) -> Any:
    try:
        return parse_pieces(body, guard.cuts)
    except NotJson as error:
        raise _no_json(error) from None


def _load(body: bytearray) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _no_json(error) from None


def _no_json(error: ValueError) -> InvalidRequest:
    return InvalidRequest(f"the body is not valid JSON: {error}")
