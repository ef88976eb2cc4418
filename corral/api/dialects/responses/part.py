"""Convert the parts of messages and tool outputs to parts of canonical messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import quoteattr

from corral.api.dialects.remarks import Remarks
from corral.api.dialects.responses.schema import MAX_PARTS
from corral.core.errors import InvalidRequest, NotSupported

Part = dict[str, Any]
Fields = Mapping[str, Any]

_TEXTS = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "summary_text": "text",
    "reasoning_text": "text",
    "refusal": "refusal",
}
_OF_TEXT = ("text", "refusal", "annotations", "logprobs", "prompt_cache_breakpoint")
_OF_IMAGE = ("image_url", "detail", "file_id", "prompt_cache_breakpoint")
_OF_FILE = ("file_data", "file_url", "file_id", "filename", "detail", "prompt_cache_breakpoint")


def as_parts(content: Any, place: str) -> list[Fields]:
    """Return content as parts; a text is one part."""
    if isinstance(content, str):
        return [{"type": "input_text", "text": content}]
    if not isinstance(content, list) or len(content) > MAX_PARTS:
        raise InvalidRequest(f"must be a string or a list of at most {MAX_PARTS} parts", field=place)
    for i, part in enumerate(content):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise InvalidRequest("must be an object with a 'type'", field=f"{place}[{i}]")
    return content


def parse_part(part: Fields, place: str, file_texts: Mapping[str, str], remarks: Remarks) -> Part:
    """Convert a part. `file_texts`: the contents of files, keyed by the places of their parts."""
    kind = part["type"]
    if kind in _TEXTS:
        return parse_text(part, place, remarks)
    if kind == "input_image":
        return _parse_image(part, place, remarks)
    if kind == "input_file":
        return _parse_file(part, place, file_texts, remarks)
    if kind == "input_audio":
        return dict(part)
    raise InvalidRequest(f"parts of the type '{kind:.64}' are not supported", field=f"{place}.type")


def parse_text(part: Fields, place: str, remarks: Remarks) -> Part:
    kind = part["type"]
    if kind not in _TEXTS:
        raise InvalidRequest("only texts are supported here", field=f"{place}.type")
    remarks.check_keys(part, _OF_TEXT, place)
    return {"type": "text", "text": require_text(part, _TEXTS[kind], place)}


def require_text(fields: Fields, name: str, place: str) -> str:
    text = fields.get(name)
    if not isinstance(text, str):
        raise InvalidRequest("must be a string", field=f"{place}.{name}")
    return text


def plain(parts: list[Part]) -> str | list[Part]:
    """Return a single text part as a string, the most common content."""
    if not parts:
        return ""
    return str(parts[0]["text"]) if len(parts) == 1 and parts[0]["type"] == "text" else parts


def refuse_file_id(part: Fields, place: str) -> None:
    if part.get("file_id") is not None:
        where = f"{place}.file_id"
        raise NotSupported(f"Field '{where}': this server keeps no files", param=where)


def _parse_image(part: Fields, place: str, remarks: Remarks) -> Part:
    remarks.check_keys(part, _OF_IMAGE, place)
    refuse_file_id(part, place)
    _check_detail(part, place, remarks)
    return {"type": "image_url", "image_url": {"url": require_text(part, "image_url", place)}}


def _parse_file(part: Fields, place: str, file_texts: Mapping[str, str], remarks: Remarks) -> Part:
    remarks.check_keys(part, _OF_FILE, place)
    _check_detail(part, place, remarks)
    name = part.get("filename")
    title = f" title={quoteattr(name)}" if isinstance(name, str) else ""
    return {"type": "text", "text": f"<document{title}>\n{file_texts[place]}\n</document>"}


def _check_detail(part: Fields, place: str, remarks: Remarks) -> None:
    if part.get("detail") not in (None, "auto"):
        remarks.warn(f"{place}.detail", "has no effect: it is used as it is")
