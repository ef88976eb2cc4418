"""The fields of `POST /engines/update`."""

from __future__ import annotations

from pydantic import Field

from corral.schema.field import Text
from corral.schema.parse import RequestModel


class UpdateRequest(RequestModel):
    """Replace the model file of all engines."""

    model: Text = Field(description="Name of a file in the directory of the present model file.")
