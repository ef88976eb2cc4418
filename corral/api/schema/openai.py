"""Fields that OpenAI's routes have besides `/completion`'s own, and those of `POST /v1/completions`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from corral.api.schema.completion import CompletionRequest, GenerationFields
from corral.api.schema.field import Flag, Text, Whole, limits
from corral.api.schema.parse import RequestModel
from corral.core.errors import InvalidRequest

ACCEPTED = "Accepted; nothing is done with it."


class StreamOptions(RequestModel):
    include_usage: Flag = Field(
        default=False, description="End a stream with an event that counts the tokens."
    )


class OpenAIFields(GenerationFields):
    stream_options: StreamOptions = Field(StreamOptions(), description="How to stream.")
    user: Text = Field("", description=ACCEPTED)
    verbose: Flag | None = Field(
        None, description="Add the native answer as `__verbose`; default: if the server is `--verbose`."
    )


class OpenAICompletionRequest(CompletionRequest, OpenAIFields):
    n_probs: Annotated[int, Whole, limits(0)] = Field(
        0, description="As `logprobs`; it may also stand next to it."
    )
    logprobs: Annotated[int, Whole, limits(0)] | None = Field(
        None,
        description="Report the N most probable tokens at every position, and the chosen one; 0: only that.",
    )
    echo: Flag = Field(False, description="Not supported.")
    best_of: Annotated[int, Whole, limits(1)] = Field(1, description="Not supported.")
    suffix: Text = Field("", description="Not supported.")

    @property
    def n_shown(self) -> int:
        """The most probable tokens that the answer shows at every position."""
        return max(self.n_probs, self.logprobs or 0)

    def refuse_unsupported(self) -> None:
        for name, neutral in (("echo", False), ("best_of", 1), ("suffix", "")):
            if getattr(self, name) != neutral:
                raise InvalidRequest("this server does not support it", field=name)
