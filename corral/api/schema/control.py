"""The fields of `POST /v1/chat/completions/control`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AliasChoices, Field

from corral.api.schema.field import Text, Whole, limits
from corral.api.schema.parse import RequestModel
from corral.core.params import RANDOM_SEED


class ControlRequest(RequestModel):
    """Control an answer that is being generated."""

    id: Text = Field(
        min_length=1, description="The answer's `id`, or the `X-Request-Id` of its response; of the same key."
    )
    action: Literal["reasoning_end", "stop", "pause", "resume", "limit", "fork", "edit"] = Field(
        description="`reasoning_end` ends reasoning (if the request had `reasoning_control`), `stop` ends "
        "the answer as it is, `pause` and `resume` interrupt it, `limit` sets `n_predict`, `fork` returns a "
        "second answer that begins with what this one has said, `edit` replaces the end of the answer."
    )
    n_predict: Annotated[int, Whole, limits(-1)] | None = Field(
        None,
        validation_alias=AliasChoices("n_predict", "max_completion_tokens", "max_tokens"),
        description="The new maximum number of tokens, with those there are; -1: no limit.",
    )
    seed: Annotated[int, Whole, limits(0, RANDOM_SEED - 1)] | None = Field(
        None, description="The seed of a fork; by default a random one."
    )
    index: Annotated[int, Whole, limits(0)] = Field(0, description="The choice to edit.")
    keep: Annotated[int, Whole, limits(0)] | None = Field(
        None,
        description="How many characters (Unicode code points) an edit keeps: of the content, or of the "
        "reasoning before the content begins.",
    )
    text: Text = Field("", description="What an edit writes after them; the answer continues there.")
