"""The fields of `POST /v1/completions`: OpenAI's, and everything `/completion` takes."""

from __future__ import annotations

from pydantic import BaseModel, Field

from corral.api.schema.completion import CompletionRequest
from corral.api.schema.field import Flag
from corral.core.errors import InvalidRequest


class StreamOptions(BaseModel):
    include_usage: Flag = Field(
        default=False, description="End a stream with an event that counts the tokens."
    )


class OpenAICompletionRequest(CompletionRequest):
    stream_options: StreamOptions = Field(StreamOptions(), description="How to stream.")
    user: str = Field("", description="Accepted; nothing is done with it.")
    echo: Flag = Field(False, description="Not supported.")
    best_of: int = Field(1, description="Not supported.")
    suffix: str = Field("", description="Not supported.")

    def refuse_unsupported(self) -> None:
        for name, neutral in (("echo", False), ("best_of", 1), ("suffix", "")):
            if getattr(self, name) != neutral:
                raise InvalidRequest("this server does not support it", field=name)
