"""Convert parsed JSON to a request model, with errors that name the field and the reason."""

from __future__ import annotations

from functools import cache
from itertools import islice
from threading import Lock
from typing import Any, ClassVar, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, PrivateAttr, ValidationError, model_validator

from corral.core.errors import InvalidRequest
from corral.core.removed import FIELDS, IGNORED_FIELDS, explain_removal, find_fields
from corral.text.json_depth import MAX_FIELDS

MAX_IGNORED = 32  # fields that an answer names
MAX_NAME_CHARS = 64
_N_NAMED = 3  # of fields that are too many

_building = Lock()
RequestT = TypeVar("RequestT", bound="RequestModel")


class RequestModel(BaseModel):
    """A null field counts as absent; unknown ones are kept apart and reported, not refused."""

    model_config = ConfigDict(extra="allow", populate_by_name=True, defer_build=True)
    converted_to: ClassVar[
        tuple[type[RequestModel], ...]
    ] = ()  # models that a request is parsed as afterwards
    _sent: dict[str, str] = PrivateAttr(default_factory=dict)  # what the client calls fields
    _warnings: list[str] = PrivateAttr(default_factory=list)

    @property
    def warnings(self) -> list[str]:
        """Warnings for the client: clamped and unknown fields."""
        return self._warnings

    def name_of(self, field: str) -> str:
        """Return the client's name of a field, for warnings and errors; else its usual name."""
        return self._sent.get(field) or _names_of(type(self))[field][0]

    def with_field(self: RequestT, field: str, value: Any, name: str) -> RequestT:
        """Return a copy with a value that comes from a field with another name."""
        copied = self.model_copy(update={field: value})
        copied._sent = {**self._sent, field: name}
        return copied

    def with_remarks_of(self: RequestT, other: RequestModel, warnings: list[str]) -> RequestT:
        """Return a copy with the field names and warnings of another request, and with more warnings."""
        copied = self.model_copy()
        copied._sent = other._sent
        copied._warnings = [*other.warnings, *warnings]
        return copied

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        return {k: v for k, v in data.items() if v is not None} if isinstance(data, dict) else data


def is_built(model: type[RequestModel]) -> bool:
    return all(each.__pydantic_complete__ for each in (model, *model.converted_to))


def build(model: type[RequestModel]) -> None:
    """Make the validators of a model, which takes up to 50 ms; pydantic would make them when they are first
    used, on the event loop."""
    with _building:
        for each in (model, *model.converted_to):
            each.model_rebuild()


def parse_request(model: type[RequestT], data: Any) -> RequestT:
    check_fields(model, data)
    for name in find_fields(data, FIELDS):
        raise InvalidRequest(explain_removal(FIELDS[name]), field=name)
    clamped: dict[str, str] = {}
    try:
        request = model.model_validate(data, context={"clamped": clamped})
    except ValidationError as error:
        raise _explain(error) from None
    request._sent = _sent_names(model, data)
    warnings = [f"Field '{request.name_of(field)}': {what}" for field, what in clamped.items()]
    warnings += [
        f"Field '{name}' was ignored: {explain_removal(IGNORED_FIELDS[name])}"
        for name in find_fields(data, IGNORED_FIELDS)
    ]
    request._warnings = warnings + _ignored(request)
    return request


def check_fields(model: type[RequestModel], data: Any, is_whole: bool = True) -> None:
    """Refuse what is not an object, or has too many fields. `is_whole`: `value` has all fields."""
    if not isinstance(data, dict):
        raise InvalidRequest("the body must be a JSON object")
    if len(data) <= MAX_FIELDS and is_whole:
        return
    known = {name for names in _names_of(model).values() for name in names}
    first = islice((name for name in data if name not in known), _N_NAMED)
    unknown = [f"'{name:.{MAX_NAME_CHARS}}'" for name in first]
    named = f"; {', '.join(unknown)} and others are unknown" if unknown else ""
    raise InvalidRequest(f"the body has more than {MAX_FIELDS} fields{named}")


def _ignored(request: RequestModel) -> list[str]:
    """Warn about ignored fields; a body may have any number of them, a response only a few."""
    names = [name for name in request.model_extra or () if name not in IGNORED_FIELDS]
    known = _fields_by_name(type(request))
    warnings = [
        f"Field '{name}' was ignored: it is an alias of '{request.name_of(known[name])}', which is set too"
        if name in known
        else f"Field '{name:.{MAX_NAME_CHARS}}' is unknown and was ignored"
        for name in names[:MAX_IGNORED]
    ]
    return warnings + (
        [f"{len(names) - MAX_IGNORED} more fields were ignored"] if len(names) > MAX_IGNORED else []
    )


def _sent_names(model: type[RequestModel], data: dict[str, Any]) -> dict[str, str]:
    """Return the first name of each field that has a value; that one is used."""
    fields, names = _fields_by_name(model), _names_of(model)
    given = {fields[name] for name, value in data.items() if value is not None and name in fields}
    return {field: next(name for name in names[field] if data.get(name) is not None) for field in given}


@cache
def _fields_by_name(model: type[BaseModel]) -> dict[str, str]:
    return {name: field for field, names in _names_of(model).items() for name in names}


@cache
def _names_of(model: type[BaseModel]) -> dict[str, tuple[str, ...]]:
    """Return all names of each field, the usual one first."""
    names: dict[str, tuple[str, ...]] = {}
    for field, info in model.model_fields.items():
        alias = info.validation_alias
        choices = map(str, alias.choices) if isinstance(alias, AliasChoices) else [str(alias or field)]
        names[field] = tuple(dict.fromkeys([*choices, field]))
    return names


@cache
def aliases_of(model: type[BaseModel]) -> dict[str, str]:
    """Return the aliases of fields, with the usual names."""
    choices = [field.validation_alias for field in model.model_fields.values()]
    groups = [list(map(str, alias.choices)) for alias in choices if isinstance(alias, AliasChoices)]
    return {other: first for first, *others in groups for other in others}


def _explain(error: ValidationError) -> InvalidRequest:
    """Return the most specific of pydantic's errors: in a union, that of the deepest branch."""
    first = error.errors(include_url=False)[0]
    found = [e for e in error.errors(include_url=False) if e["loc"][:1] == first["loc"][:1]]
    message = "; or ".join(dict.fromkeys(e["msg"].removeprefix("Value error, ") for e in found))
    return InvalidRequest(message, field=str(first["loc"][0]) if first["loc"] else None)
