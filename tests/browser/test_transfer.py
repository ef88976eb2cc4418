"""Chats to files and back, in Chromium: whatever a file may hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.browser.store_tab import PATIENCE_MS, Tab
from tests.system.process import CorralProcess


@pytest.fixture(scope="module")
def server(models):
    with CorralProcess("-m", models / "llama-bpe.gguf", "-c", 512) as server:
        yield server


@pytest.fixture
def tab(page, server):
    return Tab(page, server.url, "openLocalStore")


def test_what_is_exported_can_be_imported(tab):
    chat = tab.create(
        "What do foxes eat?", settings={"temperature": 0.5, "stop": ["a", "b"]}, system="Be brief."
    )
    text = tab.run("return m.exportChats([chat]);", chat=chat)
    exported = json.loads(text)
    assert (exported["format"], exported["version"]) == ("corral-chats", 1)
    (back,) = tab.run("return m.importChats(text);", text=text)
    assert back == {name: value for name, value in chat.items() if name != "revision"}
    (other,) = tab.run("return m.importChats(text, [id]);", text=text, id=chat["id"])
    assert other["id"] != chat["id"]
    assert {**other, "id": 0} == {**back, "id": 0}


def test_all_known_fields_are_kept_and_others_dropped(tab):
    kept = {
        "reasoning": "hm",
        "images": ["data:image/png;base64,AAAA"],
        "toolCalls": [{"id": "1", "name": "f", "arguments": "{}"}],
        "toolCallId": "1",
        "error": "oops",
        "remedies": ["again"],
        "finish": "length",
        "timings": {"prompt_n": 1},
        "usage": {"total_tokens": 2},
        "tokens": [{"text": "a", "alternatives": [{"text": "b", "p": 0.5}]}],
    }
    body = """
      const chat = m.addMessage(m.newChat(), null, { role: "assistant", content: "x", ...kept, hidden: 1 });
      return m.importChats(m.exportChats([{ ...chat, hidden: 1 }]));
    """
    (chat,) = tab.run(body, kept=kept)
    (message,) = chat["messages"].values()
    assert {name: message.get(name) for name in kept} == kept
    assert "hidden" not in {**chat, **message}


ID, ID2 = "1" * 32, "2" * 32


def message_of(chat_id=ID, **fields):
    given = {"id": chat_id, "parent": None, "role": "user", "content": "x", "createdAt": 1, "state": "done"}
    return {**given, **fields}


def file_of(**fields):
    chat = {
        "id": "a" * 32,
        "title": "t",
        "createdAt": 1,
        "updatedAt": 2,
        "leaf": None,
        "messages": {},
        **fields,
    }
    return json.dumps({"format": "corral-chats", "version": 1, "chats": [chat]})


HOSTILE: dict[str, Any] = {
    "nothing": ("", "not JSON"),
    "no JSON": ("{", "not JSON"),
    "null": ("null", "no chats"),
    "a number": ("5", "no chats"),
    "an empty list": ("[]", "no chats"),
    "another object": ('{"a": 1}', "no chats"),
    "a newer version": ('{"format": "corral-chats", "version": 2, "chats": []}', "newer"),
    "chats that are none": ('{"format": "corral-chats", "version": 1, "chats": {}}', "no list"),
    "a chat that is none": ('{"format": "corral-chats", "version": 1, "chats": [null]}', "Chat 1"),
    "no messages": (file_of(messages=None), "'messages' must be an object"),
    "a list of messages": (file_of(messages=[]), "'messages' must be an object"),
    "a title that is none": (file_of(title={}), "'title'"),
    "a time that is none": (file_of(updatedAt="now"), "'updatedAt'"),
    "a time before all": (file_of(createdAt=-1), "'createdAt'"),
    "an id that is none": (file_of(id="../../etc"), "'id'"),
    "settings that are none": (file_of(settings=[]), "'settings'"),
    "a system that is none": (file_of(system=5), "'system'"),
    "a leaf that is nowhere": (file_of(leaf=ID), "'leaf'"),
    "a leaf in a list": (file_of(leaf=[ID], messages={ID: message_of()}), "'leaf'"),
    "a leaf of all objects": (file_of(leaf="constructor"), "'leaf'"),
    "a role that is none": (file_of(messages={ID: message_of(role="root")}), "'role'"),
    "content that is none": (file_of(messages={ID: message_of(content={})}), "'content'"),
    "another name": (file_of(messages={ID2: message_of()}), "'id' of a message"),
    "a parent that is nowhere": (file_of(messages={ID: message_of(parent=ID2)}), "'parent'"),
    "a parent of all objects": (file_of(messages={ID: message_of(parent="toString")}), "'parent'"),
    "its own parent": (file_of(messages={ID: message_of(parent=ID)}), "cycle"),
    "a circle": (file_of(messages={ID: message_of(parent=ID2), ID2: message_of(ID2, parent=ID)}), "cycle"),
    "a prototype": (file_of(messages={"__proto__": message_of("__proto__")}), "ids of messages"),
    "a prototype in settings": (file_of(settings={"a": {"__proto__": {"evil": 1}}}), "'settings'"),
    "a prototype in timings": (
        file_of(messages={ID: message_of(timings={"__proto__": {"evil": 1}})}),
        "'timings'",
    ),
    "a picture from elsewhere": (
        file_of(messages={ID: message_of(images=["https://example.com/a.png"])}),
        "'images'",
    ),
    "a picture that is a page": (file_of(messages={ID: message_of(images=["data:text/html,x"])}), "'images'"),
    "a picture that is none": (file_of(messages={ID: message_of(images=[{}])}), "'images'"),
    "calls that are none": (file_of(messages={ID: message_of(toolCalls=[{"name": "f"}])}), "'toolCalls'"),
    "a foreign chat that is none": ('[{"conv": 1, "messages": []}]', "Chat 1"),
    "foreign messages that are none": ('{"conv": {}, "messages": {"a": 1}}', "'messages' must be a list"),
    "a foreign circle": (
        json.dumps(
            {
                "conv": {"lastModified": 1},
                "messages": [
                    {"id": "a", "parent": "b", "role": "user", "content": "x", "timestamp": 1},
                    {"id": "b", "parent": "a", "role": "user", "content": "x", "timestamp": 1},
                ],
            }
        ),
        "cycle",
    ),
}


@pytest.fixture(scope="module")
def shared_tab(browser, server):
    context = browser.new_context(service_workers="block")
    context.set_default_timeout(PATIENCE_MS)
    yield Tab(context.new_page(), server.url, "openLocalStore")
    context.close()


@pytest.mark.parametrize(("text", "reason"), HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_file_of_chats_is_refused_with_a_reason(shared_tab, text, reason):
    told = shared_tab.run("return said(() => m.importChats(text));", text=text)
    assert told.get("error") == "Error", told
    assert reason in told["message"]


def test_huge_files_are_refused(tab):
    for body, reason in (
        ("' '.repeat((256 << 20) + 1)", "too large"),
        ("'['.repeat(1e6) + ']'.repeat(1e6)", "no chats|not JSON"),
        ("m.exportChats(Array(10_001).fill({}))", "too many chats"),
        ("m.exportChats([{ ...m.newChat(), settings: deep(1000) }])", "nested too deeply"),
        ("m.exportChats([{ ...m.newChat(), messages: many(100_001) }])", "more than 100,000 messages"),
    ):
        make = """
          const deep = (n) => { let value = {}; for (; n; n -= 1) value = { value }; return value; };
          const many = (n) => Object.fromEntries(Array.from({ length: n }, (_, i) => [i, {}]));
        """
        told = tab.run(f"{make} return said(() => m.importChats({body}));")
        assert any(each in told["message"] for each in reason.split("|")), told


def test_ids_that_a_file_has_twice_become_others(tab):
    chats = json.loads(file_of())
    chats["chats"] *= 3
    ids = tab.run("return m.importChats(text).map(({ id }) => id);", text=json.dumps(chats))
    assert len(set(ids)) == 3
    assert ids[0] == "a" * 32


def test_nothing_of_a_file_reaches_all_objects(tab):
    text = '{"__proto__": {"evil": 1}, ' + file_of()[1:]
    assert tab.run("m.importChats(text); return ({}).evil === undefined;", text=text)


LLAMA: dict[str, Any] = {
    "conv": {"id": "c", "name": "About foxes", "lastModified": 1700000009000, "currNode": "4"},
    "messages": [
        {
            "id": "0",
            "type": "root",
            "timestamp": 1700000000000,
            "role": "system",
            "content": "",
            "parent": None,
        },
        {
            "id": "1",
            "type": "system",
            "timestamp": 1700000000001,
            "role": "system",
            "content": "Be brief.",
            "parent": "0",
        },
        {
            "id": "2",
            "convId": "c",
            "type": "text",
            "timestamp": 1700000000002,
            "role": "user",
            "content": "What is this?",
            "parent": "1",
            "children": ["3", "4"],
            "extra": [
                {"type": "IMAGE", "name": "a.png", "base64Url": "data:image/png;base64,AAAA"},
                {"type": "TEXT", "name": "a.txt", "content": "a file"},
                {"type": "AUDIO", "name": "a.wav", "base64Data": "AAAA", "mimeType": "audio/wav"},
            ],
        },
        {
            "id": "3",
            "type": "text",
            "timestamp": 1700000000003,
            "role": "assistant",
            "content": "A dog.",
            "parent": "2",
        },
        {
            "id": "4",
            "type": "text",
            "timestamp": 1700000000004,
            "role": "assistant",
            "content": "A fox.",
            "parent": "2",
            "reasoningContent": "It has a tail.",
            "toolCalls": '[{"id": "x", "type": "function", "function": {"name": "look", "arguments": "{}"}}]',
            "timings": {"predicted_n": 3},
        },
    ],
}


@pytest.mark.parametrize("is_list", [True, False], ids=["all chats", "one chat"])
def test_files_of_llama_servers_page_are_read(tab, is_list):
    (chat,) = tab.run("return m.importChats(text);", text=json.dumps([LLAMA] if is_list else LLAMA))
    assert (chat["title"], chat["system"]) == ("About foxes", "Be brief.")
    assert (chat["createdAt"], chat["updatedAt"]) == (1700000000000, 1700000009000)
    path = tab.run("return m.pathOf(chat);", chat=chat)
    assert [(each["role"], each["content"]) for each in path] == [
        ("user", "a.txt:\n\na file\n\nWhat is this?"),
        ("assistant", "A fox."),
    ]
    assert path[0]["images"] == ["data:image/png;base64,AAAA"]
    assert (path[1]["reasoning"], path[1]["timings"]) == ("It has a tail.", {"predicted_n": 3})
    assert path[1]["toolCalls"] == [{"id": "x", "name": "look", "arguments": "{}"}]
    siblings = tab.run("return m.siblings(chat)(chat.messages[chat.leaf]);", chat=chat)
    assert [chat["messages"][each]["content"] for each in siblings] == ["A dog.", "A fox."]
    tab.run("await store.save(chat);", chat=chat)
    assert tab.titles() == ["About foxes"]


def test_of_a_shown_chat_llama_servers_page_exports_no_root(tab):
    """And older ones have numbers and other names."""
    messages = [
        {
            "id": 11,
            "type": "text",
            "timestamp": 1,
            "role": "user",
            "content": "a",
            "parent": 10,
            "thinking": "",
        },
        {
            "id": 12,
            "type": "text",
            "timestamp": 2,
            "role": "assistant",
            "content": "b",
            "parent": 11,
            "thinking": "c",
        },
    ]
    file = {"conv": {"id": "c", "name": "n", "lastModified": 3, "currNode": 12}, "messages": messages}
    (chat,) = tab.run("return m.importChats(text);", text=json.dumps(file))
    path = tab.run("return m.pathOf(chat);", chat=chat)
    assert [(each["content"], each.get("reasoning")) for each in path] == [("a", None), ("b", "c")]


def test_a_file_is_downloaded(tab):
    with tab.page.expect_download() as download:
        tab.run("m.download('chats.json', text);", text="ümläut")
    assert download.value.suggested_filename == "chats.json"
    assert Path(download.value.path()).read_text() == "ümläut"


def test_two_versions_of_a_chat_become_one(tab):
    """Whoever saves last has not seen what the other wrote: nothing of it is lost, and the branch goes on."""

    def message(id, parent, content, state="done"):
        return {
            "id": id,
            "parent": parent,
            "role": "user",
            "content": content,
            "state": state,
            "createdAt": 1,
        }

    ask, answer, reply, other = "a" * 32, "b" * 32, "c" * 32, "d" * 32
    begun = {ask: message(ask, None, "?"), answer: message(answer, ask, "The", "writing")}
    whole = {**begun, answer: message(answer, ask, "The end")}
    ours: dict[str, Any] = {"leaf": answer, "messages": {**whole, other: message(other, None, "!")}}
    theirs: dict[str, Any] = {"leaf": reply, "messages": {**begun, reply: message(reply, answer, "Why?")}}
    for a, b, leaf in ((ours, theirs, reply), (theirs, ours, reply)):
        merged = tab.run("return m.merge(a, b);", a=a, b=b)
        assert merged["leaf"] == leaf
        assert merged["messages"] == {**ours["messages"], reply: theirs["messages"][reply]}
