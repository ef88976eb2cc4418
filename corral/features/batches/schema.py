"""The fields of files and batches, and the formats of their answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from corral.api.openapi import list_of, shape
from corral.api.responses.schema import Metadata
from corral.features.batches.line import MAX_ID_CHARS, MAX_LINES
from corral.schema.field import Whole, limits
from corral.schema.parse import RequestModel

MAX_EXPIRY_S = 30 * 86400
MIN_EXPIRY_S = 1
_EXPIRY: Any = {
    "type": "object",
    "required": ["anchor", "seconds"],
    "properties": {"anchor": {"const": "created_at"}, "seconds": {"type": "integer"}},
}
_REQUESTS: Any = {
    "type": "array",
    "maxItems": MAX_LINES,
    "items": {
        "type": "object",
        "required": ["custom_id", "params"],
        "properties": {
            "custom_id": {"type": "string", "maxLength": MAX_ID_CHARS},
            "params": {"type": "object"},
        },
    },
}


class ExpiresAfter(RequestModel):
    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, Whole, limits(MIN_EXPIRY_S, MAX_EXPIRY_S)]


class BatchRequest(RequestModel):
    input_file_id: str = Field(max_length=128, description="ID of the uploaded file, one request per line.")
    endpoint: str = Field(max_length=128, description="Where the lines are sent.")  # the routes are its enum
    completion_window: str = Field(
        "24h",
        max_length=8,
        pattern=r"^[1-9]\d{0,4}[smhd]$",
        description="Time after which lines that have not run expire, as `24h` or `30m`.",
    )
    metadata: Metadata | None = Field(None, description="Kept with the batch.")
    output_expires_after: ExpiresAfter | None = Field(
        None, description="When to remove the files with results.", json_schema_extra=_EXPIRY
    )


class MessageBatchRequest(RequestModel):
    requests: list[Any] = Field(
        description="Requests of `/v1/messages`: `custom_id` and `params`.",
        min_length=1,
        max_length=MAX_LINES,
        json_schema_extra=_REQUESTS,
    )


FILE = shape(
    id="string",
    object="string",
    bytes="integer",
    created_at="integer",
    filename="string",
    purpose="string",
    status="string",
    expires_at="integer?",
)
FILES = shape(object="string", data=list_of(FILE), has_more="boolean")
FILE_DELETED = shape(id="string", object="string", deleted="boolean")
BATCH = shape(
    id="string",
    object="string",
    endpoint="string",
    input_file_id="string",
    status="string",
    created_at="integer",
    request_counts=shape(total="integer", completed="integer", failed="integer"),
    output_file_id="string|null",
    error_file_id="string|null",
    eta_seconds="integer?",
    warnings="array?",
)
BATCHES = shape(object="string", data=list_of(BATCH), has_more="boolean")
MESSAGE_BATCH = shape(
    id="string",
    type="string",
    processing_status="string",
    request_counts="object",
    created_at="string",
    expires_at="string",
    ended_at="string|null",
    results_url="string|null",
)
MESSAGE_BATCHES = shape(data=list_of(MESSAGE_BATCH), has_more="boolean")
MESSAGE_BATCH_DELETED = shape(id="string", type="string")
