"""The fields of `POST /v1/chat/completions/control`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field, field_validator

from corral.core.errors import InvalidRequest
from corral.core.removed import ACTIONS, explain_removal
from corral.schema.field import Text, Whole, limits
from corral.schema.parse import RequestModel


class ControlRequest(RequestModel):
    """Control an answer that is being generated."""

    id: Text = Field(
        min_length=1, description="The answer's `id`, or the `X-Request-Id` of its response; of the same key."
    )
    action: Literal["reasoning_end", "stop", "pause", "resume", "limit"] = Field(
        description="`reasoning_end` ends reasoning (if the request had `reasoning_control`), `stop` ends "
        "the answer as it is, `pause` and `resume` interrupt it, `limit` sets `n_predict`."
    )
    n_predict: Annotated[int, Whole, limits(-1)] | None = Field(
        None,
        validation_alias=AliasChoices("n_predict", "max_completion_tokens", "max_tokens"),
        description="The new maximum number of tokens, with those there are; -1: no limit.",
    )

    @field_validator("action", mode="before")
    @classmethod
    def _refuse_removed(cls, action: Any) -> Any:
        if isinstance(action, str) and action in ACTIONS:
            raise InvalidRequest(f"'{action}' was {explain_removal(ACTIONS[action])}", field="action")
        return action
