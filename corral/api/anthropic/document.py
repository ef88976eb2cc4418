"""Convert the PDF documents of a request to text."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from corral.api.anthropic.block import Block, pdf_source
from corral.core.errors import InvalidRequest
from corral.media.data_uri import decode_base64
from corral.media.decoded import BadMedia
from corral.media.pdf import read_pdf
from corral.media.source import MediaSource

MAX_PDFS = 16


async def read_pdfs(messages: Any, source: MediaSource) -> dict[str, str]:
    """Return the text of each, keyed by the place of its block."""
    found = await asyncio.to_thread(lambda: list(_find(messages, "messages")))
    if len(found) > MAX_PDFS:
        raise InvalidRequest(f"there are {len(found)} PDF files; {MAX_PDFS} are allowed", field="messages")
    return {place: await _read(block, place, source) for place, block in found}


async def _read(block: Block, place: str, source: MediaSource) -> str:
    origin = pdf_source(block)
    assert origin is not None
    try:
        return await read_pdf(await _load(origin, source))
    except BadMedia as error:
        raise InvalidRequest(error.message, field=f"{place}.source") from None


async def _load(origin: Any, source: MediaSource) -> bytes:
    if origin["type"] == "url":
        return await source.fetch(str(origin.get("url")))
    data = origin.get("data")
    if not isinstance(data, str):
        raise BadMedia("'data' must be a string")
    return await asyncio.to_thread(decode_base64, data)


def _find(blocks: Any, place: str) -> Iterator[tuple[str, Block]]:
    """Yield documents in messages and in tool results."""
    for i, block in enumerate(blocks if isinstance(blocks, list) else ()):
        if not isinstance(block, dict):
            continue
        if pdf_source(block) is not None:
            yield f"{place}[{i}]", block
        yield from _find(block.get("content"), f"{place}[{i}].content")
