"""The fields of actions on slots and sessions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from corral.schema.field import Text, Whole, limits
from corral.schema.parse import RequestModel


class SlotFileRequest(RequestModel):
    filename: Text = Field(description="Name of a file in `--slot-save-path`.")
    format: Literal["ses1", "ggsq"] = Field(
        "ses1",
        description="Of a saved file: `ggsq` is that of llama-server, without checkpoints, for a server with "
        "one slot or a unified KV cache. Both are restored. Also as `?format=`.",
    )


class ShiftRequest(RequestModel):
    n_keep: Annotated[int, Whole, limits(0)] = Field(description="Tokens to keep at the beginning.")
    n_discard: Annotated[int, Whole, limits(1)] = Field(description="Tokens to discard after those.")


class SessionRequest(RequestModel):
    file: Text = Field("", description="Name of a file in `--slot-save-path` to restore from or to save to.")


class StateRequest(RequestModel):
    """The state in base64. Long bodies are read by `storage/blob.py`, which keeps only the text itself in
    memory."""

    state: str = Field(description="The state from `save-state`, in base64.")
