"""Expand a schema to the union of its cases: every keyword that combines schemas is applied here.

Schemas of properties and items are inspected only to see whether they allow anything at all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import combinations
from typing import Any

import jsonschema_rs

from corral.grammar.rewrite.case import Case, cases_of, type_of
from corral.grammar.rewrite.merge import absent, item_of, merge, present, property_of
from corral.grammar.rewrite.part import AT, TYPES, NotExact, Schema, is_any
from corral.grammar.rewrite.subtract import subtract
from corral.grammar.rewrite.unevaluated import close_rest
from corral.grammar.schema import resolve

MAX_CASES = 128  # of one part
MAX_WORK = 20_000  # combinations of two cases, for a whole schema
MAX_BRANCHES = 5  # of `anyOf` under `unevaluated...`: any subset of them may have evaluated a property
MAX_LOOK = 3  # levels in which empty schemas are detected

_UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")


class Expander:
    """The definitions of one schema, and the work spent on it."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._defs = {k: root[k] for k in ("$defs", "definitions") if k in root}
        self._n_work = 0
        self._n_looks = 0
        self._n_tracking = 0  # enclosing parts with `unevaluated...`
        self._open_refs: list[str] = []

    def expand(self, schema: Any) -> list[Case]:
        """Return the cases whose union is the schema. Raises NotExact with the place if that is
        impossible."""
        if isinstance(schema, bool):
            return [Case(name) for name in TYPES] if schema else []
        try:
            return self._expand(schema)
        except NotExact as error:
            error.place(schema, "")
            raise

    def accepts(self, value: Any, schema: Any) -> bool:
        """Whether a value is valid against a schema."""
        whole = {**self._defs, **schema} if isinstance(schema, dict) else schema
        try:
            return jsonschema_rs.is_valid(whole, value, validate_formats=True, retriever=_refuse)
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            raise NotExact("$ref", str(error).splitlines()[0][:200]) from None

    def is_empty(self, schema: Any) -> bool:
        """Whether a schema provably allows nothing."""
        if isinstance(schema, bool) or is_any(schema) or self._n_looks >= MAX_LOOK:
            return schema is False
        self._n_looks += 1
        try:
            return not self.expand(schema)
        except NotExact:
            return False
        finally:
            self._n_looks -= 1

    def are_apart(self, a: Any, b: Any) -> bool:
        """Whether two schemas provably have no value in common."""
        return self.is_empty({"allOf": [a, b]})

    def is_within(self, a: Any, b: Any) -> bool:
        """Whether one schema is provably a subset of another."""
        try:
            return not self._minus(self.expand(a), self.expand(b))
        except NotExact:
            return False

    def _expand(self, schema: Schema) -> list[Case]:
        is_tracking = any(keyword in schema for keyword in _UNEVALUATED)
        self._n_tracking += is_tracking
        try:
            cases = cases_of(schema)
            for keyword, apply in self._steps().items():
                if keyword in schema:
                    cases = self._blame(keyword, apply, cases, schema)
        finally:
            self._n_tracking -= is_tracking
        if is_tracking:
            closed = (close_rest(case, schema, self.accepts) for case in cases)
            cases = self._alive(case for case in closed if case is not None)
        return cases

    def _steps(self) -> dict[str, Callable[[list[Case], Schema], list[Case]]]:
        return {
            "enum": self._take_enum,
            "const": self._take_const,
            "$ref": self._take_ref,
            "allOf": self._take_all,
            "anyOf": self._take_any,
            "oneOf": self._take_one,
            "not": self._take_not,
            "if": self._take_if,
            "dependentRequired": self._take_dependent_names,
            "dependentSchemas": self._take_dependent_schemas,
        }

    def _blame(
        self,
        keyword: str,
        apply: Callable[[list[Case], Schema], list[Case]],
        cases: list[Case],
        schema: Schema,
    ) -> list[Case]:
        try:
            return _check_number(apply(cases, schema))
        except NotExact as error:
            error.place(schema, keyword)
            raise

    def _take_enum(self, cases: list[Case], schema: Schema) -> list[Case]:
        return self._meet(cases, _finite(schema["enum"]))

    def _take_const(self, cases: list[Case], schema: Schema) -> list[Case]:
        return self._meet(cases, _finite([schema["const"]]))

    def _take_ref(self, cases: list[Case], schema: Schema) -> list[Case]:
        name = schema["$ref"]
        if name in self._open_refs:
            raise NotExact("$ref", "it refers to itself without anything in between")
        self._open_refs.append(name)
        try:
            return self._meet(cases, self.expand(self.target(schema)))
        finally:
            self._open_refs.pop()

    def target(self, schema: Schema) -> Any:
        name = schema["$ref"]
        found = self._root if name == "#" else resolve({"$ref": name}, self._root)
        if not found or found.get("$ref") == name:
            raise NotExact("$ref", f"{name!r:.100} is not in the schema")
        return found

    def _take_all(self, cases: list[Case], schema: Schema) -> list[Case]:
        for part in schema["allOf"]:
            cases = self._meet(cases, self.expand(part))
        return cases

    def _take_any(self, cases: list[Case], schema: Schema) -> list[Case]:
        branches = [self.expand(part) for part in schema["anyOf"]]
        if not self._n_tracking:
            return self._meet(cases, [case for branch in branches for case in branch])
        if len(branches) > MAX_BRANCHES:
            reason = f"more than {MAX_BRANCHES} branches could have looked at a property"
            fault = NotExact(
                "unevaluatedProperties", reason, "use oneOf with branches that exclude each other"
            )
            fault.pointer = str(schema.get(AT, "#"))
            raise fault
        found: list[Case] = []
        for n in range(1, len(branches) + 1):
            for chosen in combinations(branches, n):
                met = cases
                for branch in chosen:
                    met = self._meet(met, branch)
                found += met
        return found

    def _take_one(self, cases: list[Case], schema: Schema) -> list[Case]:
        branches = [self.expand(part) for part in schema["oneOf"]]
        found: list[Case] = []
        for i, branch in enumerate(branches):
            others = [case for j, other in enumerate(branches) if j != i for case in other]
            found += self._minus(self._meet(cases, branch), others)
        return found

    def _take_not(self, cases: list[Case], schema: Schema) -> list[Case]:
        return self._minus(cases, self.expand(schema["not"]))

    def _take_if(self, cases: list[Case], schema: Schema) -> list[Case]:
        condition = self.expand(schema["if"])
        met = self._meet(cases, condition)
        if "then" in schema:
            met = self._meet(met, self.expand(schema["then"]))
        rest = self._minus(cases, condition)
        if "else" in schema:
            rest = self._meet(rest, self.expand(schema["else"]))
        return met + rest

    def _take_dependent_names(self, cases: list[Case], schema: Schema) -> list[Case]:
        for name, needed in schema["dependentRequired"].items():
            cases = self._depend(cases, name, [Case("object", {"required": list(needed)})])
        return cases

    def _take_dependent_schemas(self, cases: list[Case], schema: Schema) -> list[Case]:
        for name, part in schema["dependentSchemas"].items():
            cases = self._depend(cases, name, self.expand(part))
        return cases

    def _depend(self, cases: list[Case], name: str, then: list[Case]) -> list[Case]:
        """Apply `then` to objects with the property. Objects without it, and other values, are unchanged."""
        found: list[Case] = []
        for case in cases:
            if case.type != "object":
                found.append(case)
                continue
            without, having = absent(case, name, self.accepts), present(case, [name], self.accepts)
            found += self._alive([] if without is None else [without])
            found += self._meet([] if having is None else [having], then)
        return found

    def _meet(self, a: list[Case], b: list[Case]) -> list[Case]:
        self._work(len(a) * len(b))
        merged = (merge(x, y, self.accepts) for x in a for y in b)
        return self._alive(case for case in merged if case is not None)

    def _minus(self, cases: list[Case], others: list[Case]) -> list[Case]:
        for other in others:
            kept: list[Case] = []
            for case in cases:
                is_apart = not self._meet([case], [other])
                kept += [case] if is_apart else subtract(case, other, self.accepts)
            cases = self._alive(kept)
        return cases

    def _alive(self, cases: Iterable[Case]) -> list[Case]:
        return _check_number([case for case in cases if not self._is_dead(case)])

    def _is_dead(self, case: Case) -> bool:
        if case.values is not None:
            return False
        if case.type == "object":
            names = case.rule("required", [])
            return any(self.is_empty(property_of(case.rules, name, self.accepts)) for name in names)
        if case.type == "array":
            n = min(case.rule("minItems", 0), 1 + len(case.rule("prefixItems", [])))
            return any(self.is_empty(item_of(case.rules, i)) for i in range(n))
        return False

    def _work(self, n: int) -> None:
        self._n_work += n
        if self._n_work > MAX_WORK:
            raise NotExact("", "the schema has too many combinations", "use fewer alternatives")


def _check_number(cases: list[Case]) -> list[Case]:
    if len(cases) > MAX_CASES:
        raise NotExact("", f"it has more than {MAX_CASES} combinations", "use fewer alternatives")
    return cases


def _finite(values: list[Any]) -> list[Case]:
    """Group values by type, without duplicates."""
    groups: dict[str, dict[str, Any]] = {}
    for value in values:
        groups.setdefault(type_of(value), {})[_key(value)] = value
    return [Case(name, {}, tuple(group.values())) for name, group in groups.items()]


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _refuse(uri: str) -> Any:
    raise ValueError(f"{uri:.200} is not part of the schema")
