"""Building blocks of request tables: numbers that mean what they say, limits that clamp or refuse.

Unlike pydantic's own lax numbers these take no strings and no booleans, and never NaN. What is clamped
is noted in the validation context, to come back to the client as a warning.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, ValidationInfo, WrapValidator

from corral.core.params import SamplingParams
from corral.core.sampling_params import INT32_MAX, PARAMS

INT64_MAX = 2**63 - 1


def _check_number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"must be a number, got {_name(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value


def _check_integer(value: Any) -> Any:
    value = _check_number(value)
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"must be an integer, got {value:g}")
    return int(value)


def _name(value: Any) -> str:
    names = {bool: "a boolean", str: "a string", list: "an array", dict: "an object", type(None): "null"}
    return names.get(type(value), type(value).__name__)


def limits(low: float, high: float = INT32_MAX) -> Any:
    """Refuse numbers outside of these limits."""
    return Field(ge=low, le=high)


def clamp(low: float, high: float = INT32_MAX) -> AfterValidator:
    """Clamp numbers to these limits, with a warning."""

    def apply(value: Any, info: ValidationInfo) -> Any:
        clamped = min(max(value, low), high)
        if clamped != value and info.context is not None:
            info.context["clamped"][info.field_name] = f"{value:g} was clamped to {clamped:g}"
        return clamped

    return AfterValidator(apply)


Whole = BeforeValidator(_check_integer)
Real = BeforeValidator(_check_number)
Flag = StrictBool


def bounds(name: str) -> Any:
    """Return the limits of the parameter with this name."""
    row = PARAMS[name]
    return clamp(*row.clamp) if row.clamp else limits(*row.limits)


def param(name: str, default: Any = None, **more: Any) -> Any:
    """Return the field of a parameter; its default is that of sampling, unless another one is given."""
    if default is None:
        default = getattr(SamplingParams(), name)
    return Field(default, description=PARAMS[name].help, **more)


Text = Annotated[str, Field(max_length=4096)]
_PIECE_ITEMS = 4096


def _check_pieces(value: Any, check: Callable[[Any], Any]) -> Any:
    """Validate a long list in pieces, so that other threads run in between; it is not changed."""
    if not isinstance(value, list) or len(value) <= _PIECE_ITEMS:
        return check(value)
    for at in range(0, len(value), _PIECE_ITEMS):
        check(value[at : at + _PIECE_ITEMS])
    return value


InPieces = WrapValidator(_check_pieces)
TokenId = Annotated[int, Field(strict=True, ge=0, le=INT32_MAX)]  # checked natively: lists are long
# The first wrong item is enough: lists may have millions of them.
TokenList = Annotated[list[TokenId], Field(fail_fast=True), InPieces]
Mixed = str | Annotated[list[str | TokenId], Field(fail_fast=True), InPieces]
