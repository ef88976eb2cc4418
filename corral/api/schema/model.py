"""The fields of requests about models."""

from __future__ import annotations

from pydantic import Field

from corral.api.schema.field import Text
from corral.api.schema.parse import RequestModel


class ModelRequest(RequestModel):
    model: Text = Field(description="Name or alias of the model.")
