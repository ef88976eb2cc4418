"""Convert content blocks to parts of canonical messages."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from corral.api.shared.content import Fields, Part, keeps_no_files, require_text, typed_parts, wrap_text
from corral.api.shared.warnings import Warnings
from corral.core.errors import InvalidRequest

Block = Fields

CACHE_TTLS = ("5m", "1h")  # the default first
_PDF = "application/pdf"


class BlockRemarks(Warnings):
    """Mutable: warnings, and how long the last block that is marked for the cache is to stay there.

    `pdf_texts`: the texts of PDF documents, by the places of their blocks.
    """

    common = ("type", "cache_control")

    def __init__(self, pdf_texts: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.pdf_texts = pdf_texts or {}
        self.cache_ttl: str | None = None  # None: nothing is marked

    def check_keys(self, fields: Block, known: Collection[str], place: str) -> None:
        self.mark(fields.get("cache_control"))
        super().check_keys(fields, known, place)

    def mark(self, cache_control: Any) -> None:
        if cache_control is not None:
            ttl = cache_control.get("ttl") if isinstance(cache_control, dict) else None
            self.cache_ttl = ttl if ttl in CACHE_TTLS else CACHE_TTLS[0]


as_blocks = partial(typed_parts, text_type="text", noun="blocks")


def parse_part(block: Block, place: str, remarks: BlockRemarks) -> Part:
    """Convert a block of a user message or a tool result."""
    kind = block["type"]
    if kind == "text":
        return parse_text(block, place, remarks)
    if kind == "image":
        remarks.check_keys(block, ("source",), place)
        return {"type": "image_url", "image_url": {"url": _image_url(block.get("source"), f"{place}.source")}}
    if kind == "document":
        return _text(_document(block, place, remarks))
    if kind == "search_result":
        return _text(_search_result(block, place, remarks))
    raise InvalidRequest(f"blocks of the type '{kind:.64}' are not supported here", field=f"{place}.type")


def parse_text(block: Block, place: str, remarks: BlockRemarks) -> Part:
    remarks.check_keys(block, ("text", "citations"), place)
    return _text(require_text(block, "text", place))


def pdf_source(block: Block) -> Mapping[str, Any] | None:
    """Return the source of a document if it is a PDF file."""
    source = block.get("source")
    if block.get("type") != "document" or not isinstance(source, dict):
        return None
    is_pdf = source.get("type") == "url" or (
        source.get("type") == "base64" and source.get("media_type", _PDF) == _PDF
    )
    return source if is_pdf else None


def _text(text: str) -> Part:
    return {"type": "text", "text": text}


def _image_url(source: Any, place: str) -> str:
    kind = source.get("type") if isinstance(source, dict) else None
    if kind == "base64":
        return (
            f"data:{require_text(source, 'media_type', place)};base64,{require_text(source, 'data', place)}"
        )
    if kind == "url":
        return require_text(source, "url", place)
    if kind == "file":
        raise keeps_no_files(place)
    raise InvalidRequest("must be an object whose 'type' is 'base64' or 'url'", field=place)


def _document(block: Block, place: str, remarks: BlockRemarks) -> str:
    """Return a document as text, wrapped with its title."""
    remarks.check_keys(block, ("source", "title", "context", "citations"), place)
    _check_citations(block, place, remarks)
    return wrap_text("document", _document_text(block, place, remarks), block, "title", "context")


def _document_text(block: Block, place: str, remarks: BlockRemarks) -> str:
    if place in remarks.pdf_texts:
        return remarks.pdf_texts[place]
    given, where = block.get("source"), f"{place}.source"
    source: Block = given if isinstance(given, dict) else {}
    kind = source.get("type")
    if kind == "text":
        return require_text(source, "data", where)
    if kind == "content":
        blocks = as_blocks(source.get("content"), f"{where}.content")
        return _join_texts(blocks, f"{where}.content", remarks)
    if kind == "file":
        raise keeps_no_files(where)
    message = "must be an object whose 'type' is 'text', 'content', or, of a PDF, 'base64' or 'url'"
    raise InvalidRequest(message, field=where)


def _search_result(block: Block, place: str, remarks: BlockRemarks) -> str:
    remarks.check_keys(block, ("source", "title", "content", "citations"), place)
    _check_citations(block, place, remarks)
    where = f"{place}.content"
    text = _join_texts(as_blocks(block.get("content"), where), where, remarks)
    return wrap_text("search_result", text, block, "title", "source")


def _check_citations(block: Block, place: str, remarks: BlockRemarks) -> None:
    citations = block.get("citations")
    if isinstance(citations, dict) and citations.get("enabled"):
        remarks.warn(f"{place}.citations", "was ignored: answers have no citations")


def _join_texts(blocks: list[Block], place: str, remarks: BlockRemarks) -> str:
    """Join blocks that must be texts."""
    return "\n".join(
        parse_text(_require_text_block(block, f"{place}[{i}]"), f"{place}[{i}]", remarks)["text"]
        for i, block in enumerate(blocks)
    )


def _require_text_block(block: Block, place: str) -> Block:
    if block["type"] != "text":
        raise InvalidRequest("only blocks of the type 'text' are supported here", field=f"{place}.type")
    return block
