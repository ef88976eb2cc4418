"""Convert the parts of messages and tool outputs to parts of canonical messages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from corral.api.shared.content import Fields, Part, keeps_no_files, require_text, typed_parts, wrap_text
from corral.api.shared.warnings import Warnings
from corral.core.errors import InvalidRequest

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


as_parts = partial(typed_parts, text_type="input_text", noun="parts")


def parse_part(part: Fields, place: str, file_texts: Mapping[str, str], remarks: Warnings) -> Part:
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


def parse_text(part: Fields, place: str, remarks: Warnings) -> Part:
    kind = part["type"]
    if kind not in _TEXTS:
        raise InvalidRequest("only texts are supported here", field=f"{place}.type")
    remarks.check_keys(part, _OF_TEXT, place)
    return {"type": "text", "text": require_text(part, _TEXTS[kind], place)}


def refuse_file_id(part: Fields, place: str) -> None:
    if part.get("file_id") is not None:
        raise keeps_no_files(f"{place}.file_id")


def _parse_image(part: Fields, place: str, remarks: Warnings) -> Part:
    remarks.check_keys(part, _OF_IMAGE, place)
    refuse_file_id(part, place)
    _check_detail(part, place, remarks)
    return {"type": "image_url", "image_url": {"url": require_text(part, "image_url", place)}}


def _parse_file(part: Fields, place: str, file_texts: Mapping[str, str], remarks: Warnings) -> Part:
    remarks.check_keys(part, _OF_FILE, place)
    _check_detail(part, place, remarks)
    document = wrap_text("document", file_texts[place], {"title": part.get("filename")}, "title")
    return {"type": "text", "text": document}


def _check_detail(part: Fields, place: str, remarks: Warnings) -> None:
    if part.get("detail") not in (None, "auto"):
        remarks.warn(f"{place}.detail", "has no effect: it is used as it is")
