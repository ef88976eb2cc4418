"""Writing with the model: alternatives side by side, answers that continue edited words, what a turn costs,
titles, reasoning, formulas that are copied, chats as files."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import expect

from tests.browser.chat_page import ChatPage, keep_notes
from tests.browser.look import PHONE, is_inside, show_answer, show_chat
from tests.system.process import CorralProcess

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
HOSTILE = (
    "<script>window.hacked = 1</script></style></title></textarea></pre>"
    "<img src=x onerror='window.hacked = 2'><!--style--> &lt;script&gt;"
)
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmM"
    "IQAAAABJRU5ErkJggg=="
)


@pytest.fixture(scope="module")
def corral(models, tmp_path_factory):
    template = tmp_path_factory.mktemp("template") / "thinks.jinja"
    template.write_text(TEMPLATE)
    options = ("-c", 4096, "-np", 4, "--chat-template-file", template)
    with CorralProcess("-m", models / "llama-bpe.gguf", *options) as server:
        yield server


@pytest.fixture
def chat(page, corral) -> ChatPage:
    return ChatPage(page, corral.url).open()


def requests_of(page) -> list[dict]:
    bodies: list[dict] = []
    page.on("request", lambda r: bodies.append(r.post_data_json) if "chat/completions" in r.url else None)
    return bodies


def close_settings(page) -> None:
    page.get_by_role("button", name="Close the settings").click()


def test_answers_side_by_side(chat, page):
    bodies = requests_of(page)
    chat.force("yes", "no", "maybe")
    close_settings(page)
    chat.ask("Is it?")
    chat.do("Compare answers")
    panel = page.get_by_role("dialog", name="One answer")
    panel.get_by_role("button", name="3 more").click()
    panel = page.get_by_role("dialog", name="4 answers")
    expect(panel.get_by_role("button", name="3 more")).to_be_visible()
    columns = panel.locator(".columns .markdown")
    expect(columns).to_have_text([re.compile("yes|no|maybe")] * 4)
    second = columns.nth(1).inner_text()
    assert (bodies[0].get("n"), bodies[1]["n"]) == (None, 3), "the prompt is evaluated once"
    panel.get_by_role("button", name="Use answer 2").click()
    expect(panel).to_have_count(0)
    expect(chat.last.locator(".alternatives")).to_have_text("2 / 4")
    expect(chat.last.locator(".markdown")).to_have_text(second)
    page.reload()
    chat.wait_until_ready()
    expect(chat.last.locator(".alternatives")).to_have_text("2 / 4")


def branches(*texts: str) -> dict:
    ids = [f"{i:032x}" for i in range(len(texts) + 1)]
    question = {"id": ids[0], "parent": None, "role": "user", "content": "Go on.", "createdAt": 0}
    answers = [
        {"id": ids[i], "parent": ids[0], "role": "assistant", "content": text, "createdAt": i}
        for i, text in enumerate(texts, 1)
    ]
    return {each["id"]: each for each in [question, *answers]}


def test_the_differences_of_branches(chat, page):
    messages = branches("The sea is <b>blue</b>.", "The sea is <i>green</i> today.", "Nothing.")
    show_chat(chat, messages, f"{2:032x}")
    chat.do("Compare answers")
    page.get_by_role("button", name="Differences").click()
    diff = page.get_by_label("Differences", exact=True)
    expect(diff.locator("del", has_text="blue")).to_be_visible()
    expect(diff.locator("ins", has_text="green")).to_be_visible()
    expect(diff.locator("ins", has_text="today")).to_be_visible()
    expect(diff.locator("b, i")).to_have_count(0)
    page.get_by_label("To branch", exact=True).select_option("Branch 3")
    expect(diff.locator("ins", has_text="Nothing")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_side_by_side_on_a_phone(new_page, corral, scheme):
    chat = ChatPage(new_page(**PHONE, color_scheme=scheme), corral.url).open()
    show_chat(chat, branches("One. " * 200, "Two. " * 200), f"{2:032x}")
    chat.do("Compare answers")
    panel = chat.page.get_by_role("dialog", name="2 answers")
    expect(panel.locator(".columns .markdown").first).to_contain_text("One.")
    assert is_inside(panel)
    assert chat.page.evaluate("document.documentElement.scrollWidth") <= 360


def test_an_answer_goes_on_from_edited_words(chat, page):
    bodies = requests_of(page)
    chat.force("wrong")
    chat.ask("Which colour?")
    chat.force(" blue.")
    close_settings(page)
    chat.do("Edit")
    field = chat.last.get_by_label("The message")
    expect(field).to_be_focused()
    assert field.evaluate("(area) => area.selectionStart") == len("wrong")
    field.fill("It is")
    chat.do("Continue from here")
    expect(chat.last.locator(".markdown")).to_have_text("It is blue.")
    chat.wait_for_end()
    assert bodies[-1]["messages"][-1] == {"role": "assistant", "content": "It is"}
    expect(chat.last.locator(".alternatives")).to_have_text("2 / 2")
    chat.do("Previous branch")
    expect(chat.last.locator(".markdown")).to_have_text("wrong")


def test_a_stopped_answer_offers_to_edit_its_end(chat, page):
    show_answer(chat, "It is", state="stopped")
    chat.do("Edit the end")
    expect(chat.last.get_by_label("The message")).to_have_value("It is")


def test_what_a_turn_costs_and_what_fills_the_context(chat, page):
    chat.force("yes")
    chat.set("System prompt", "Be brief.")
    close_settings(page)
    chat.ask("Is it so?")
    chat.ask("Really?")
    timings = chat.last.locator(".timings")
    expect(timings).to_contain_text(re.compile(r"[\d.]+ s\b"))
    cached, n_prompt = chat.cached()
    chat.do("Cost and context")
    panel = page.get_by_role("dialog", name="Cost and context")
    expect(panel.get_by_role("row", name="System prompt")).to_be_visible()

    def tokens(name: str, table: int) -> int:
        row = panel.locator("table").nth(table).locator("tr", has_text=name)
        return int(row.locator("td").first.inner_text().split()[0].replace(",", ""))

    assert tokens("Prompt, cached", 0) == cached
    assert tokens("Prompt, evaluated", 0) + tokens("Prompt, cached", 0) == n_prompt
    names = ("System prompt", "Your messages", "Earlier answers", "Chat template")
    assert sum(tokens(name, 1) for name in names) == n_prompt
    used = sum(tokens(name, 1) for name in (*names, "This answer"))
    n_ctx = page.evaluate("fetch('/props').then((r) => r.json())")["default_generation_settings"]["n_ctx"]
    assert used + tokens("Free", 1) == n_ctx
    expect(panel.locator("caption").last).to_have_text("All 2 answers of this chat")


def test_reasoning_is_switched_where_one_writes(chat, page):
    bodies = requests_of(page)
    switch = page.get_by_label("Reasoning", exact=True)
    expect(switch.locator("option")).to_have_text(["Reasoning", "No reasoning"])
    chat.force("yes")
    close_settings(page)
    chat.ask("One?")
    switch.select_option("No reasoning")
    chat.ask("Two?")
    assert "reasoning_effort" not in bodies[0]
    assert bodies[1]["reasoning_effort"] == "none"
    page.reload()
    chat.wait_until_ready()
    expect(switch).to_have_value("none")


def test_the_switch_leaves_room_to_write_on_a_phone(new_page, corral):
    chat = ChatPage(new_page(**PHONE), corral.url).open()
    expect(chat.page.get_by_label("Reasoning", exact=True)).to_be_visible()
    box = chat.box.bounding_box()
    assert box
    assert box["width"] > 300


def force_title(page, title: str) -> None:
    """The model writes this when it is asked for a title."""

    def change(route):
        body = route.request.post_data_json
        grammar = {} if body.get("stream") else {"grammar": f"root ::= {json.dumps(title)}"}
        route.continue_(post_data=json.dumps({**body, **grammar}))

    page.route("**/v1/chat/completions", change)


def test_the_model_writes_a_title(chat, page):
    force_title(page, 'Title: "Fruit trees."')
    chat.force("yes")
    chat.ask("About apples")
    chat.choose("About apples", "Title by the model")
    expect(page.locator(".entry a")).to_have_text(["Fruit trees"])
    expect(page.locator("h1")).to_have_text("Fruit trees")


def test_titles_in_idle_time_when_they_are_switched_on(chat, page):
    force_title(page, "Fruit trees")
    page.keyboard.press("Control+k")
    page.get_by_label("Command or chat").fill("titles by the model")
    page.get_by_role("option", name="Titles by the model: switch on").click()
    chat.force("yes")
    chat.use_for_new_chats()
    chat.ask("About apples")
    expect(page.locator(".entry a")).to_have_text(["Fruit trees"])
    page.get_by_role("button", name="New chat", exact=True).click()
    chat.ask("About pears")
    expect(page.locator(".entry a")).to_have_text(["Fruit trees", "Fruit trees"])
    chat.choose("Fruit trees", "Rename")
    page.get_by_label("Chat title").fill("Mine")
    page.get_by_label("Chat title").press("Enter")
    expect(page.locator(".entry a")).to_have_text(["Mine", "Fruit trees"])
    chat.ask("More about pears")
    expect(page.locator(".entry a")).to_have_text(["Mine", "Fruit trees"])


def test_formulas_are_copied_as_latex(corral, new_context):
    context = new_context(permissions=["clipboard-read", "clipboard-write"])
    chat = ChatPage(context.new_page(), corral.url).open()
    show_answer(chat, r"Take $x^2$ and" + "\n\n" + r"\[\frac{1}{2}\]" + "\n\nfor it.")
    page = chat.page
    formulas = chat.last.locator(".formula.is-drawn")
    expect(formulas).to_have_count(2)
    keep_notes(page)
    formulas.nth(1).click()
    expect(formulas.nth(1)).to_have_class(re.compile("is-copied"))
    assert page.evaluate("navigator.clipboard.readText()") == r"\[\frac{1}{2}\]"
    page.evaluate("getSelection().selectAllChildren(document.querySelector('.message.assistant .markdown'))")
    page.keyboard.press("Control+c")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.split() == ["Take", "$x^2$", "and", r"\[\frac{1}{2}\]", "for", "it."]


def share(chat: ChatPage, tmp_path):
    page = chat.page
    page.keyboard.press("Control+k")
    page.get_by_label("Command or chat").fill("share")
    page.keyboard.press("Enter")
    with page.expect_download() as download:
        page.get_by_role("button", name="Share as an HTML file").click()
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    return file


def test_a_chat_as_a_file(chat, new_page, tmp_path, problems):
    problems.allow("file:///.*Shown.html$")
    text = "Some **bold** text, $x^2$ and\n\n```python\nprint('hi')\n```\n"
    show_answer(chat, text, reasoning="Hm.", images=[PIXEL])
    file = share(chat, tmp_path)
    assert file.name == "Shown.html"
    page = new_page(java_script_enabled=False, color_scheme="dark", **PHONE)
    page.goto(file.as_uri())
    expect(page.locator("article")).to_have_count(2)
    expect(page.locator("strong")).to_have_text("bold")
    expect(page.locator("math")).to_be_visible()
    expect(page.locator("pre .hljs-string")).to_be_visible()
    expect(page.locator("article > img")).to_be_visible()
    expect(page.locator("details")).to_contain_text("Hm.")
    expect(page.locator("button, input, link, iframe")).to_have_count(0)


def test_a_file_of_a_hostile_chat(chat, page, new_page, tmp_path, problems):
    problems.allow("file:///.*scriptwindow[^/]*.html$")
    ids = [f"{i:032x}" for i in range(3)]
    call = {"id": HOSTILE, "name": HOSTILE, "arguments": HOSTILE}
    svg = "data:image/svg+xml,<svg onload=hack()>"
    fields: list[dict[str, object]] = [
        {"role": "user", "content": HOSTILE, "images": [svg, PIXEL]},
        {"role": "assistant", "content": HOSTILE, "reasoning": HOSTILE, "toolCalls": [call]},
        {"role": "tool", "content": HOSTILE, "toolCallId": HOSTILE},
    ]
    messages = {
        id: {"id": id, "parent": ids[i - 1] if i else None, "createdAt": i, **fields[i]}
        for i, id in enumerate(ids)
    }
    show_chat(chat, messages, ids[-1])
    chat.choose("", "Rename")
    page.get_by_label("Chat title").fill(HOSTILE)
    page.get_by_label("Chat title").press("Enter")
    expect(page.locator("h1")).to_have_text(HOSTILE)
    file = share(chat, tmp_path)
    other = new_page()
    other.goto(file.as_uri())
    expect(other.locator("article")).to_have_count(3)
    assert other.evaluate("window.hacked") is None
    assert other.locator("script, [onerror], iframe, svg, img:not([src^='data:image/png'])").count() == 0
    assert other.locator("style").count() == 1
    assert other.inner_text("h1") == HOSTILE
    policy = other.locator("meta[http-equiv='Content-Security-Policy']").get_attribute("content")
    assert policy
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
