"""Conversations on the server that are made to run a script in the page, or to hang it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from tests.browser.chat_page import ChatPage
from tests.system.process import START_S, CorralProcess

CHAT_ID, FIRST, SECOND = "a" * 32, "1" * 32, "2" * 32
SCRIPT = b"globalThis.top.isHacked = true;"


@pytest.fixture(scope="module")
def server(models, tmp_path_factory):
    """Without keys, and with a place for chats and for files."""
    chats, files = (tmp_path_factory.mktemp(name) for name in ("chats", "files"))
    options = ("-c", 512, "--chats", chats, "--batches", files)
    with CorralProcess("-m", models / "llama-bpe.gguf", *options) as server:
        yield server


@pytest.fixture(scope="module")
def script(server) -> str:
    """The path of a script that a client has uploaded."""
    files = {"file": ("a.js", SCRIPT, "text/javascript")}
    answer = httpx.post(f"{server.url}/v1/files", files=files, data={"purpose": "batch"}, timeout=START_S)
    return f"/v1/files/{answer.json()['id']}/content"


def element(script: str) -> dict[str, Any]:
    """JSON that looks like an element of Preact: a frame, which has the page's policy, with the script."""
    frame = f"<iframe srcdoc=\"<script src='{script}'></script>\"></iframe>"
    props = {"dangerouslySetInnerHTML": {"__html": frame}}
    return {"type": "div", "props": props, "key": None, "ref": None, "__b": 1, "__v": 1, "__k": None}


def chat_of(**fields: Any) -> dict[str, Any]:
    common = {"createdAt": 1, "state": "failed", "content": "Seen."}
    messages = {
        FIRST: {"id": FIRST, "parent": None, "role": "user", **common},
        SECOND: {"id": SECOND, "parent": FIRST, "role": "assistant", **common, **fields},
    }
    times = {"createdAt": 1, "updatedAt": 1}
    return {
        **{"id": CHAT_ID, "title": "Shown", "system": "", "settings": {}, **times},
        **{"leaf": SECOND, "messages": messages},
    }


def hostile_chats(script: str) -> dict[str, dict[str, Any]]:
    node = element(script)
    return {
        "reasoning": chat_of(reasoning=node),
        "error": chat_of(error=node),
        "toolCalls": chat_of(toolCalls=[{"id": "1", "name": node, "arguments": "{}"}]),
        "files": chat_of(files=[{"name": node, "text": "a", "nPages": node, "nTokens": 1}]),
        "parent": {**chat_of(parent=SECOND), "leaf": SECOND},
    }


FIELDS = list(hostile_chats(""))


def open_chat(page, server) -> None:
    """Open the page with the chat, and wait until it has been shown or refused."""
    chat = ChatPage(page, f"{server.url}/#/chat/{CHAT_ID}").open()
    expect(chat.box).to_be_visible()
    expect(page.locator(".banner.bad, .banner.warn, article.message").first).to_be_visible()


@pytest.mark.parametrize("field", FIELDS)
def test_a_stored_chat_runs_no_script(page, server, script, problems, field):
    problems.allow(r"status of 404")  # the server has refused the chat
    chat = hostile_chats(script)[field]
    answer = httpx.put(f"{server.url}/chats/{CHAT_ID}", json=chat, timeout=START_S)
    open_chat(page, server)
    assert page.evaluate("globalThis.isHacked") is None
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(f"messages.{field}")


@pytest.mark.parametrize("field", FIELDS)
def test_the_page_checks_what_the_server_sends(page, server, script, field):
    """As from a server of another version, or a proxy."""
    body = json.dumps({**hostile_chats(script)[field], "revision": "1"})
    page.route(f"**/chats/{CHAT_ID}", lambda route: route.fulfill(body=body, content_type="application/json"))
    open_chat(page, server)
    expect(page.locator(".banner.bad")).to_contain_text("cycle" if field == "parent" else field)
    assert page.evaluate("globalThis.isHacked") is None


def test_numbers_that_are_objects_harm_nothing(page, server, script):
    """What the server stores unseen: the insides of settings, timings, usage and tokens."""
    node = element(script)
    numbers = dict.fromkeys(("prompt_n", "cache_n", "predicted_n", "predicted_per_second", "prompt_ms"), node)
    tokens = [{"text": node, "probability": node, "others": node}, node]
    file = {"name": "a", "text": "a", "nPages": node, "nTokens": node}
    chat = chat_of(timings=numbers, usage=numbers, tokens=tokens, files=[file])
    chat["settings"] = dict.fromkeys(("temperature", "model", "n_predict", "system"), node)
    answer = httpx.put(f"{server.url}/chats/{CHAT_ID}", json=chat, timeout=START_S)
    assert answer.status_code == 200, answer.text
    open_chat(page, server)
    expect(page.locator("article.message, .banner.bad").last).to_be_visible()
    assert page.evaluate("globalThis.isHacked") is None
    httpx.delete(f"{server.url}/chats/{CHAT_ID}", timeout=START_S)


def test_an_object_is_no_element(page, server, script):
    """Even if it is given to the library."""
    page.goto(server.url + "/js/tree.js")
    shown = page.evaluate(
        """async (node) => {
          const { html, render } = await import("/js/html.js");
          const place = document.body.appendChild(document.createElement("div"));
          render(html`<p>${node}</p>`, place);
          return place.innerHTML;
        }""",
        element(script),
    )
    assert shown == "<p></p>"


@pytest.mark.parametrize("path", ["", "/completion.js"])
@pytest.mark.parametrize("opened", ["/", "/monitor"])
def test_only_scripts_of_the_page_run_in_it(page, server, script, problems, opened, path):
    """Neither what a client has uploaded, nor other scripts of this server."""
    problems.allow(r"Content Security Policy|MIME type|ERR_")
    page.goto(server.url + opened)
    expect(page.locator("meta[http-equiv=Content-Security-Policy]")).to_have_count(1)
    outcome = page.evaluate(
        """(src) => new Promise((resolve) => {
          const element = document.createElement("script");
          Object.assign(element, { src, onload: () => resolve("ran"), onerror: () => resolve("refused") });
          document.head.append(element);
        })""",
        path or script,
    )
    assert outcome == "refused"
    assert page.evaluate("globalThis.isHacked") is None
