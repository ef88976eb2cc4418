"""Before there is an application: nothing is answered otherwise than by it, and nothing it would refuse."""

from __future__ import annotations

import asyncio

import pytest

from corral.core.result import Loading, Stage
from corral.core.settings import ServerSettings
from corral.server.hosts import HostControl, allowed_names
from corral.server.listen import Reach
from corral.server.loading_app import LoadingApp
from tests.contract.inline import Server
from tests.contract.wire import Reply, ask

HEALTH = ["/health", "/v1/health"]


def loading(**server) -> Server:
    return Server(is_open=False, **server)


async def waiting(early: LoadingApp, **request) -> asyncio.Task[Reply]:
    """A request that has come as far as it can."""
    task = asyncio.create_task(ask(early, **request))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not task.done()
    return task


@pytest.mark.parametrize("server", [{}, {"api_keys": ("secret",)}], ids=["open", "with keys"])
@pytest.mark.parametrize("path", HEALTH)
async def test_health_is_answered_as_the_application_does(path, server):
    early = await ask(LoadingApp(), path=path)
    assert early == await ask(loading(**server).app, path=path)
    assert early.status == 503
    assert (early.error["message"], early.error["type"]) == ("Loading model", "unavailable_error")


async def test_health_tells_the_stage_as_it_is_now():
    now = Loading()
    early = LoadingApp(lambda: now)
    assert (await ask(early, path="/health")).error["stage"] == "loading"
    now = Loading(Stage.RE_ENCODING, 0.25, "why")
    error = (await ask(early, path="/health")).error
    assert (error["stage"], error["progress"], error["detail"]) == ("re-encoding", 0.25, "why")


@pytest.mark.parametrize("path", HEALTH)
async def test_head_is_answered_too(path):
    early = await ask(LoadingApp(), path=path, method="HEAD")
    later = await ask(loading().app, path=path, method="HEAD")
    assert (early.status, early.headers) == (later.status, later.headers)
    assert early.status == 503


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        ({"path": "/"}, 200),
        ({"path": "/props"}, 503),
        ({"path": "/nowhere"}, 404),
        ({"path": "/health", "method": "POST"}, 405),
        ({"path": "/health/"}, 404),
        ({"path": "/completion", "method": "POST", "body": b'{"prompt": "a"}'}, 503),
    ],
    ids=str,
)
async def test_all_else_waits_and_is_the_applications_business(request_, status):
    early, app = LoadingApp(), loading().app
    task = await waiting(early, **request_)
    early.open(app)
    reply = await task
    assert reply == await ask(app, **request_)
    assert reply.status == status


async def test_nobody_gets_past_the_keys():
    early = LoadingApp()
    task = await waiting(early, path="/completion", method="POST", body=b"{}")
    early.open(loading(api_keys=("secret",)).app)
    assert (await task).status == 401


async def test_names_of_the_server_count_from_the_beginning():
    guarded = HostControl(LoadingApp(), allowed_names(ServerSettings(), Reach.LOCAL))
    assert (await ask(guarded, ("host", "localhost"))).status == 503
    assert (await ask(guarded, ("host", "evil.example"))).status == 403


@pytest.mark.parametrize("path", HEALTH)
async def test_once_it_is_open_the_application_tells_how_it_is(path):
    early = LoadingApp()
    assert (await ask(early, path=path)).status == 503
    early.open(Server().app)
    assert (await ask(early, path=path)).status == 200


async def test_one_who_leaves_takes_nobody_along():
    early = LoadingApp()
    left, stays = await waiting(early, path="/"), await waiting(early, path="/")
    left.cancel()
    await asyncio.wait({left})
    early.open(loading().app)
    assert (await stays).status == 200


async def test_without_an_application_nobody_waits_for_ever():
    early = LoadingApp()
    task = await waiting(early, path="/")
    early.give_up()
    early.open(Server().app)
    assert (await task).error["message"] == "Loading model"
    assert (await ask(early, path="/")).status == 503


async def test_who_gives_up_once_it_is_open_changes_nothing():
    early = LoadingApp()
    early.open(Server().app)
    early.give_up()
    assert (await ask(early)).status == 200
