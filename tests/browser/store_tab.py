"""A tab whose script uses a store of the page, with nothing else of the page in it."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Page

PATIENCE_MS = 120_000  # on a busy machine
_SCRIPT = """async ({ %s }) => {
  const [stores, remote, transfer, tree] = await Promise.all(
    ["store", "remote", "transfer", "tree"].map((name) => import(`/js/${name}.js`)),
  );
  const m = { ...stores, ...remote, ...transfer, ...tree };
  const store = (globalThis.store ??= await m.%s());
  const said = async (work) => {
    try {
      return { value: await work() };
    } catch (error) {
      return { error: error.name, message: error.message, chat: error.chat };
    }
  };
  const write = (chat, content, parent = chat.leaf) => m.addMessage(chat, parent, { role: "user", content });
  %s
}"""


class Tab:
    """A page of the server with nothing in it but text, and one store in it."""

    def __init__(self, page: Page, url: str, opener: str) -> None:
        page.goto(url + "/js/tree.js")
        self.page = page
        self._opener = opener

    def run(self, body: str, **given: Any) -> Any:
        """The value of a script that has the store, the modules in `m`, and what is given by name."""
        return self.page.evaluate(_SCRIPT % (", ".join(given), self._opener, body), given)

    def create(self, content: str = "hello", **fields: object) -> dict[str, Any]:
        """A new chat that is saved, as it is then."""
        body = "return store.save({ ...write(m.newChat(), content), ...fields });"
        return self.run(body, content=content, fields=fields)

    def listed(self):
        return self.run("return store.list();")

    def titles(self):
        return [each["title"] for each in self.listed()]

    def search(self, text):
        return [each["title"] for each in self.run("return store.search(text);", text=text)]

    def load(self, chat_id):
        return self.run("return store.load(id);", id=chat_id)

    def contents(self, chat_id):
        return sorted(message["content"] for message in self.load(chat_id)["messages"].values())

    def listen(self):
        self.run("globalThis.heard = []; globalThis.stop = store.onChange((ids) => heard.push(...ids));")

    def hears(self, chat_id):
        self.page.wait_for_function("(id) => globalThis.heard.includes(id)", arg=chat_id, timeout=PATIENCE_MS)
