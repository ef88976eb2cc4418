"""The page that comes with the server: who gets it, with which headers, and what there is instead of it."""

from __future__ import annotations

import gzip
import re

import pytest

from corral.core.errors import CorralError
from corral.server.page import FOLDER
from tests.contract.inline import Server
from tests.contract.wire import MISSING

FILES = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file())
PLAIN = {"accept-encoding": "identity"}
POLICY = {
    "default-src": "'self'",
    "img-src": "'self' data: blob:",
    "media-src": "'self' data: blob:",
    "object-src": "'none'",
    "base-uri": "'none'",
    "frame-ancestors": "'none'",
    "form-action": "'none'",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Stands for the package's own."""
    monkeypatch.setattr("corral.server.page.FOLDER", tmp_path)
    (tmp_path / "index.html").write_text("<h1>page</h1>")
    (tmp_path / "monitor.html").write_text("<h1>monitor</h1>")
    (tmp_path / "js").mkdir()
    (tmp_path / "js" / "main.js").write_text("export const n = 1;\n" * 50)
    return tmp_path


async def test_every_file_of_the_package_is_served_as_it_is():
    server = Server()
    assert {"index.html", "completion.js"} <= set(FILES)
    for name in FILES:
        response = await server.http.get("/" + name)
        assert response.status_code == 200, name
        assert response.content == (FOLDER / name).read_bytes(), name


@pytest.mark.parametrize("path", ["/", "/completion.js", "/css/base.css", "/docs", "/docs/docs.js"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_headers_that_keep_a_page_to_itself(path, method):
    response = await Server().http.request(method, path)
    assert response.status_code == 200
    said = dict(part.strip().split(" ", 1) for part in response.headers["content-security-policy"].split(";"))
    assert said == POLICY
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["x-frame-options"] == "DENY"
    assert response.headers["referrer-policy"] == "no-referrer"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["vary"] == "accept-encoding"


async def test_pages_and_their_types(folder):
    server = Server()
    for path, text in (("/", "page"), ("/index.html", "page"), ("/monitor", "monitor")):
        response = await server.http.get(path)
        assert (response.status_code, response.text) == (200, f"<h1>{text}</h1>")
        assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert (await server.http.get("/js/main.js")).headers["content-type"] == "text/javascript; charset=utf-8"
    for path in ("/monitor/", "/js", "/js/", "/js/none.js"):
        response = await server.http.get(path)
        assert (response.status_code, response.json()) == (404, MISSING), path


async def test_browsers_find_an_icon_for_whatever_they_show():
    response = await Server().http.get("/favicon.ico")
    assert (response.status_code, response.headers["content-type"]) == (200, "image/svg+xml")


async def test_a_page_of_the_monitor_is_optional(folder):
    (folder / "monitor.html").unlink()
    assert (await Server().http.get("/monitor")).json() == MISSING


async def test_files_are_sent_again_only_if_their_content_has_changed(folder):
    server, path = Server(), folder / "js" / "main.js"
    first = await server.http.get("/js/main.js")
    etag = first.headers["etag"]
    for shown in (etag, f"W/{etag}", f'"x", {etag}', "*"):
        again = await server.http.get("/js/main.js", headers={"if-none-match": shown})
        assert (again.status_code, again.content) == (304, b""), shown
        assert again.headers["etag"] == etag
        assert "content-security-policy" in again.headers
    assert (await server.http.get("/js/main.js", headers={"if-none-match": '"x"'})).status_code == 200
    # An upgrade may leave the date and the size as they were, or make files older.
    stat = path.stat()
    path.write_text(path.read_text().replace("1", "2"))
    assert path.stat().st_size == stat.st_size
    later = {"if-none-match": etag, "if-modified-since": "Fri, 01 Jan 2100 00:00:00 GMT"}
    changed = await server.http.get("/js/main.js", headers=later)
    assert (changed.status_code, changed.text) == (200, path.read_text())
    assert "last-modified" not in changed.headers
    fresh = await Server().http.get("/js/main.js")
    assert fresh.headers["etag"] == changed.headers["etag"] != etag


@pytest.mark.parametrize(
    ("accepts", "is_packed"),
    [
        ("gzip", True),
        ("gzip, deflate, br, zstd", True),
        ("br;q=1.0, GZIP;q=0.8", True),
        ("*", True),
        ("identity", False),
        ("br", False),
        ("gzip;q=0", False),
        ("gzip; q=0.000, *", False),
        ("", False),
    ],
)
async def test_compressed_for_those_who_can_read_it(folder, accepts, is_packed):
    server = Server()
    async with server.http.stream("GET", "/js/main.js", headers={"accept-encoding": accepts}) as response:
        raw = b"".join([part async for part in response.aiter_raw()])
    content = (folder / "js" / "main.js").read_bytes()
    assert response.headers.get("content-encoding", "") == ("gzip" if is_packed else "")
    assert (gzip.decompress(raw) if is_packed else raw) == content
    assert response.headers["content-length"] == str(len(raw))
    assert (len(raw) < len(content) / 4) is is_packed


async def test_compressed_or_not_is_another_thing_to_have(folder):
    server = Server()
    packed = await server.http.get("/js/main.js")
    plain = await server.http.get("/js/main.js", headers=PLAIN)
    assert packed.headers["etag"] != plain.headers["etag"]
    shown = {**PLAIN, "if-none-match": packed.headers["etag"]}
    assert (await server.http.get("/js/main.js", headers=shown)).status_code == 200


async def test_what_does_not_become_smaller_is_not_compressed(folder):
    noise = bytes(range(256)) * 2
    (folder / "a.woff2").write_bytes(gzip.compress(noise))
    response = await Server().http.get("/a.woff2")
    assert "content-encoding" not in response.headers
    assert response.headers["content-type"] == "font/woff2"
    assert gzip.decompress(response.content) == noise


async def test_head_has_everything_but_the_body(folder):
    server = Server()
    for headers in ({}, PLAIN):
        same = {**headers, "x-request-id": "same"}
        get, head = [await server.http.request(method, "/", headers=same) for method in ("GET", "HEAD")]
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers == get.headers


async def test_the_page_needs_no_key_but_the_routes_do():
    server = Server(api_keys=("secret",), slots=True, metrics=True, props=True)
    for path in ("/", "/completion.js", "/css/base.css"):
        assert (await server.http.get(path)).status_code == 200
        assert (await server.http.head(path)).status_code == 200
        assert (await server.http.post(path)).status_code == 401
    assert (await server.http.get("/none")).status_code == 404
    for path in (
        "/slots",
        "/completion",
        "/metrics",
        "/docs",
        "/docs/docs.js",
        "/docs/none",
        "/openapi.json",
    ):
        assert (await server.http.get(path)).status_code == 401, path
    key = {"x-api-key": "secret"}
    assert (await server.http.get("/docs/docs.js", headers=key)).status_code == 200


async def test_the_page_is_there_while_the_model_loads():
    server = Server(is_open=False)
    assert (await server.http.get("/")).status_code == 200
    assert (await server.http.get("/props")).status_code == 503


async def test_somebodys_own_page_instead(tmp_path):
    (tmp_path / "index.html").write_text("<script>1</script>")
    server = Server(static_path=str(tmp_path))
    response = await server.http.get("/")
    assert response.text == "<script>1</script>"
    assert "content-security-policy" not in response.headers
    for path in ("/css/base.css", "/js/main.js", "/monitor", "/completion.js/", "/x/completion.js"):
        assert (await server.http.get(path)).json() == MISSING, path
    ours = await server.http.get("/completion.js")
    assert ours.content == (FOLDER / "completion.js").read_bytes()
    assert (
        await server.http.get("/completion.js", headers={"if-none-match": ours.headers["etag"]})
    ).status_code == 304
    assert (await server.http.post("/completion.js")).status_code == 405
    (tmp_path / "completion.js").write_text("their own")
    assert (await server.http.get("/completion.js")).text == "their own"


async def test_nothing_above_the_package():
    server = Server()
    for path in (
        "/../server/page.py",
        "/%2e%2e/server/page.py",
        "/js/..%2f..%2fserver/page.py",
        "//etc/passwd",
    ):
        assert (await server.http.get(f"http://corral{path}")).status_code == 404, path


@pytest.mark.parametrize("static", [False, True])
async def test_the_description_of_the_api_needs_no_page(tmp_path, static):
    server = Server(ui=False, static_path=str(tmp_path) if static else "")
    page = (await server.http.get("/docs")).text
    assert not re.search(r"https?:|<script>|style=|onload", page)
    loaded = re.findall(r'(?:src|href)="(docs/[^"]+)"', page)
    assert len(loaded) == 3
    for path in loaded:
        assert (await server.http.get(f"/{path}")).status_code == 200, path
    assert (await server.http.get("/docs/none.js")).json() == MISSING
    assert (await server.http.get("/docs/docs.html")).json() == MISSING


async def test_settings_of_the_page_are_told(tmp_path):
    path = tmp_path / "ui.json"
    path.write_text('{"theme": "dark", "temperature": 0.5}')
    for server in (Server(ui_config=path.read_text()), Server(ui_config_file=str(path))):
        props = (await server.http.get("/props")).json()
        assert props["ui_settings"] == props["webui_settings"] == {"theme": "dark", "temperature": 0.5}
        assert props["ui"] is props["webui"] is True
    props = (await Server(ui=False).http.get("/props")).json()
    assert (props["ui"], props["webui"], props["ui_settings"]) == (False, False, {})
    stranger = (
        await Server(api_keys=("x",), ui_config='{"systemMessage": "secret"}').http.get("/props")
    ).text
    assert "secret" not in stranger


@pytest.mark.parametrize("text", ["[1]", "{", "null", '"a"', "{'a': 1}", "{} x"])
def test_settings_that_are_no_object_are_an_error(tmp_path, text):
    with pytest.raises(CorralError, match=r"--ui-config .*JSON"):
        Server(ui_config=text)
    (tmp_path / "ui.json").write_text(text)
    with pytest.raises(CorralError, match=r"--ui-config-file .*JSON"):
        Server(ui_config_file=str(tmp_path / "ui.json"))
    with pytest.raises(CorralError, match="--ui-config-file"):
        Server(ui_config_file=str(tmp_path / "none"))
