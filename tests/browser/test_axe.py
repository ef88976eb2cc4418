"""axe finds nothing to object to on the pages: light, dark, and on a phone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.chat_file import CHATS, file_of
from tests.browser.chat_page import ChatPage
from tests.browser.look import show_answer
from tests.system.process import CorralProcess
from tests.tools.tiny_models import llama_bpe

AXE = Path(__file__).parents[2] / ".cache" / "npm" / "node_modules" / "axe-core" / "axe.min.js"
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True},
}
RICH = """# A corral

It needs **rope**, `nails` and [a plan](https://example.com):

1. poles
   - of oak
2. rails

> Measure twice.

| radius | rope |
| --- | --- |
| 5 m | 99 m |

```python
def rope(radius: float) -> float:
    return 6.28 * radius  # metres
```

$$L = 2 \\pi r$$
"""
FINDINGS = """async () => {
  const { violations } = await axe.run({ resultTypes: ["violations"] });
  const said = (id) => ({ target, failureSummary }) => `${id}: ${target}: ${failureSummary}`;
  return violations.flatMap(({ id, nodes }) => nodes.map(said(id)));
}"""


@pytest.fixture(params=LOOKS)
def page(request, new_page) -> Page:
    if not AXE.exists():
        pytest.skip("axe is not installed: make dev does it where npm is there")
    return new_page(**LOOKS[request.param])


@pytest.fixture
def chat(page, corral) -> ChatPage:
    return ChatPage(page, corral.url).open()


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Iterator[CorralProcess]:
    shelf = tmp_path_factory.mktemp("shelf")
    first = llama_bpe(shelf).rename(shelf / "alpha.gguf")
    shutil.copy(first, shelf / "beta.gguf")
    with CorralProcess("--models-dir", shelf, "-c", 1024) as server:
        yield server


def findings(page: Page) -> list[str]:
    page.evaluate("Promise.all(document.getAnimations().map((each) => each.finished.catch(() => {})))")
    page.evaluate(AXE.read_text() + "; undefined")
    return page.evaluate(FINDINGS)


def test_an_empty_chat(chat, page):
    expect(page.locator(".cards button")).to_have_count(4)
    assert findings(page) == []


def test_a_rich_chat(chat, page):
    timings = {"prompt_n": 20, "prompt_ms": 90, "predicted_n": 80, "predicted_ms": 2300, "cache_n": 8}
    answer = show_answer(chat, RICH, reasoning="First the posts.", ms=2_000, timings=timings)
    expect(answer.locator(".formula.is-drawn")).to_be_visible()
    expect(answer.locator("pre code span").first).to_be_visible()
    assert findings(page) == []


def test_the_settings(chat, page):
    panel = chat.open_settings()
    panel.locator("details").evaluate_all("(all) => all.forEach((each) => (each.open = true))")
    assert findings(page) == []


def test_the_models(page, many):
    ChatPage(page, many.url).open()
    page.get_by_role("button", name="Models", exact=True).click()
    expect(page.get_by_role("dialog", name="Models")).to_contain_text("beta")
    assert findings(page) == []


def test_the_monitor(page, corral):
    page.goto(corral.url + "/monitor")
    expect(page.locator("main")).to_be_visible()
    expect(page.locator(".tile").first).to_be_visible()
    assert findings(page) == []


def test_results_of_a_search(chat, page):
    page.get_by_label("File with chats").set_input_files(file_of(*CHATS))
    expect(page.locator(".entry")).to_have_count(3)
    if (button := page.get_by_role("button", name="Chats", exact=True)).is_visible():
        button.click()
    page.get_by_label("Search chats").fill("zebra")
    expect(page.locator(".snippet").first).to_be_visible()
    assert findings(page) == []
    page.get_by_role("link", name="Animals").click()
    expect(page.locator(".hits").get_by_role("status")).to_have_text("1 of 3")
    assert findings(page) == []


@pytest.mark.parametrize("name", ["Prompts", "Tools"])
def test_dialogs(chat, page, name):
    page.locator(".composer").get_by_role("button", name=name, exact=True).click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert findings(page) == []
