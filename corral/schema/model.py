"""The fields of requests about models."""

from __future__ import annotations

from pydantic import Field

from corral.schema.field import Text
from corral.schema.parse import RequestModel


class ModelRequest(RequestModel):
    model: Text = Field(description="Name or alias of the model.")
