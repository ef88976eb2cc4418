"""The field of `POST /v1/receipts/replay`."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from corral.api.schema.parse import RequestModel


class ReceiptRequest(RequestModel):
    """Evaluate the answer of a receipt again."""

    receipt: Any = Field(
        description="A `receipt` as this server has returned it.", json_schema_extra={"type": "object"}
    )
