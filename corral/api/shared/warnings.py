"""Collect warnings about request fields that have no effect."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from corral.core.removed import IGNORED_FIELDS
from corral.schema.completion import GenerationFields
from corral.schema.parse import MAX_IGNORED, MAX_NAME_CHARS, RequestModel

# What shows only in answers of other APIs.
WITHOUT_EFFECT = (
    *("n_probs", "post_sampling_probs", "return_tokens", "return_progress"),
    *("timings_per_token", "response_fields"),
)


class Warnings:
    """Mutable: warnings, a bounded number of them. `common`: fields that any object may have."""

    common: Collection[str] = ("type",)

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, place: str, what: str) -> None:
        if len(self.warnings) < MAX_IGNORED:
            self.warnings.append(f"Field '{place}' {what}")

    def check_keys(self, fields: Mapping[str, Any], known: Collection[str], place: str) -> None:
        """Warn about unknown fields."""
        for name, value in fields.items():
            if name not in known and name not in self.common and value is not None:
                self.warn(f"{place}.{name:.{MAX_NAME_CHARS}}", "is unknown and was ignored")

    def check_effect(self, body: GenerationFields, *effective: str) -> None:
        """Warn about fields that have an effect in other APIs only. `effective`: those that have one here."""
        for name in sorted(body.model_fields_set.intersection(WITHOUT_EFFECT).difference(effective)):
            self.warn(body.name_of(name), "has no effect on this route")


def generation_fields(body: GenerationFields) -> dict[str, Any]:
    """Return the fields that are common to all generation requests."""
    shared = body.model_fields_set.intersection(GenerationFields.model_fields).difference(WITHOUT_EFFECT)
    return {name: getattr(body, name) for name in shared}


def nested_warnings(body: RequestModel, names: Collection[str]) -> list[str]:
    """Return warnings about unknown fields inside these fields."""
    nested = {name: getattr(body, name, None) for name in names}
    return [
        f"Field '{name}.{field:.{MAX_NAME_CHARS}}' is unknown and was ignored"
        for name, value in nested.items()
        if isinstance(value, RequestModel)
        for field in list(value.model_extra or ())[:8]
        if f"{name}.{field}" not in IGNORED_FIELDS
    ]
