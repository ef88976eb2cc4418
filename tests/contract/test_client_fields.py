"""Every field that a client's request types have: it is used, named in a warning, or refused in that API's
own shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from typing_extensions import is_typeddict

from tests.contract import client_fields
from tests.contract.client_fields import REPLAYED, Fields, Route
from tests.contract.client_types import fields_of, sample, walk
from tests.contract.inline import Server
from tests.contract.scripted import ScriptedBackend
from tests.unit.fake import FakeBackend, FakeEncoder
from tests.unit.fake_projector import FakeProjector

ROUTES = [value for value in vars(client_fields).values() if isinstance(value, Route)]
Build = Callable[[Any], dict[str, Any]]


@dataclass(frozen=True)
class Spot:
    """An object of a request. `build` returns a request with a value in this place."""

    route: Route
    kind: Any
    build: Build

    @property
    def name(self) -> str:
        return self.kind.__qualname__

    @property
    def is_root(self) -> bool:
        return self.kind is self.route.root

    @property
    def is_foreign(self) -> bool:
        return self.name in self.route.foreign.split()

    @property
    def fields(self) -> Fields:
        return self.route.types[self.name]

    @property
    def value(self) -> Any:
        """An object of this type with the fields that it must have."""
        if self.is_root:
            return {}
        return self.route.values[self.name] if self.name in self.route.values else sample(self.kind)

    def value_of(self, field: str) -> Any:
        for name in (f"{self.name}.{field}", field):
            if name in self.route.values:
                return self.route.values[name]
        return sample(fields_of(self.kind)[field])


@cache
def spots_of(route: Route) -> list[Spot]:
    """Every type of a route's requests, without those inside of what is not used."""
    found: dict[Any, Spot] = {}
    todo = [Spot(route, route.root, lambda value: {**route.base, **value})]
    while todo:
        spot = todo.pop(0)
        if spot.kind in found:
            continue
        found[spot.kind] = spot
        if spot.name in route.types and not route.is_flat:
            todo += _inside(spot)
    return list(found.values())


def _inside(spot: Spot) -> Iterator[Spot]:
    hints = fields_of(spot.kind)
    for field in [name for name in hints if name in spot.fields.used.split()]:
        for kind, path in walk(hints[field]):
            is_request = is_typeddict(kind) == is_typeddict(spot.route.root)
            if is_request and spot.route.parents.get(kind.__qualname__, spot.name) == spot.name:
                yield Spot(spot.route, kind, _nest(spot, field, len(path)))


def _nest(spot: Spot, field: str, depth: int) -> Build:
    def build(value: Any) -> dict[str, Any]:
        for _ in range(depth):
            value = [value]
        return spot.build({**spot.value, field: value})

    return build


def cases(route: Route, *groups: str) -> Iterator[tuple[Spot, str]]:
    for spot in spots_of(route):
        if spot.is_foreign or spot.name not in route.types or spot.value is None:
            continue
        names = [name for group in groups for name in getattr(spot.fields, group).split()]
        yield from ((spot, name) for name in names if name in fields_of(spot.kind))


@pytest.fixture
def server(route):
    if route is client_fields.COMPACT:
        backend: FakeBackend = (scripted := ScriptedBackend())
        scripted.script = "A summary."
    else:
        backend = FakeBackend(n_ctx=2048, encoder=FakeEncoder())
    backend.projector = FakeProjector()
    return Server(backend)


async def ask(server: Server, spot: Spot, value: Any) -> tuple[int, dict[str, Any]]:
    """Return the status and the answer, whose error has the shape of its API."""
    response = await server.http.post(spot.route.path, json=spot.build(value))
    answer = response.json()
    if response.status_code >= 400:
        assert response.status_code < 500, answer
        error = answer["error"]
        assert isinstance(error if spot.route.path.startswith("/api") else error["message"], str)
        assert (answer.get("type") == "error") == spot.route.path.startswith("/v1/messages")
    return response.status_code, answer


async def ask_field(server: Server, spot: Spot, field: str) -> tuple[int, dict[str, Any]]:
    return await ask(server, spot, {**spot.value, field: spot.value_of(field)})


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_every_field_is_in_the_table(route):
    known = {name: fields.all for name, fields in route.types.items()}
    spots = [spot for spot in spots_of(route) if not spot.is_foreign]
    unknown = {spot.name: set(fields_of(spot.kind)) - known.get(spot.name, set()) for spot in spots}
    assert {name: fields for name, fields in unknown.items() if fields} == {}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
async def test_used_fields_are_accepted(server, route):
    for spot, field in cases(route, "used", "kept"):
        if spot.value_of(field) is not None:
            status, answer = await ask_field(server, spot, field)
            assert (status, answer.get("warnings")) == (200, None), (spot.name, field, answer)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
async def test_other_fields_are_named(server, route):
    for spot, field in cases(route, "named"):
        status, answer = await ask_field(server, spot, field)
        told = answer["error"] if status >= 400 else answer.get("warnings")
        assert field in str(told), (spot.name, field, answer)


@pytest.mark.parametrize("route", [route for route in ROUTES if route.foreign], ids=lambda route: route.path)
async def test_objects_of_other_servers_are_named(server, route):
    for spot in spots_of(route):
        if spot.is_foreign and spot.name not in REPLAYED:
            status, answer = await ask(server, spot, spot.value)
            assert status == 400 or answer["warnings"], (spot.name, answer)
