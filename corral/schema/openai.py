"""Fields that OpenAI's routes have besides `/completion`'s own, and those of `POST /v1/completions`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from corral.schema.completion import CompletionRequest, GenerationFields
from corral.schema.field import Flag, Text, Whole, limits
from corral.schema.parse import RequestModel

ACCEPTED = "Accepted for compatibility, ignored."


class StreamOptions(RequestModel):
    include_usage: Flag = Field(
        default=False, description="End the stream with an event that has the token counts (`usage`)."
    )
    include_obfuscation: Flag = Field(
        default=False, description="Accepted for compatibility: events are not padded."
    )


class OpenAIFields(GenerationFields):
    # Not validated: that would build the validators of the model at the start.
    stream_options: StreamOptions = Field(
        StreamOptions.model_construct(), description="Options of the stream."
    )
    user: Text = Field("", description=ACCEPTED)
    prompt_cache_key: Text = Field(
        "",
        description="Requests with the same key prefer the same slot.",
    )
    verbose: Flag | None = Field(
        None,
        description="Add the native response as `__verbose`; default: if the server runs with `--verbose`.",
    )


class OpenAICompletionRequest(OpenAIFields, CompletionRequest):
    echoes_prompt = False
    n_probs: Annotated[int, Whole, limits(0)] = Field(0, description="Same as `logprobs`; both may be given.")
    logprobs: Annotated[int, Whole, limits(0)] | None = Field(
        None,
        description="Report the N most probable tokens at every position, besides the chosen one; 0: "
        "only the chosen one.",
    )
    echo: Flag = Field(
        False,
        description="Begin every answer with its prompt; with `logprobs`, also report the probabilities of "
        "the prompt's tokens, which are then evaluated even if they are cached.",
    )
    best_of: Annotated[int, Whole, limits(1, 128)] | None = Field(
        None,
        description="Generate this many answers per prompt, and return the `n` most probable per token. "
        "Default: `n`.",
    )
    suffix: str = Field(
        "",
        description="Text after the answer, which is written to fit between; needs a model that can infill.",
    )

    @property
    def n_shown(self) -> int:
        """Return the number of most probable tokens to show at every position."""
        return max(self.n_probs, self.logprobs or 0)

    @property
    def shows_probs(self) -> bool:
        return self.logprobs is not None or self.n_probs > 0

    @property
    def n_drawn(self) -> int:
        """Return the number of answers to generate for every prompt."""
        return self.n if self.best_of is None else self.best_of
