"""Where the page keeps chats: in Chromium and on the real server, in several tabs and browsers."""

from __future__ import annotations

import pytest

from tests.browser.store_tab import PATIENCE_MS, Tab
from tests.system.process import CorralProcess

ANN, BOB = "secret-ann", "secret-bob"


@pytest.fixture(scope="module")
def server(models, tmp_path_factory):
    """With the chats of two keys, in `server.folder`."""
    folder = tmp_path_factory.mktemp("server")
    (folder / "chats").mkdir()
    (folder / "keys").write_text(f"ann:{ANN}\nbob:{BOB}\n")
    options = ("--chats", folder / "chats", "--api-key-file", folder / "keys")
    with CorralProcess("-m", models / "llama-bpe.gguf", "-c", 512, *options) as server:
        server.folder = folder / "chats"
        yield server


@pytest.fixture(autouse=True)
def nothing_kept(server, problems):
    problems.allow(r"status of (404|409)")  # browsers take every such answer for an error
    yield
    for path in server.folder.rglob("*.json"):
        path.unlink()


@pytest.fixture
def local_tab(new_context, server):
    """Tabs of one browser."""
    context = new_context()
    return lambda: Tab(context.new_page(), server.url, "openLocalStore")


@pytest.fixture
def remote_tab(new_context, server):
    """Each is another browser."""

    def create(key=ANN):
        tab = Tab(new_context().new_page(), server.url, "openRemoteStore")
        tab.page.evaluate("(key) => localStorage.setItem('corral.key', key)", key)
        return tab

    return create


@pytest.fixture(params=["browser", "server"])
def new_tab(request):
    """Tabs that see the same chats."""
    return request.getfixturevalue("local_tab" if request.param == "browser" else "remote_tab")


@pytest.fixture
def tab(new_tab):
    return new_tab()


# --- what both stores do


def test_save_list_load_remove(tab):
    assert tab.listed() == []
    saved = tab.create("What do foxes eat?")
    assert saved["revision"]
    (head,) = tab.listed()
    assert {name: head[name] for name in ("id", "title", "createdAt", "updatedAt")} == {
        "id": saved["id"],
        "title": "What do foxes eat?",
        "createdAt": saved["createdAt"],
        "updatedAt": saved["updatedAt"],
    }
    assert "messages" not in head
    assert tab.load(saved["id"]) == saved
    tab.run("return store.remove(id);", id=saved["id"])
    assert tab.listed() == []
    assert tab.load(saved["id"]) is None
    tab.run("return store.remove(id);", id=saved["id"])


def test_a_kind_that_lasts(tab, request):
    is_remote = "server" in request.node.name
    assert tab.run("return [store.kind, store.isLasting];") == ["server" if is_remote else "browser", True]


def test_another_tab_and_a_reload_find_them(new_tab):
    tab = new_tab()
    saved = tab.create("kept")
    assert new_tab().load(saved["id"]) == saved
    tab.page.reload()
    assert tab.load(saved["id"]) == saved


def test_the_newest_is_first(tab):
    first, second = tab.create("first"), tab.create("second")
    tab.run("await store.save(first, 5); await store.save(second, 7);", first=first, second=second)
    assert tab.titles() == ["second", "first"]
    tab.run("await store.save(await store.load(id));", id=first["id"])
    assert tab.titles() == ["first", "second"]


def test_a_title_is_what_a_chat_begins_with_until_somebody_names_it(tab):
    chat = tab.create("a very long question " * 10)
    (head,) = tab.listed()
    assert head["title"].startswith("a very long question")
    assert len(head["title"]) <= 60
    tab.run("await store.save({ ...chat, title: 'x'.repeat(2000) });", chat=chat)
    assert tab.titles() == ["x" * 1000]


def test_search_looks_into_titles_and_messages(tab):
    tab.create("Foxes & 100% mice?")
    tab.create("other", title="Über FOXES")
    tab.create("nothing")
    for text in ("foxes", "FOXES"):
        assert sorted(tab.search(text)) == ["Foxes & 100% mice?", "Über FOXES"]
    assert tab.search("über") == ["Über FOXES"]
    assert tab.search("& 100%") == ["Foxes & 100% mice?"]
    assert tab.search("user") == []
    assert len(tab.search("")) == 3


def test_saves_without_waiting_end_with_the_last(tab):
    """None is in conflict with the one before, although all of them know of the first revision only."""
    body = """
      let chat = await store.save(write(m.newChat(), "first"));
      const saves = [];
      for (let i = 0; i < 50; i += 1) saves.push(store.save((chat = write(chat, `${i}`))));
      const done = await Promise.all(saves);
      return [chat.id, done.at(-1).revision, (await store.load(chat.id)).revision];
    """
    chat_id, told, there = tab.run(body)
    assert told == there
    assert len(tab.contents(chat_id)) == 51


def test_a_new_chat_can_be_saved_again_before_it_has_a_revision(tab):
    body = """
      const chat = write(m.newChat(), "first");
      const [one, two] = await Promise.all([store.save(chat), store.save(write(chat, "second"))]);
      const three = await store.save(write(chat, "third"));
      return store.load(chat.id);
    """
    assert len(tab.run(body)["messages"]) == 2


def test_whoever_comes_second_is_told_what_is_there(new_tab):
    mine, theirs = new_tab(), new_tab()
    chat = mine.create("first")
    saved = theirs.run("return store.save(write(chat, 'theirs'));", chat=chat)
    told = mine.run("return said(() => store.save(write(chat, 'mine')));", chat=chat)
    assert told["error"] == "Conflict"
    assert told["chat"] == saved
    assert mine.contents(chat["id"]) == ["first", "theirs"]
    body = """
      const messages = { ...chat.messages, ...other.messages };
      return said(() => store.save(write({ ...chat, messages, revision: other.revision }, "mine")));
    """
    assert "value" in mine.run(body, chat=chat, other=told["chat"])
    assert theirs.contents(chat["id"]) == ["first", "mine", "theirs"]


def test_a_conflict_is_of_an_exported_class(new_tab):
    mine, theirs = new_tab(), new_tab()
    chat = mine.create("first")
    theirs.run("await store.save(write(chat, 'theirs'));", chat=chat)
    body = "return store.save(write(chat, 'mine')).catch((error) => error instanceof m.Conflict);"
    assert mine.run(body, chat=chat) is True


def test_a_chat_that_another_one_removed(new_tab):
    mine, theirs = new_tab(), new_tab()
    chat = mine.create("first")
    theirs.run("await store.remove(id);", id=chat["id"])
    told = mine.run("return said(() => store.save(write(chat, 'mine')));", chat=chat)
    assert (told["error"], told["chat"]) == ("Conflict", None)
    assert mine.listed() == []
    mine.run("await store.save({ ...write(chat, 'mine'), revision: undefined });", chat=chat)
    assert theirs.contents(chat["id"]) == ["first", "mine"]


def test_a_new_chat_replaces_no_other(new_tab):
    chat = new_tab().create("first")
    told = new_tab().run(
        "return said(() => store.save({ ...m.newChat(), id, title: 'other' }));", id=chat["id"]
    )
    assert told["error"] == "Conflict"
    assert told["chat"]["revision"] == chat["revision"]


def test_what_others_change_is_told_and_what_one_does_itself_is_not(new_tab):
    mine, theirs = new_tab(), new_tab()
    own = mine.create("own")
    mine.listed()
    mine.listen()
    mine.run("await store.save(write(chat, 'more'));", chat=own)
    made = theirs.create("theirs")
    mine.hears(made["id"])
    theirs.run("await store.save(write(chat, 'more'));", chat=made)
    mine.run("heard.length = 0;")
    theirs.run("await store.remove(id);", id=made["id"])
    mine.hears(made["id"])
    assert own["id"] not in mine.run("return heard;")
    mine.run("stop(); heard.length = 0;")
    last = theirs.create("after all")
    assert last["id"] in [each["id"] for each in mine.listed()]
    assert mine.run("return heard;") == []


def test_half_a_character_does_no_harm(tab):
    chat = tab.run("return store.save(write(m.newChat(), 'a\\ud83d'));")
    content = tab.run(
        "return (await store.load(id)).messages[leaf].content;", id=chat["id"], leaf=chat["leaf"]
    )
    assert content[0] == "a"
    assert len(content) == 2


def test_a_large_chat_is_saved_and_found(tab):
    body = """
      const images = [`data:image/png;base64,${"A".repeat(8 << 20)}`];
      const chat = m.addMessage(write(m.newChat(), "small"), null, { role: "user", content: "look", images });
      await store.save(chat);
      return (await store.load(chat.id)).messages[chat.leaf].images[0].length;
    """
    assert tab.run(body) == (8 << 20) + 22
    assert tab.search("look") == ["look"]


# --- in the browser


def test_browsers_do_not_see_each_other(local_tab, new_context, server):
    local_tab().create()
    assert Tab(new_context().new_page(), server.url, "openLocalStore").listed() == []


@pytest.mark.parametrize(
    "script",
    [
        "Object.defineProperty(window, 'indexedDB', { value: undefined });",
        "IDBFactory.prototype.open = () => { throw new DOMException('no', 'SecurityError'); };",
    ],
    ids=["none", "forbidden"],
)
def test_where_a_browser_keeps_nothing_memory_does(new_context, server, script):
    context = new_context()
    context.add_init_script(script)
    tab = Tab(context.new_page(), server.url, "openLocalStore")
    assert tab.run("return [store.kind, store.isLasting];") == ["browser", False]
    chat = tab.create("What do foxes eat?")
    assert tab.search("FOXES") == ["What do foxes eat?"]
    body = """
      await store.save(write(chat, "more"));
      const late = await said(() => store.save({ ...chat, revision: "older" }));
      return [(await store.load(chat.id)).leaf !== chat.leaf, late.error];
    """
    assert tab.run(body, chat=chat) == [True, "Conflict"]
    tab.run("await store.remove(id);", id=chat["id"])
    assert tab.listed() == []


def test_what_cannot_be_kept_changes_nothing(local_tab):
    tab = local_tab()
    chat = tab.create("before")
    body = "return said(() => store.save({ ...write(chat, 'more'), title: 'after', bad: () => {} }));"
    assert tab.run(body, chat=chat)["error"] == "DataCloneError"
    assert tab.titles() == ["before"]
    assert tab.load(chat["id"]) == chat
    assert "value" in tab.run("return said(() => store.save(write(chat, 'more')));", chat=chat)


def test_a_store_survives_that_its_data_are_cleared(local_tab):
    tab = local_tab()
    tab.create("before")
    body = """
      await new Promise((resolve, reject) => {
        const request = indexedDB.deleteDatabase("corral");
        request.onsuccess = resolve;
        request.onerror = reject;
      });
    """
    tab.run(body)
    assert tab.listed() == []
    tab.create("after")
    assert tab.titles() == ["after"]


def test_no_room_in_the_browser_is_said_and_the_old_chat_stays(local_tab):
    tab = local_tab()
    session = tab.page.context.new_cdp_session(tab.page)
    origin = tab.page.evaluate("location.origin")
    session.send("Storage.overrideQuotaForOrigin", {"origin": origin, "quotaSize": 1 << 20})
    chat = tab.create("small")
    body = """
      const noise = () => String.fromCharCode(...crypto.getRandomValues(new Uint16Array(1 << 12)));
      const content = Array.from({ length: 1 << 10 }, noise).join("");
      return said(() => store.save(write(chat, content)));
    """
    told = tab.run(body, chat=chat)
    assert told["message"] == "This browser's storage is full."
    assert tab.load(chat["id"]) == chat
    # The browser may count what it refused for some time yet.
    session.send("Storage.overrideQuotaForOrigin", {"origin": origin})
    assert "value" in tab.run("return said(() => store.save(write(chat, 'more')));", chat=chat)


# --- on the server


def test_keys_do_not_see_each_other(remote_tab):
    ann, bob = remote_tab(ANN), remote_tab(BOB)
    ann.create("of ann")
    assert bob.listed() == []
    assert bob.search("ann") == []


def test_a_missing_key_is_said(remote_tab, problems):
    problems.allow("401")
    tab = remote_tab("wrong")
    told = tab.run("return said(() => store.list());")
    assert told["message"] == "Invalid API Key"


def test_a_list_that_has_not_changed_is_not_sent_again(remote_tab):
    tab = remote_tab()
    tab.create()
    before = tab.listed()
    with tab.page.expect_response(lambda response: response.url.endswith("/chats")) as seen:
        assert tab.listed() == before
    sizes = seen.value.request.sizes()
    assert sizes["responseBodySize"] == 0, sizes


def test_a_page_that_comes_back_looks_at_once(remote_tab):
    mine, theirs = remote_tab(), remote_tab()
    mine.listed()
    mine.page.clock.install()
    mine.listen()
    mine.page.clock.pause_at("2100-01-01")
    chat = theirs.create("theirs")
    mine.page.evaluate("dispatchEvent(new Event('focus'))")
    mine.hears(chat["id"])


def test_a_server_that_goes_away_is_said_and_asked_again(remote_tab, problems):
    problems.allow("ERR_INTERNET_DISCONNECTED|Failed to load resource")
    mine, theirs = remote_tab(), remote_tab()
    chat = mine.create("first")
    mine.listed()
    mine.listen()
    mine.page.context.set_offline(True)
    told = mine.run("return said(() => store.save(write(chat, 'more')));", chat=chat)
    assert told["message"] == "The server cannot be reached."
    mine.page.evaluate("dispatchEvent(new Event('focus'))")
    other = theirs.create("other")
    mine.page.context.set_offline(False)
    mine.hears(other["id"])
    assert "value" in mine.run("return said(() => store.save(write(chat, 'more')));", chat=chat)


def test_an_answer_that_was_lost_is_no_conflict(remote_tab, problems):
    """The server has saved it, the page does not know: saving once more is all it has to do."""
    problems.allow("ERR_FAILED|Failed to load resource")
    tab = remote_tab()
    chat = tab.create("first")
    lost = []

    def lose(route):
        if route.request.method == "PUT" and not lost:
            lost.append(route.fetch())
            route.abort()
        else:
            route.continue_()

    tab.page.route("**/chats/*", lose)
    body = "globalThis.next = write(chat, 'more'); return said(() => store.save(next, 9));"
    assert tab.run(body, chat=chat)["error"] == "Error"
    assert lost[0].status == 200
    assert "value" in tab.run("return said(() => store.save(next, 9));")
    assert tab.contents(chat["id"]) == ["first", "more"]


def test_what_a_page_saves_while_it_is_closed_arrives(remote_tab):
    tab, other = remote_tab(), remote_tab()
    chat = tab.create("first")
    tab.run("addEventListener('pagehide', () => store.save(write(chat, 'goodbye')));", chat=chat)
    tab.page.goto("about:blank")
    other.listed()
    other.page.wait_for_function(
        "async (id) => Object.keys((await store.load(id)).messages).length === 2",
        arg=chat["id"],
        timeout=PATIENCE_MS,
    )
    assert other.contents(chat["id"]) == ["first", "goodbye"]


# --- from the browser to the server


def test_chats_are_moved_to_the_server(remote_tab):
    tab, other = remote_tab(), remote_tab()
    body = """
      globalThis.local = await m.openLocalStore();
      for (const text of ["one", "two"]) await local.save(write(m.newChat(), text), 5);
      const n = await m.moveChats(local, store);
      return [n, (await local.list()).length, await m.moveChats(local, store)];
    """
    assert tab.run(body) == [2, 0, 0]
    assert sorted(other.titles()) == ["one", "two"]
    assert {each["updatedAt"] for each in other.listed()} == {5}


def test_a_move_that_was_interrupted_goes_on(remote_tab, problems):
    problems.allow("500|Failed to load resource")
    tab, other = remote_tab(), remote_tab()
    body = """
      globalThis.local = await m.openLocalStore();
      for (const [at, text] of ["one", "two"].entries()) await local.save(write(m.newChat(), text), at);
      const remove = () => { throw new Error("oops"); };
      const failing = { list: () => local.list(), load: (id) => local.load(id), remove };
      const first = await said(() => m.moveChats(failing, store));
      const n = await m.moveChats(local, store);
      return [first.message, n, (await local.list()).length];
    """
    assert tab.run(body) == ["oops", 2, 0]
    assert sorted(other.titles()) == ["one", "two"], "none is there twice"


def test_a_move_replaces_no_chat_of_the_server(remote_tab):
    tab, other = remote_tab(), remote_tab()
    theirs = other.create("theirs")
    body = """
      const local = await m.openLocalStore();
      await local.save({ ...write(m.newChat(), "mine"), id });
      return m.moveChats(local, store);
    """
    assert tab.run(body, id=theirs["id"]) == 1
    assert sorted(other.titles()) == ["mine", "theirs"]
