"""The request types of client packages: their fields, where they stand in a request, and sample values."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from functools import cache
from typing import Any, Literal, Union

from pydantic import BaseModel
from typing_extensions import NotRequired, Required, is_typeddict

Path = tuple[str | int, ...]
_PLAIN: dict[Any, Any] = {str: "x", int: 1, float: 0.5, bool: True, object: "x", Any: "x", bytes: "eA=="}


@cache
def fields_of(kind: Any) -> dict[str, Any]:
    """Return the types of a request's fields by their names on the wire."""
    if is_typeddict(kind):
        return typing.get_type_hints(kind)
    return {field.alias or name: field.annotation for name, field in kind.model_fields.items()}


def sample(kind: Any) -> Any:
    """Return a value of a type; an object has its required fields only."""
    kind = _strip(kind)
    if is_object(kind):
        return {name: sample(fields_of(kind)[name]) for name in _required(kind)}
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return args[0]
    if origin in (Union, types.UnionType):
        return sample(next(arg for arg in args if arg is not type(None)))
    if origin is dict or kind is dict:
        return {}
    if args:
        return [sample(args[0])]
    return _PLAIN[kind]


def is_object(kind: Any) -> bool:
    return is_typeddict(kind) or (isinstance(kind, type) and issubclass(kind, BaseModel))


def walk(kind: Any, path: Path = ()) -> Iterator[tuple[Any, Path]]:
    """Yield the objects that a value of this type may have in it, with their places."""
    kind = _strip(kind)
    if is_object(kind):
        yield kind, path
        return
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Literal, dict) or kind is dict:
        return
    is_list = origin not in (None, Union, types.UnionType)
    for arg in args:
        yield from walk(arg, (*path, 0) if is_list else path)


def _required(kind: Any) -> list[str]:
    if not is_typeddict(kind):
        return [field.alias or name for name, field in kind.model_fields.items() if field.is_required()]
    hints = typing.get_type_hints(kind, include_extras=True)
    return [name for name, hint in hints.items() if _is_required(hint)]


def _is_required(hint: Any) -> bool:
    if typing.get_origin(hint) is typing.Annotated:
        return _is_required(typing.get_args(hint)[0])
    return typing.get_origin(hint) is Required


def _strip(kind: Any) -> Any:
    while typing.get_origin(kind) in (Required, NotRequired, typing.Annotated):
        kind = typing.get_args(kind)[0]
    return kind
