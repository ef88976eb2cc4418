"""Pictures of the pages for the documents, of a real server at work: `python -m tools.screenshots [NAME...]`.

A function for each page; every one is taken in a light and in a dark browser.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
from playwright.sync_api import Page, expect, sync_playwright

from tests.browser.chat_page import ChatPage
from tests.system.process import START_S, CorralProcess

FOLDER = Path(__file__).parents[1] / "docs" / "images"
SIZE = {"width": 1280, "height": 800}
OPTIONS = ("-c", 8192, "-np", 4, "--slots")
STORY = "You are a patient teller of stories for children, and every story has a fox in it. " * 12
FENCE = """A round corral of radius $r$ with $k$ rails takes

$$L = 2 \\pi r \\cdot k$$

of rope, and **5 %** more for the knots:

| radius | rails | rope |
| --- | --- | --- |
| 5 m | 3 | 99 m |
| 8 m | 3 | 158 m |

```python
def rope(radius: float, rails: int) -> float:
    return 1.05 * 2 * math.pi * radius * rails
```
"""
TOPICS = ("a lighthouse", "the first snow", "an old bridge", "three friends", "a lost key", "the night train")


@contextlib.contextmanager
def monitor(page: Page, server: CorralProcess) -> Iterator[None]:
    """A minute of five clients at four slots, all of which are busy."""
    page.goto(server.url + "/monitor")
    with clients(server, 5):
        page.wait_for_timeout(50_000)
        page.locator(".piece.decode.open").nth(2).wait_for(state="attached")
        yield


@contextlib.contextmanager
def chat(page: Page, server: CorralProcess) -> Iterator[None]:
    """An answer with all that can be in one."""
    opened = ChatPage(page, server.url).open()
    opened.force(FENCE)
    opened.set("Probabilities", 3)
    opened.page.get_by_role("button", name="Close the settings").click()
    opened.ask("How much rope do I need for a corral?")
    page.get_by_role("heading", name="How much rope").first.hover()
    yield


# Whoever enters one of these finds the page as it should look.
PAGES: dict[str, Callable[[Page, CorralProcess], AbstractContextManager[None]]] = {
    "chat": chat,
    "monitor": monitor,
}


@contextlib.contextmanager
def clients(server: CorralProcess, n: int) -> Iterator[None]:
    """So many ask for one story after the other, meanwhile."""
    is_over = threading.Event()

    def ask(first: int) -> None:
        for i in itertools.count(first):
            topic, n_predict = TOPICS[i % len(TOPICS)], 40 + 37 * i % 90
            body = {
                "prompt": f"{STORY}Tell a story about {topic}.",
                "n_predict": n_predict,
                "ignore_eos": True,
            }
            httpx.post(server.url + "/completion", json=body, timeout=START_S).raise_for_status()
            if is_over.wait(0.3 * (i % 4)):
                return

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def main(names: list[str]) -> None:
    FOLDER.mkdir(exist_ok=True)
    expect.set_options(timeout=START_S * 1000)
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with CorralProcess(*OPTIONS) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=sandbox)
        for name, scheme in itertools.product(names or PAGES, ("light", "dark")):
            with browser.new_context(viewport=SIZE, color_scheme=scheme) as context:
                page = context.new_page()
                page.set_default_timeout(START_S * 1000)
                with PAGES[name](page, server):
                    page.screenshot(path=FOLDER / f"{name}-{scheme}.png")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
