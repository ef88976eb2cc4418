"""Convert cases to a schema that is enforced exactly."""

from __future__ import annotations

from typing import Any

from corral.grammar.rewrite.case import Case, schema_of
from corral.grammar.rewrite.contain import contain_rules
from corral.grammar.rewrite.expand import Expander
from corral.grammar.rewrite.name import name_rules
from corral.grammar.rewrite.part import AT, MERGED, TYPES, Schema
from corral.grammar.rewrite.property_count import count_rules
from corral.grammar.rewrite.unique import unique_cases

MAX_ALTERNATIVES = 500


def finish(cases: list[Case], expander: Expander) -> Any:
    """Return one schema for all cases, without unsupported keywords."""
    final = [done for case in cases for done in _finish(case, expander)]
    if not final:
        return False
    plain = [case.type for case in final if not case.rules and case.values is None]
    if set(plain) >= set(TYPES):
        return {}
    values = _distinct(value for case in final for value in case.values or ())
    branches: list[Schema] = [{"enum": values}] if values else []
    if plain:
        names = list(dict.fromkeys(plain))
        branches.append({"type": names[0] if len(names) == 1 else names})
    branches += [schema_of(case) for case in final if case.rules]
    return branches[0] if len(branches) == 1 else {"anyOf": branches}


def _finish(case: Case, expander: Expander) -> list[Case]:
    if case.values is not None:
        return [case]
    if case.type == "object":
        rules = name_rules(case.rules, expander.expand, expander.accepts)
        return [] if rules is None else [Case("object", known) for known in count_rules(rules)]
    if case.type == "array":
        return [
            done
            for rules in contain_rules(case.rules, expander.is_within)
            for done in unique_cases(
                Case("array", rules), expander.expand, expander.are_apart, expander.accepts
            )
        ]
    return [case]


def _distinct(values: Any) -> list[Any]:
    return list({f"{type(value).__name__}{value!r}": value for value in values}.values())


def annotations_of(schema: Schema) -> Schema:
    """Return the keywords that do not restrict values and are kept."""
    kept = ("title", "description", "$defs", "definitions", AT)
    return {k: schema[k] for k in kept if k in schema and k != MERGED}
