"""Parse `multipart/form-data` (RFC 7578): texts and files of a form, all in memory."""

from __future__ import annotations

from collections.abc import AsyncIterable
from email.message import Message
from typing import Any, NamedTuple

from corral.core.errors import InvalidRequest, TooLarge
from corral.generate.services import ServerServices
from corral.telemetry.record import RequestRecord

MAX_PARTS = 64
_MAX_HEAD_BYTES = 8192
_MAX_BOUNDARY = 200
DAMAGED = (TypeError, ValueError)  # of `email`: parameters in parts (RFC 2231) that do not fit together


class Part(NamedTuple):
    name: str
    filename: str | None  # of a file
    data: bytes


async def read_form(
    content_type: str, pieces: AsyncIterable[bytes], record: RequestRecord, services: ServerServices
) -> list[Part]:
    """Return the parts of the body, which may have `--max-body-mb` in all."""
    body, max_bytes = bytearray(), services.settings.server.max_body_mib << 20
    async for piece in pieces:
        body += piece
        if len(body) > max_bytes:
            raise TooLarge(f"the body is larger than {max_bytes >> 20} MiB (--max-body-mb)")
    record.is_large = True
    boundary = boundary_of(content_type)
    return await services.pools.run_sized(record.client, len(body), parse_form, bytes(body), boundary)


def boundary_of(content_type: str) -> bytes:
    """Return the boundary that the header names; raises InvalidRequest if there is none."""
    head = Message()
    head["content-type"] = content_type
    boundary = _param(head, "boundary", "content-type")
    if head.get_content_type() != "multipart/form-data" or not isinstance(boundary, str) or not boundary:
        raise InvalidRequest("the body must be multipart/form-data with a boundary")
    return boundary[:_MAX_BOUNDARY].encode("latin-1", "replace")


def parse_form(body: bytes, boundary: bytes) -> list[Part]:
    """Split a body at its boundaries; raises InvalidRequest if it is malformed."""
    pieces = (b"\r\n" + body).split(b"\r\n--" + boundary, MAX_PARTS + 1)
    if len(pieces) > MAX_PARTS + 1:
        raise InvalidRequest(f"the form has more than {MAX_PARTS} parts")
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise InvalidRequest("the form is incomplete: its last boundary is missing")
    return [_parse_part(piece) for piece in pieces[1:-1]]


def _parse_part(piece: bytes) -> Part:
    head, separator, data = piece.partition(b"\r\n\r\n")
    if not separator or len(head) > _MAX_HEAD_BYTES:
        raise InvalidRequest("a part of the form has no head")
    message = Message()
    for line in head.decode("utf-8", "replace").split("\r\n"):
        field, _, value = line.partition(":")
        if field.strip().lower() == "content-disposition":
            message["content-disposition"] = value.strip()
    name = _param(message, "name", "content-disposition")
    filename = _param(message, "filename", "content-disposition")
    if not isinstance(name, str):
        raise InvalidRequest("a part of the form has no name")
    return Part(name, None if filename is None else str(filename), data)


def _param(message: Message, name: str, header: str) -> Any:
    try:
        return message.get_param(name, header=header)
    except DAMAGED:
        raise InvalidRequest(f"the parameters of {header} are malformed") from None
