"""The fields of `POST /infill`: those of `POST /completion`, with a prompt in several parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, PlainValidator

from corral.core.errors import InvalidRequest
from corral.schema.completion import GenerationFields
from corral.schema.field import Mixed

MAX_EXTRAS = 1024
MAX_NAME_CHARS = 4096
_EXTRAS_SCHEMA: Any = {
    "type": "array",
    "maxItems": MAX_EXTRAS,
    "items": {
        "type": "object",
        "properties": {
            "filename": {"type": ["string", "null"], "default": "tmp", "maxLength": MAX_NAME_CHARS},
            "text": {"type": "string"},
        },
        "required": ["text"],
    },
}


@dataclass(frozen=True, slots=True)
class Extra:
    """Text of another file."""

    text: str
    filename: str = "tmp"


def parse_extras(value: Any) -> list[Extra]:
    if not isinstance(value, list):
        message = 'must be an array of {"filename": string, "text": string}'
        raise InvalidRequest(message, field="input_extra")
    if len(value) > MAX_EXTRAS:
        message = f"has {len(value)} texts; the limit is {MAX_EXTRAS}"
        raise InvalidRequest(message, field="input_extra")
    return [_parse_extra(item, f"input_extra[{i}]") for i, item in enumerate(value)]


class InfillRequest(GenerationFields):
    """Write what is between a prefix and a suffix."""

    echoes_prompt = True
    input_prefix: Mixed = Field(description="Text before the gap, or a mix of texts and token ids.")
    input_suffix: Mixed = Field(description="Text after the gap, or a mix of texts and token ids.")
    input_extra: Annotated[list[Extra], PlainValidator(parse_extras)] = Field(
        default_factory=list,
        description='Texts of other files, as `{"filename": "...", "text": "..."}`; the name is optional.',
        json_schema_extra=_EXTRAS_SCHEMA,
    )
    prompt: str = Field("", description="Text that the infill begins with.")


def _parse_extra(item: Any, place: str) -> Extra:
    if not isinstance(item, dict):
        raise InvalidRequest('must be an object {"filename": string, "text": string}', field=place)
    text, filename = item.get("text"), item.get("filename")
    if not isinstance(text, str):
        raise InvalidRequest("must be a string", field=f"{place}.text")
    if filename is None:
        return Extra(text)
    if not isinstance(filename, str) or len(filename) > MAX_NAME_CHARS:
        message = f"must be a string of at most {MAX_NAME_CHARS} characters"
        raise InvalidRequest(message, field=f"{place}.filename")
    return Extra(text, filename)
