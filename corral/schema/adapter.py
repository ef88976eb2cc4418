"""The fields of `POST /lora-adapters/load` and `/unload`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from corral.core.errors import InvalidRequest
from corral.schema.field import Real, Text, Whole, limits
from corral.schema.parse import RequestModel


class LoadAdapterRequest(RequestModel):
    """Load an adapter while the server runs."""

    name: Text = Field(description="A file in `--lora-dir`, with or without `.gguf`.")
    scale: Annotated[float, Real, limits(-1e6, 1e6)] | None = Field(
        None,
        description="Default scale, for requests that set none; 1 if absent, or 0 under "
        "`--lora-init-without-apply`.",
    )


class UnloadAdapterRequest(RequestModel):
    """Forget an adapter."""

    name: Text | None = Field(None, description="Name of the adapter.")
    id: Annotated[int, Whole, limits(0)] | None = Field(
        None, description="Id of the adapter, instead of its name."
    )

    @property
    def adapter(self) -> str | int:
        if (self.name is None) == (self.id is None):
            raise InvalidRequest("give either a name or an id", field="name")
        return self.name if self.name is not None else self.id or 0
