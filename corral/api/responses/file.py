"""Convert the files of a request to text: PDF files, and UTF-8 text."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from corral.api.responses.part import refuse_file_id
from corral.api.shared.content import Fields
from corral.core.errors import InvalidRequest
from corral.media.data_uri import decode_base64, is_data_uri
from corral.media.decoded import BadMedia
from corral.media.pdf import read_pdf
from corral.media.source import MediaSource

MAX_FILES = 16
_PDF = b"%PDF-"


async def read_files(items: Sequence[tuple[str, Fields]], source: MediaSource) -> dict[str, str]:
    """Return the text of each, keyed by the place of its part."""
    found = [each for place, item in items for each in _find(item, place)]
    if len(found) > MAX_FILES:
        raise InvalidRequest(f"there are {len(found)} files; {MAX_FILES} are allowed", field="input")
    return {place: await _read(part, place, source) for place, part in found}


def _find(item: Fields, place: str) -> Iterator[tuple[str, Fields]]:
    for name in ("content", "output"):
        parts = item.get(name)
        for i, part in enumerate(parts if isinstance(parts, list) else ()):
            if isinstance(part, dict) and part.get("type") == "input_file":
                yield f"{place}.{name}[{i}]", part


async def _read(part: Fields, place: str, source: MediaSource) -> str:
    refuse_file_id(part, place)
    field = "file_data" if part.get("file_data") is not None else "file_url"
    try:
        data = await _load(part.get(field), field, source)
        if data.startswith(_PDF):
            return await read_pdf(data)
        return data.decode()
    except BadMedia as error:
        raise InvalidRequest(error.message, field=f"{place}.{field}") from None
    except UnicodeDecodeError:
        raise InvalidRequest("is neither a PDF file nor a text in UTF-8", field=f"{place}.{field}") from None


async def _load(value: Any, field: str, source: MediaSource) -> bytes:
    if not isinstance(value, str):
        raise BadMedia("must be a string")
    if field == "file_url":
        return await source.fetch(value)
    data = value.partition(",")[2] if is_data_uri(value) else value
    return await asyncio.to_thread(decode_base64, data)
