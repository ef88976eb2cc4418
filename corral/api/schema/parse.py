"""From parsed JSON to a request model, with errors that name the field and the reason."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, PrivateAttr, ValidationError, model_validator

from corral.core.errors import InvalidRequest

MAX_IGNORED = 32  # fields that an answer names
MAX_NAME_CHARS = 64

RequestT = TypeVar("RequestT", bound="RequestModel")


class RequestModel(BaseModel):
    """A null field counts as absent; unknown ones are kept apart and reported, not refused."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)
    _sent: dict[str, str] = PrivateAttr(default_factory=dict)  # what the client calls fields
    _warnings: list[str] = PrivateAttr(default_factory=list)

    @property
    def warnings(self) -> list[str]:
        """What the client should know: of fields that were clamped, and of unknown ones."""
        return self._warnings

    def name_of(self, field: str) -> str:
        """What the client calls a field, for warnings and errors; else its usual name."""
        return self._sent.get(field) or _names_of(type(self))[field][0]

    def with_field(self: RequestT, field: str, value: Any, name: str) -> RequestT:
        """A copy with a value that comes from a field with another name."""
        copied = self.model_copy(update={field: value})
        copied._sent = {**self._sent, field: name}
        return copied

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        return {k: v for k, v in data.items() if v is not None} if isinstance(data, dict) else data


def parse_request(model: type[RequestT], data: Any) -> RequestT:
    if not isinstance(data, dict):
        raise InvalidRequest("the body must be a JSON object")
    clamped: dict[str, str] = {}
    try:
        request = model.model_validate(data, context={"clamped": clamped})
    except ValidationError as error:
        raise _explain(error) from None
    request._sent = _sent_names(model, data)
    warnings = [f"Field '{request.name_of(field)}': {what}" for field, what in clamped.items()]
    request._warnings = warnings + _ignored(request)
    return request


def _ignored(request: RequestModel) -> list[str]:
    """Of what nothing was done with; a body may be full of such names, an answer may not."""
    names = list(request.model_extra or ())
    known = {name: field for field, others in _names_of(type(request)).items() for name in others}
    warnings = [
        f"Field '{name}' was ignored: '{request.name_of(known[name])}' says the same"
        if name in known
        else f"Field '{name:.{MAX_NAME_CHARS}}' is unknown and was ignored"
        for name in names[:MAX_IGNORED]
    ]
    return warnings + (
        [f"{len(names) - MAX_IGNORED} more fields were ignored"] if len(names) > MAX_IGNORED else []
    )


def _sent_names(model: type[RequestModel], data: dict[str, Any]) -> dict[str, str]:
    """The first name of each field that has a value; it is the one that counts."""
    found = {
        field: next((name for name in names if data.get(name) is not None), "")
        for field, names in _names_of(model).items()
    }
    return {field: name for field, name in found.items() if name}


@cache
def _names_of(model: type[BaseModel]) -> dict[str, tuple[str, ...]]:
    """All names of each field, the usual one first."""
    names: dict[str, tuple[str, ...]] = {}
    for field, info in model.model_fields.items():
        alias = info.validation_alias
        choices = map(str, alias.choices) if isinstance(alias, AliasChoices) else [str(alias or field)]
        names[field] = tuple(dict.fromkeys([*choices, field]))
    return names


@cache
def aliases_of(model: type[BaseModel]) -> dict[str, str]:
    """Other names of fields, with those that are used in their stead."""
    choices = [field.validation_alias for field in model.model_fields.values()]
    groups = [list(map(str, alias.choices)) for alias in choices if isinstance(alias, AliasChoices)]
    return {other: first for first, *others in groups for other in others}


def _explain(error: ValidationError) -> InvalidRequest:
    """The most telling of pydantic's findings: of a union's branches the one that got furthest in."""
    first = error.errors(include_url=False)[0]
    found = [e for e in error.errors(include_url=False) if e["loc"][:1] == first["loc"][:1]]
    message = "; or ".join(dict.fromkeys(e["msg"].removeprefix("Value error, ") for e in found))
    return InvalidRequest(message, field=str(first["loc"][0]) if first["loc"] else None)
