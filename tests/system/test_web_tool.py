"""The built-in tool that reads pages: real servers on the loopback, through a session like any other."""

from __future__ import annotations

import pytest

from corral.core.client import ANONYMOUS
from corral.mcp.sessions import McpSessions
from corral.mcp.web import WEB, WebTransport, web_server
from corral.media.remote import MAX_PAGE_BYTES, RemoteMedia
from tests.contract.inline import Server
from tests.tools.site import LATE_S, Site, answer, is_here, redirect

LONG = "word " * 10_000


@pytest.fixture
async def sessions():
    opened = McpSessions((web_server(),), lambda: WebTransport(RemoteMedia(LATE_S, is_here)))
    yield opened
    await opened.close()


async def read(sessions: McpSessions, **arguments: object) -> tuple[str, bool]:
    """The text, and whether it is an error."""
    result = await sessions.call(ANONYMOUS, WEB, "read_url", arguments)
    (part,) = result["content"]
    return part["text"], result.get("isError", False)


async def test_a_page_is_read(sessions):
    (tool,) = await sessions.tools(ANONYMOUS, WEB)
    assert (tool.full_name, tool.annotations["readOnlyHint"]) == ("web_read_url", True)
    page = answer(b"<title>Foxes</title><script>x</script><p>They swim.", Content_Type="text/html")
    async with Site({"/a": page, "/b": redirect("/a")}) as site:
        assert await read(sessions, url=f"{site.url}/b") == ("Foxes\nThey swim.", False)


async def test_a_long_text_comes_in_pieces(sessions):
    async with Site({"/": answer(LONG.encode(), Content_Type="text/plain")}) as site:
        text, start, whole = "", 0, LONG.strip()
        while start < len(whole):
            piece, is_error = await read(sessions, url=f"{site.url}/", start=start)
            assert not is_error
            body, _, note = piece.rpartition("\n[")
            assert str(len(whole)) in note
            text, start = text + body, start + len(body)
        assert text == whole
        assert not (await read(sessions, url=f"{site.url}/", start=len(whole)))[1]


@pytest.mark.parametrize(
    "page",
    [
        answer(b"\x89PNG", Content_Type="image/png"),
        answer(b"no", 404),
        answer(b"x" * (MAX_PAGE_BYTES + 1), Content_Type="text/plain"),
        redirect("http://127.0.0.2/"),
        redirect("file:///etc/passwd"),
    ],
)
async def test_what_cannot_be_read_is_told_to_the_model(sessions, page):
    async with Site({"/": page}) as site:
        assert (await read(sessions, url=f"{site.url}/"))[1]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"url": 1},
        {"url": "file:///etc/passwd"},
        {"url": "http://a:b@c/"},
        {"url": "http://x/", "start": -1},
    ],
)
async def test_wrong_arguments(sessions, arguments):
    assert (await read(sessions, **arguments))[1]


async def test_only_with_the_operators_yes():
    body = {"tool": "web_read_url", "params": {"url": "http://127.0.0.1:1/"}}
    server = Server(allow_remote_media=True)
    listed = (await server.http.get("/tools")).json()
    assert [tool["tool"] for tool in listed] == ["web_read_url"]
    assert listed[0]["permissions"] == {"write": False}
    result = (await server.http.post("/tools", json=body)).json()
    assert result["isError"] is True
    assert "not public" in result["content"][0]["text"]
    other = Server()
    assert (await other.http.post("/tools", json=body)).status_code == 403
