"""From parsed JSON to a request model, with errors that name the field and the reason."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, ValidationError, model_validator

from corral.core.errors import InvalidRequest

MAX_IGNORED = 32  # fields that an answer names
MAX_NAME_CHARS = 64

RequestT = TypeVar("RequestT", bound="RequestModel")


class RequestModel(BaseModel):
    """A null field counts as absent; unknown ones are kept apart and reported, not refused."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        return {k: v for k, v in data.items() if v is not None} if isinstance(data, dict) else data


def parse_request(model: type[RequestT], data: Any) -> tuple[RequestT, list[str]]:
    """The request and what is worth a warning: clamped and unknown fields."""
    if not isinstance(data, dict):
        raise InvalidRequest("the body must be a JSON object")
    clamped: dict[str, str] = {}
    try:
        request = model.model_validate(data, context={"clamped": clamped})
    except ValidationError as error:
        raise _explain(error) from None
    warnings = [f"Field '{_name(model, field)}': {what}" for field, what in clamped.items()]
    return request, warnings + _ignored(model, list(request.model_extra or ()))


def _ignored(model: type[RequestModel], names: list[str]) -> list[str]:
    """Of what nothing was done with; a body may be full of such names, an answer may not."""
    known = aliases_of(model)
    told = [
        f"Field '{name}' was ignored: '{known[name]}' says the same"
        if name in known
        else f"Field '{name:.{MAX_NAME_CHARS}}' is unknown and was ignored"
        for name in names[:MAX_IGNORED]
    ]
    return told + (
        [f"{len(names) - MAX_IGNORED} more fields were ignored"] if len(names) > MAX_IGNORED else []
    )


@cache
def aliases_of(model: type[BaseModel]) -> dict[str, str]:
    """Other names of fields, with those that are used in their stead."""
    choices = [field.validation_alias for field in model.model_fields.values()]
    groups = [list(map(str, alias.choices)) for alias in choices if isinstance(alias, AliasChoices)]
    return {other: first for first, *others in groups for other in others}


def _name(model: type[RequestModel], field: str) -> str:
    """As clients write it."""
    alias = model.model_fields[field].validation_alias
    return alias if isinstance(alias, str) else field


def _explain(error: ValidationError) -> InvalidRequest:
    """The most telling of pydantic's findings: of a union's branches the one that got furthest in."""
    first = error.errors(include_url=False)[0]
    found = [e for e in error.errors(include_url=False) if e["loc"][:1] == first["loc"][:1]]
    message = "; or ".join(dict.fromkeys(e["msg"].removeprefix("Value error, ") for e in found))
    return InvalidRequest(message, field=str(first["loc"][0]) if first["loc"] else None)
