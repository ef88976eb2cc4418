"""The page as an installed app: its manifest, and what it shows while the server cannot be reached."""

from __future__ import annotations

import json
from urllib.parse import urljoin

import httpx
from playwright.sync_api import Page, expect

from tests.browser.chat_page import ChatPage
from tests.system.process import CorralProcess

KEPT = """async () => {
  const names = await caches.keys();
  const requests = await Promise.all(names.map(async (name) => (await caches.open(name)).keys()));
  return { names, paths: requests.flat().map(({ url }) => new URL(url).pathname) };
}"""
HAS_ALL = """async () => {
  const [name] = await caches.keys();
  const kept = name ? await (await caches.open(name)).keys() : [];
  const urls = new Set(kept.map(({ url }) => url));
  const loaded = performance.getEntriesByType("resource").map((each) => each.name);
  const files = loaded.filter((url) => /\\/(js|css|text|vendor)\\//.test(url));
  const isComplete = [...files, location.origin + location.pathname].every((url) => urls.has(url));
  return files.length > 20 && isComplete;
}"""


def wait_for_shell(page: Page) -> None:
    page.wait_for_function(HAS_ALL, polling=200)


def test_it_opens_while_the_server_is_away(new_page, problems, models):
    """Under a prefix and with keys; nothing of the API is kept."""
    problems.allow("ERR_|Failed to load|401")
    page = new_page(service_workers="allow")
    options = ("-c", 512, "--api-prefix", "/deep/in", "--api-key", "secret")
    with CorralProcess("-m", models / "llama-bpe.gguf", *options) as server:
        url = server.url.rstrip("/") + "/deep/in/"
        page.add_init_script("localStorage.setItem('corral.key', 'secret')")
        chat = ChatPage(page, url)
        page.goto(url)
        chat.wait_until_ready()
        chat.force("Hello")
        assert chat.ask("Hello") == "Hello"
        page.wait_for_function("navigator.serviceWorker.controller")
        page.reload()
        chat.wait_until_ready()
        wait_for_shell(page)
        kept = page.evaluate(KEPT)
        assert all(path.startswith("/deep/in/") for path in kept["paths"])
        api = ("props", "chats", "v1", "tokenize", "slots", "monitor", "offline.js")
        assert not [path for path in kept["paths"] if path.split("/")[3] in api]
    page.reload()
    expect(page.locator(".banner.down")).to_contain_text("Offline")
    expect(page.get_by_label("Your message")).to_be_visible()
    expect(chat.messages).to_have_count(2)
    page.get_by_role("button", name="New chat", exact=True).click()
    expect(chat.messages).to_have_count(0)
    page.locator(".entry a", has_text="Hello").click()
    expect(chat.messages).to_have_count(2)
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_disabled()


def test_another_version_drops_what_was_kept_before(new_page, corral):
    page = new_page(service_workers="allow")
    ChatPage(page, corral.url).open()
    wait_for_shell(page)
    page.evaluate("caches.open('corral /other/ b1')")  # of another server at this address
    before = page.evaluate(KEPT)["names"]
    page.route(
        "**/props", lambda route: route.fulfill(json={**route.fetch().json(), "server_version": "b2-corral"})
    )
    page.evaluate("import('/js/offline_shell.js').then(({ keepShell }) => keepShell('b2-corral'))")
    page.wait_for_function("caches.keys().then((names) => names.includes('corral / b2-corral'))")
    page.wait_for_function(f"caches.keys().then((names) => !names.includes({json.dumps(before[0])}))")
    assert "corral /other/ b1" in page.evaluate(KEPT)["names"]


def test_the_manifest_and_its_icons(corral):
    index = httpx.get(corral.url).text
    assert '<link rel="manifest" href="manifest.webmanifest" />' in index
    answer = httpx.get(urljoin(corral.url, "/manifest.webmanifest"))
    assert answer.headers["content-type"] == "application/manifest+json"
    manifest = answer.json()
    assert manifest["start_url"] == manifest["scope"] == "./"
    assert {icon.get("purpose", "any") for icon in manifest["icons"]} == {"any", "maskable"}
    for icon in manifest["icons"]:
        found = httpx.get(urljoin(str(answer.url), icon["src"]))
        assert found.status_code == 200
        assert found.headers["content-type"] == icon["type"]
        if icon["type"] == "image/png":
            size = "x".join(str(int.from_bytes(found.content[at : at + 4], "big")) for at in (16, 20))
            assert size == icon["sizes"]
