"""The chat page as a person uses it: by what buttons and fields are called."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, Page, expect


class ChatPage:
    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url

    def open(self) -> ChatPage:
        self.page.goto(self.url)
        self.wait_until_ready()
        return self

    def wait_until_ready(self) -> None:
        """The server is there, and the page knows what it is like."""
        expect(self.page.locator(".head .model")).not_to_be_empty()
        expect(self.page.locator(".banner.connecting, .banner.down, .banner.loading")).to_have_count(0)

    @property
    def box(self) -> Locator:
        return self.page.get_by_label("Your message")

    @property
    def messages(self) -> Locator:
        return self.page.locator("article.message")

    @property
    def last(self) -> Locator:
        return self.messages.last

    def answer_text(self) -> str:
        """What the last answer says."""
        return self.last.locator(".markdown").inner_text()

    def cached(self) -> tuple[int, int]:
        """How many tokens of the last prompt were cached, and how many it had."""
        about = self.last.locator(".timings").get_attribute("title") or ""
        found = re.search(r"([\d,]+) of ([\d,]+) cached", about)
        assert found, about
        cached, of = (int(each.replace(",", "")) for each in found.groups())
        return cached, of

    def say(self, text: str) -> None:
        self.box.fill(text)
        self.box.press("Enter")

    def ask(self, text: str) -> str:
        """Say something, and wait for the whole answer."""
        n = self.messages.count()
        self.say(text)
        expect(self.messages.nth(n + 1)).to_be_visible()
        self.wait_for_end()
        return self.answer_text()

    def wait_for_end(self) -> None:
        expect(self.page.get_by_role("button", name="Send", exact=True)).to_be_visible()
        expect(self.last.locator(".timings, .ending").first).to_be_visible()

    def wait_for_words(self, n: int = 3) -> None:
        """The answer is being written, and some of it can be read."""
        expect(self.page.get_by_role("button", name="Stop", exact=True)).to_be_visible()
        expect(self.last.locator(".markdown")).to_have_text(words(n))

    def do(self, action: str, message: Locator | None = None) -> None:
        """Press a button below a message."""
        (message or self.last).get_by_role("button", name=action, exact=True).click()

    def open_menu(self, title: str) -> Locator:
        """The menu of a chat in the list."""
        row = self.page.locator(".entry", has_text=title).first
        row.hover()
        row.get_by_role("button", name="More", exact=True).click()
        menu = self.page.locator("dialog.chat-menu")
        expect(menu.get_by_role("button", name="Rename", exact=True)).to_be_focused()
        return menu

    def choose(self, title: str, action: str) -> None:
        """Do what the menu of a chat offers."""
        self.open_menu(title).get_by_role("button", name=action, exact=True).click()

    def move(self, title: str, folder: str) -> None:
        """Put a chat into a folder."""
        self.choose(title, "Move to a folder")
        dialog = self.page.get_by_role("dialog", name="Move to a folder")
        dialog.get_by_label("Folder").fill(folder)
        dialog.get_by_role("button", name="Move", exact=True).click()

    def open_settings(self) -> Locator:
        panel = self.page.get_by_label("Settings of this chat")
        if not panel.is_visible():
            self.page.locator(".head").get_by_role("button", name="Settings").click()
            expect(panel).to_be_visible()  # its script is loaded when it is first opened
        return panel

    def set(self, label: str, value: object) -> Locator:
        """Fill in one of the settings; the field is left as a person leaves it."""
        panel = self.open_settings()
        field = panel.get_by_label(label, exact=True)
        group = panel.locator("details", has=self.page.get_by_label(label, exact=True))
        if group.count() and group.get_attribute("open") is None:
            group.locator("summary").click()
        if isinstance(value, bool):
            field.set_checked(value)
        else:
            field.fill(str(value))
            field.blur()
        return field

    def force(self, *texts: str) -> None:
        """The model says exactly this, or one of these."""
        self.set("Grammar", "root ::= " + " | ".join(_literal(text) for text in texts))

    def use_for_new_chats(self) -> None:
        """New chats begin with the settings of this one."""
        self.open_settings().get_by_role("button", name="Use for new chats").click()

    def never_end(self, separator: str = " ") -> None:
        """The model writes word after word until it is stopped; the server needs `--context-shift` for it."""
        words = " | ".join(_literal(word + separator) for word in ("word", "more"))
        self.set("Grammar", f"root ::= line{{900,}}\nline ::= ({words}){{100}}")


def redraw(page: Page) -> None:
    """Have the page drawn again, as it is while an answer is written."""
    page.locator("#search").dispatch_event("input")


def keep_notes(page: Page) -> None:
    """What is shown for a second or two, as "Copied", stays: a test may be slower than that."""
    page.evaluate(
        """() => {
          const later = globalThis.setTimeout;
          globalThis.setTimeout = (work, ms, ...given) => (ms > 1000 ? 0 : later(work, ms, ...given));
        }"""
    )


def words(n: int) -> re.Pattern[str]:
    """At least so many."""
    return re.compile(rf"(\S+\s+){{{n}}}")


def beginning(text: str) -> re.Pattern[str]:
    """Words that come first. A page that follows an answer again shows none of them for a moment."""
    return re.compile(r"^\s*" + r"\s+".join(map(re.escape, text.split())))


def _literal(text: str) -> str:
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n"}
    return '"' + "".join(escapes.get(letter, letter) for letter in text) + '"'
