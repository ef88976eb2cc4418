"""Files of --path: those of one directory, and nothing else on the disk."""

from __future__ import annotations

import os
import socket

import httpx
import pytest

from corral.core.errors import CorralError
from corral.server.page import open_static
from corral.server.prefix import under_prefix
from tests.contract.inline import Server
from tests.contract.wire import MISSING


@pytest.fixture
def page(tmp_path):
    """A directory with a page, beside one with a secret."""
    (tmp_path / "secret").write_text("secret")
    page = tmp_path / "page"
    (page / "sub").mkdir(parents=True)
    (page / "index.html").write_text("<h1>hello</h1>")
    (page / "sub" / "index.html").write_text("<h1>sub</h1>")
    (page / "empty").mkdir()
    (page / "app.js").write_text("1")
    return page


async def test_a_page(page):
    server = Server(static_path=str(page))
    for path in ("/", "/index.html"):
        response = await server.http.get(path)
        assert (response.status_code, response.text) == (200, "<h1>hello</h1>")
        assert response.headers["content-type"].startswith("text/html")
        assert response.headers["x-content-type-options"] == "nosniff"
    assert (await server.http.get("/sub/")).text == "<h1>sub</h1>"
    redirect = await server.http.get("/sub")
    assert redirect.status_code == 307
    assert redirect.headers["location"] == "./sub/"


async def test_redirects_keep_prefixes_and_queries(page):
    (page / "sub" / "a:b").mkdir()
    (page / "sub" / "a:b" / "index.html").write_text("deep")
    app = under_prefix(Server(static_path=str(page)).app, "/pre/fix")
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://corral", follow_redirects=True
    ) as http:
        for path, query, found in (("/sub", b"x=1", "<h1>sub</h1>"), ("/sub/a:b", b"", "deep")):
            response = await http.get(f"/pre/fix{path}", params=query.decode())
            assert (response.status_code, response.text) == (200, found)
            assert (response.url.path, response.url.query) == (f"/pre/fix{path}/", query)


async def test_head_has_everything_but_the_body(page):
    server = Server(static_path=str(page))
    same = {"x-request-id": "same"}
    get, head = [await server.http.request(method, "/app.js", headers=same) for method in ("GET", "HEAD")]
    assert head.status_code == 200
    assert head.content == b""
    assert head.headers == get.headers


@pytest.mark.parametrize(
    ("name", "media_type"),
    [
        ("a.html", "text/html"),
        ("a.css", "text/css"),
        ("a.js", "text/javascript"),
        ("a.mjs", "text/javascript"),
        ("a.json", "application/json"),
        ("a.js.map", "application/json"),
        ("a.svg", "image/svg+xml"),
        ("a.png", "image/png"),
        ("a.webp", "image/webp"),
        ("a.woff2", "font/woff2"),
        ("a.wasm", "application/wasm"),
        ("a.webmanifest", "application/manifest+json"),
        ("a", "application/octet-stream"),
        ("ä b.txt", "text/plain"),
    ],
)
async def test_types(page, name, media_type):
    (page / name).write_text("x")
    response = await Server(static_path=str(page)).http.get("/" + name)
    assert response.status_code == 200
    assert response.headers["content-type"].split(";")[0] == media_type


async def test_what_a_browser_has_is_not_sent_again(page):
    server = Server(static_path=str(page))
    first = await server.http.get("/app.js")
    for name, header in (("etag", "if-none-match"), ("last-modified", "if-modified-since")):
        again = await server.http.get("/app.js", headers={header: first.headers[name]})
        assert (again.status_code, again.content) == (304, b"")
    (page / "app.js").write_text("123")
    assert (await server.http.get("/app.js", headers={"if-none-match": first.headers["etag"]})).text == "123"
    part = await server.http.get("/app.js", headers={"range": "bytes=1-1"})
    assert (part.status_code, part.content) == (206, b"2")


@pytest.mark.parametrize(
    "path",
    [
        "/none",
        "/empty",
        "/empty/",
        "/index.html/x",
        "/sub/none",
        "/" + "a" * 5000,
        "/a%00b",
        "/%ff",
    ],
)
async def test_what_is_not_there_has_the_shape_of_all_errors(page, path):
    (page / "404.html").write_text("a page for people")
    response = await Server(static_path=str(page)).http.get(path)
    assert (response.status_code, response.json()) == (404, MISSING)


def raw_paths() -> list[str]:
    """As they would be in a scope: already decoded."""
    ups = [
        "../secret",
        "/../secret",
        "sub/../../secret",
        "./../secret",
        "..//secret",
        "....//secret",
        "..\\secret",
    ]
    return [
        *("/" + up for up in ups),
        "//secret",
        "/" + "../" * 30 + "etc/passwd",
        "//etc/passwd",
        "/\\etc\\passwd",
    ]


@pytest.mark.parametrize("path", raw_paths())
async def test_nothing_above_the_directory(page, path):
    """Without a client in between that tidies paths up."""
    app = Server(static_path=str(page)).app
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.disconnect"}

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [],
        "root_path": "",
        "scheme": "http",
        "server": ("corral", 80),
    }
    await app(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in sent)
    assert sent[0]["status"] == 404
    assert b"secret" not in body
    assert b"root:" not in body


async def test_links_out_of_the_directory_lead_nowhere(page):
    (page / "out").symlink_to(page.parent / "secret")
    (page / "up").symlink_to(page.parent)
    (page / "in").symlink_to(page / "app.js")
    (page / "round").symlink_to(page / "round")
    server = Server(static_path=str(page))
    for path in ("/out", "/up/secret", "/up/page/index.html/../../secret", "/round", "/round/x"):
        assert (await server.http.get(path)).status_code == 404, path
    assert (await server.http.get("/in")).text == "1"


async def test_hidden_files_are_not_served(page):
    (page / ".env").write_text("secret")
    (page / ".git").mkdir()
    (page / ".git" / "config").write_text("secret")
    (page / ".well-known").mkdir()
    (page / ".well-known" / "security.txt").write_text("mail us")
    server = Server(static_path=str(page))
    for path in ("/.env", "/.git/config", "/sub/../.env"):
        assert (await server.http.get(path)).status_code == 404
    assert (await server.http.get("/.well-known/security.txt")).text == "mail us"


async def test_what_is_no_file_is_not_served(page):
    os.mkfifo(page / "pipe")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(page / "s.sock"))
        server = Server(static_path=str(page))
        assert (await server.http.get("/pipe")).status_code == 404
        assert (await server.http.get("/s.sock")).status_code == 404


async def test_routes_win(page):
    for name in ("health", "completion", "docs"):
        (page / name).write_text("a file")
    server = Server(static_path=str(page))
    assert (await server.http.get("/health")).json()["status"] == "ok"
    assert (await server.http.get("/completion")).status_code == 405
    assert "a file" not in (await server.http.get("/docs")).text
    assert (await server.http.post("/completion", json={"prompt": "a", "n_predict": 1})).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_files_are_only_read(page, method):
    response = await Server(static_path=str(page)).http.request(method, "/index.html")
    assert response.status_code == response.json()["error"]["code"] == 405
    assert response.headers["allow"] == "GET, HEAD"
    assert (page / "index.html").read_text() == "<h1>hello</h1>"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_what_is_not_there_can_do_nothing(page, method):
    for server in (Server(static_path=str(page)), Server()):
        for path in ("/none", "/v1/none", "/api/none"):
            response = await server.http.request(method, path)
            assert response.status_code == 404
            assert path.startswith("/api/") or response.json() == MISSING


async def test_a_page_is_there_while_the_model_loads(page):
    server = Server(is_open=False, static_path=str(page))
    assert (await server.http.get("/")).status_code == 200


async def test_without_a_page_there_is_nothing(page):
    for server in (Server(ui=False), Server(ui=False, static_path=str(page))):
        for path in ("/", "/index.html", "/monitor", "/completion.js", "/corral/server/page.py"):
            response = await server.http.get(path)
            assert (response.status_code, response.json()) == (404, MISSING)


@pytest.mark.parametrize("name", ["none", "file"])
def test_a_path_that_is_no_directory_is_an_error(tmp_path, name):
    (tmp_path / "file").write_text("")
    with pytest.raises(CorralError, match="--path '"):
        open_static(str(tmp_path / name))
