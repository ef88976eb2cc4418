"""What clients see is what they saw: every case answers as recorded, and nothing is left out."""

from __future__ import annotations

import pytest

from corral.server.app import declared_routes
from tests.golden.case import Act, Ask, Begin, Case
from tests.golden.cases.dialect import FEATURES, Dialect
from tests.golden.play import play
from tests.golden.recording import groups, modules, recorded, write

_CASES = [(group, case) for group, cases in groups().items() for case in cases]
_DIALECTS: list[Dialect] = [each for module in modules().values() for each in getattr(module, "DIALECTS", ())]


@pytest.mark.parametrize(
    ("group", "case"), [pytest.param(*each, id=f"{each[0]}: {each[1].name}") for each in _CASES]
)
async def test_answers_are_as_recorded(group: str, case: Case) -> None:
    assert (await play(case)).splitlines() == recorded(group)[case.name].splitlines()


@pytest.mark.parametrize("group", groups())
def test_cases_and_recordings_are_the_same(group: str) -> None:
    assert [case.name for case in groups()[group]] == list(recorded(group))


def test_a_recording_is_not_written_over() -> None:
    with pytest.raises(FileExistsError):
        write(next(iter(groups())), [])


def test_every_operation_has_a_case() -> None:
    asked = {
        (ask.method.lower(), _fixed(ask.path)) for _, case in _CASES for ask in map(_ask_of, case.acts) if ask
    }
    missing = [
        (route.method, route.path_format)
        for route in declared_routes()
        if route.operation is not None
        and not any(
            method == route.method.lower() and _is_at(route.path_format, each) for method, each in asked
        )
    ]
    assert missing == []


@pytest.mark.parametrize("dialect", _DIALECTS, ids=lambda dialect: dialect.name)
def test_every_dialect_shows_every_feature(dialect: Dialect) -> None:
    assert {*dialect.features, *dialect.lacks} == set(FEATURES)
    assert not dialect.features.keys() & dialect.lacks.keys()


def _ask_of(act: Act) -> Ask | None:
    return act.ask if isinstance(act, Begin) else act if isinstance(act, Ask) else None


def _fixed(path: str) -> str:
    return path.partition("?")[0]


def _is_at(template: str, path: str) -> bool:
    """Whether a path is one of those of a route."""
    parts, given = template.split("/"), path.split("/")
    return len(parts) == len(given) and all(
        p == g or p.startswith("{") for p, g in zip(parts, given, strict=True)
    )
