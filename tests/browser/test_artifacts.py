"""Previews of what a model has written: they show it, and it reaches neither the page nor any host."""

from __future__ import annotations

import httpx
import pytest
from playwright.sync_api import Locator, expect

from tests.browser.canary import Canary
from tests.browser.chat_page import ChatPage
from tests.browser.escape import CONTROL, RUNNING, STILL
from tests.browser.look import PHONE, show_answer
from tests.system.process import CorralProcess
from tests.tools.wait import wait_until

SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 10 10"><circle id="c" r="5" fill="red"/></svg>'
HTML = "<style>h1 { color: green }</style><h1>Hello</h1><script>document.body.append('ran')</script>"
GRAPH = "graph TD\n  A[Start] --> B{Is it?}\n  B -->|yes| C[End]"
PROBES = """async ([isRunning, texts]) => {
  const { togglePreview } = await import("/js/markdown/preview.js");
  const probes = texts.map(() => document.createElement("div"));
  document.body.append(...probes);
  await Promise.all(texts.map((text, i) => togglePreview(probes[i], "html", text)));
  if (isRunning) for (const each of probes) each.querySelector("button").click();
  const frames = probes.map((each) => each.querySelector("iframe"));
  await Promise.all(frames.map((each) => new Promise((resolve) => each.addEventListener("load", resolve))));
}"""


@pytest.fixture(scope="module")
def corral(models):
    with CorralProcess("-m", models / "llama-bpe.gguf", "-c", 512) as server:
        yield server


@pytest.fixture
def chat(page, corral) -> ChatPage:
    return ChatPage(page, corral.url).open()


def preview(chat: ChatPage, language: str, text: str) -> Locator:
    """The block of code, with its preview."""
    block = show_answer(chat, f"```{language}\n{text}\n```").locator(".code")
    if language != "mermaid":  # a diagram is drawn by itself
        block.get_by_role("button", name="Preview", exact=True).click()
    expect(block.locator("iframe")).to_be_visible()
    return block


def test_an_svg_is_drawn(chat):
    block = preview(chat, "svg", SVG)
    expect(block.frame_locator("iframe").locator("#c")).to_be_visible()
    expect(block.locator("pre")).to_be_hidden()
    block.get_by_role("button", name="Code", exact=True).click()
    expect(block.locator("pre")).to_be_visible()
    expect(block.locator("iframe")).to_have_count(0)


def test_scripts_run_only_when_asked_for(chat, problems):
    problems.allow("Content Security Policy")
    block = preview(chat, "html", HTML)
    inside = block.frame_locator("iframe")
    expect(inside.locator("h1")).to_have_css("color", "rgb(0, 128, 0)")
    expect(inside.locator("script")).to_have_count(0)
    expect(inside.locator("body")).not_to_contain_text("ran")
    block.get_by_role("button", name="Run its scripts").click()
    expect(inside.locator("body")).to_contain_text("ran")


@pytest.mark.parametrize(("is_running", "texts"), [(False, STILL), (True, RUNNING)], ids=["still", "running"])
def test_nothing_gets_out(chat, page, new_page, problems, is_running, texts):
    problems.allow(".")  # they are told off in the console
    title = page.title()
    with Canary() as canary, Canary() as control:
        page.evaluate(PROBES, [is_running, [text.replace("CANARY", canary.host) for text in texts]])
        other = new_page()
        other.set_content(CONTROL.replace("CANARY", control.host))
        wait_until(lambda: {each[:5] for each in control.arrived} >= {"GET /", "a dat"})
        assert canary.arrived == []
    assert page.title() == title
    assert page.url.startswith(chat.url)
    assert page.evaluate("[window.hacked, localStorage.hacked]") == [None, None]
    assert len(page.context.pages) == 1
    chat.box.fill("The page is still alive.")


def test_a_script_that_never_ends_does_not_stop_the_page(chat, page):
    block = preview(chat, "html", "<script>for (;;);</script>")
    block.get_by_role("button", name="Run its scripts").click()
    expect(block.get_by_role("button", name="Run again")).to_be_visible()
    chat.box.fill("The page is still alive.")
    block.get_by_role("button", name="Code", exact=True).click()
    expect(block.locator("iframe")).to_have_count(0)


def test_a_diagram(chat):
    block = preview(chat, "mermaid", GRAPH)
    inside = block.frame_locator("iframe")
    expect(inside.locator("svg text", has_text="Start")).to_be_visible()


HEIGHT = "(each) => each.getBoundingClientRect().height"


def test_a_preview_is_as_high_as_its_content_up_to_a_share_of_the_window(chat, page):
    short = preview(chat, "html", "<p>One line</p>").locator("iframe")
    page.wait_for_function(f"() => ({HEIGHT})(document.querySelector('iframe')) < 100")
    block = short.locator("xpath=ancestor::div[contains(@class, 'code')][1]")
    block.get_by_role("button", name="Code", exact=True).click()
    preview(chat, "html", "<p>One line</p>" * 200)
    page.wait_for_function(
        f"() => Math.abs(({HEIGHT})(document.querySelector('iframe')) - 0.7 * innerHeight) < 2"
    )


@pytest.mark.parametrize(
    ("text", "is_dark"), [("<p>Plain</p>", True), ("<p style='color:#111'>Own</p>", False)]
)
def test_a_preview_has_the_colours_of_the_page_unless_it_has_its_own(new_page, corral, text, is_dark):
    chat = ChatPage(new_page(color_scheme="dark"), corral.url).open()
    root = preview(chat, "html", text).frame_locator("iframe").locator("html")
    expect(root.locator("p")).to_be_visible()
    expect(root).to_have_css("background-color", "rgb(22, 24, 29)" if is_dark else "rgb(255, 255, 255)")


def test_a_preview_can_have_the_whole_screen(chat, page):
    block = preview(chat, "html", "<p>One line</p>")
    block.get_by_role("button", name="Full screen").click()
    page.wait_for_function("() => document.fullscreenElement?.localName === 'iframe'")


def test_what_is_previewed_can_be_downloaded(chat, page):
    block = preview(chat, "svg", SVG)
    with page.expect_download() as download:
        block.get_by_role("button", name="Download").click()
    assert download.value.suggested_filename == "drawing.svg"


HOSTILE_GRAPHS = [
    'graph TD\n  A["<img src=http://CANARY/label onerror=parent.hacked=1>"] --> B',
    'graph TD\n  A --> B\n  click A "javascript:parent.hacked=1" "x"\n  click B href "http://CANARY/click"',
    '%%{init: {"securityLevel": "loose", "htmlLabels": true}}%%\ngraph TD\n'
    '  A["<iframe src=http://CANARY/loose></iframe>"]',
    '%%{init: {"themeCSS": "* { background: url(http://CANARY/theme) }"}}%%\ngraph TD\n  A --> B',
    "graph TD\n  A[</script><script>parent.hacked=1</script>]",
]


@pytest.mark.parametrize("text", HOSTILE_GRAPHS)
def test_a_hostile_diagram(chat, page, problems, text):
    problems.allow("Content Security Policy|127.0.0.1")
    with Canary() as canary:
        block = preview(chat, "mermaid", text.replace("CANARY", canary.host))
        expect(block.frame_locator("iframe").locator("svg, pre").first).to_be_attached()
        assert canary.arrived == []
    assert page.evaluate("window.hacked") is None


def test_a_broken_diagram_says_so(chat):
    inside = preview(chat, "mermaid", "graph TD\n  A -->").frame_locator("iframe")
    expect(inside.locator("pre")).to_contain_text("Parse error")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone(new_page, corral, scheme):
    chat = ChatPage(new_page(**PHONE, color_scheme=scheme), corral.url).open()
    preview(chat, "svg", SVG)
    assert chat.page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("path", ["/artifact/still", "/artifact/run", "/artifact.html"])
def test_a_frame_has_no_origin_and_no_network(corral, path):
    headers = httpx.get(corral.url + path).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert (policy["default-src"], policy["sandbox"]) == ("'none'", "allow-scripts")
    assert (policy["form-action"], policy["base-uri"]) == ("'none'", "'none'")
    assert policy["frame-ancestors"] == "'self'"
    assert headers["x-frame-options"] == "SAMEORIGIN"
    assert ("'unsafe-inline'" in policy["script-src"]) == path.endswith("/run")
    sources = " ".join(policy.values())
    assert not any(each in sources for each in ("http", "*", "connect", "'unsafe-eval'"))
