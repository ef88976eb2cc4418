"""Check one JSON value against its schema while it grows."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs

from corral.core.result import Violation
from corral.grammar.check.locate import Locator, Rules
from corral.grammar.check.scanner import JsonScanner
from corral.grammar.rewrite.part import escape


class _Open:
    """A value that has begun; mutable. `held`: from where on it may be taken back."""

    __slots__ = ("counts", "held", "is_array", "item", "n", "name", "rules", "seen", "start", "step")

    def __init__(self, rules: Rules, kind: str, start: int, step: str) -> None:
        self.rules = rules
        self.is_array = kind == "array"
        self.start = start
        self.step = step
        self.held = start if rules.whole else -1
        self.n = 0  # items so far
        self.item = -1  # where the last one began, or a name
        self.name = ""  # of the next property
        self.seen: dict[str, int] = {}
        self.counts = [0] * len(rules.contains)


class ValueChecker:
    """Mutable. The text before `start` is not part of the value."""

    def __init__(self, locator: Locator, validator: Any, text: bytearray, start: int) -> None:
        self._locator = locator
        self._validator = validator  # of the client's schema
        self._text = text
        self._start = start
        self._stack: list[_Open] = []
        self._scanner = JsonScanner(self)
        self.violation: Violation | None = None

    @property
    def is_over(self) -> bool:
        return self._scanner.is_over

    @property
    def held_from(self) -> int | None:
        """Where what may still be taken back begins."""
        places = [place for value in self._stack for place in (value.held, value.item) if place >= 0]
        return min(places, default=None)

    def step(self, byte: int, at: int) -> None:
        self._scanner.step(byte, at)

    def finish(self, at: int) -> None:
        self._scanner.finish(at)

    def begin(self, kind: str, at: int) -> None:
        if not self._stack:
            self._stack.append(_Open(self._locator.rules_of_root(kind), kind, at, ""))
            return
        around = self._stack[-1]
        if around.is_array:
            rules = self._locator.rules_of_item(around.rules, around.n, kind)
            step = str(around.n)
            if around.rules.unique is not None or around.rules.contains:
                around.item = at
        else:
            rules = self._locator.rules_of_property(around.rules, around.name, kind)
            step = escape(around.name)
        self._stack.append(_Open(rules, kind, at, step))

    def begin_name(self, at: int) -> None:
        if self._stack[-1].rules.names:
            self._stack[-1].item = at

    def name(self, start: int, end: int) -> None:
        value = self._stack[-1]
        value.name = json.loads(self._text[start:end])
        value.item = -1
        for validator, pointer in value.rules.names:
            if not validator.is_valid(value.name):
                self._blame("propertyNames", pointer, start, escape(value.name))

    def end(self, at: int) -> None:
        self._check_whole(self._stack[-1], at)
        self._check_least(self._stack[-1])
        if self._stack[-1] is self._stack[0]:
            self._check_all(at)
        value = self._stack.pop()
        if self._stack and self._stack[-1].is_array:
            self._check_item(self._stack[-1], value.start, at)

    def _check_whole(self, value: _Open, at: int) -> None:
        for validator, pointer in value.rules.whole:
            self._note(validator, self._load(value.start, at), value.start, pointer)

    def _check_all(self, at: int) -> None:
        self._note(self._validator, self._load(self._start, at), self._start, "#")

    def _check_least(self, value: _Open) -> None:
        for count, rule in zip(value.counts, value.rules.contains, strict=True):
            if count < rule.least:
                start = value.item if value.item >= 0 else value.start
                self._blame("contains", rule.pointer, start, n_items=value.n)

    def _check_item(self, array: _Open, start: int, at: int) -> None:
        rules = array.rules
        array.n += 1
        if rules.unique is None and not rules.contains:
            return
        item = self._load(start, at)
        if rules.unique is not None:
            key = canonical(item)
            if key in array.seen:
                self._blame("uniqueItems", rules.unique, start, str(array.n - 1))
            array.seen[key] = array.n
        for i, rule in enumerate(rules.contains):
            array.counts[i] += rule.validator.is_valid(item)
            if rule.most is not None and array.counts[i] > rule.most:
                self._blame("contains", rule.pointer, start, str(array.n - 1))
        if not rules.contains:
            array.item = -1  # nothing later can make it wrong

    def _load(self, start: int, end: int) -> Any:
        return json.loads(self._text[start:end])

    def _note(self, validator: Any, value: Any, start: int, pointer: str) -> None:
        if self.violation is None and not validator.is_valid(value):
            error = next(iter(validator.iter_errors(value)))
            self.violation = _violation(error, start, pointer, self._path())

    def _blame(self, keyword: str, pointer: str, start: int, *more: str, n_items: int = 0) -> None:
        if self.violation is None:
            instance = "".join(f"/{step}" for step in (*self._path(), *more))
            self.violation = Violation(keyword, f"{pointer}/{keyword}", instance, start, n_items=n_items)

    def _path(self) -> list[str]:
        return [value.step for value in self._stack[1:]]


def _violation(error: jsonschema_rs.ValidationError, start: int, pointer: str, path: list[str]) -> Violation:
    steps = [str(step) for step in error.schema_path]
    instance = [*path, *(escape(str(step)) for step in error.instance_path)]
    names = [step for step in steps if not step.isdigit()]
    place = "/".join([pointer if pointer == "#" else "#", *map(escape, steps)])
    return Violation(names[-1] if names else "", place, "".join(f"/{step}" for step in instance), start)


def canonical(value: Any) -> str:
    """Return a text that is the same for values that JSON Schema takes for equal."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
