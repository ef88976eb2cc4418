"""From parsed JSON to a request model, with errors that name the field and the reason."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from corral.core.errors import InvalidRequest

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
    warnings += [f"Field '{name}' is unknown and was ignored" for name in request.model_extra or ()]
    return request, warnings


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
