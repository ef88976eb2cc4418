"""An answer token by token, in a real browser, with tokens of a real model."""

from __future__ import annotations

import json

import httpx
import pytest
from playwright.sync_api import expect

from tests.system.process import CorralProcess

SHOW = """async ({ chunks, tokens }) => {
  const { html, render } = await import("/js/html.js");
  const { tokensOf } = await import("/js/token.js");
  const { TokenView } = await import("/js/view/token_view.js");
  for (const name of ["base", "tokens"]) {
    const link = document.createElement("link");
    Object.assign(link, { rel: "stylesheet", href: `/css/${name}.css` });
    await new Promise((resolve) => { link.onload = resolve; document.head.append(link); });
  }
  document.body.replaceChildren();
  const all = tokens ?? chunks.flatMap(tokensOf);
  render(html`<${TokenView} tokens=${all} /><button type="button">next</button>`, document.body);
  return all;
}"""
TOKENS = [
    {"text": "The", "prob": 0.97, "top": [{"text": "The", "prob": 0.97}, {"text": "A", "prob": 0.02}]},
    {"text": " cat", "prob": 0.31, "top": [{"text": " dog", "prob": 0.4}, {"text": " cat", "prob": 0.31}]},
    {"text": "\n\n", "prob": 0.0004, "top": [{"text": ".", "prob": 0.6}]},
    {"text": "<img src=x onerror=alert(1)>", "prob": 0.5, "top": []},
    {"text": "", "prob": 1, "top": []},
    {"text": " sat", "prob": 0.8, "top": []},
]


@pytest.fixture(scope="module")
def corral():
    with CorralProcess("-c", 1024) as server:
        yield server


@pytest.fixture
def show(page, corral):
    page.goto(corral.url + "/js/token.js")
    return lambda **given: page.evaluate(SHOW, {"chunks": [], "tokens": None, **given})


def chunks(corral, **body):
    body = {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True, "stream": True, **body}
    with httpx.stream("POST", corral.url + "/v1/chat/completions", json=body, timeout=300) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def test_tokens_of_a_real_stream_spell_the_answer(show, page, corral):
    text = "🙂 é\n漢字 ok"
    grammar = f"root ::= {json.dumps(text, ensure_ascii=False)}"
    tokens = show(chunks=chunks(corral, grammar=grammar, top_logprobs=3, max_tokens=40))
    assert any("bytes" in token for token in tokens)  # some are pieces of characters
    for token in tokens:
        assert 0 <= token["prob"] <= 1
        assert len(token["top"]) == 3
        assert [other["prob"] for other in token["top"]] == sorted(
            (o["prob"] for o in token["top"]), reverse=True
        )
    shown = page.locator(".token").all_text_contents()
    assert "".join(shown).replace("↵", "") == text
    assert shown[0] == "🙂"


def test_probabilities_are_those_of_the_server(show, corral):
    made = chunks(corral, top_logprobs=2, max_tokens=4, temperature=0)
    tokens = show(chunks=made)
    content = [
        token for chunk in made for token in (chunk["choices"][0].get("logprobs") or {}).get("content", [])
    ]
    assert [token["text"] for token in tokens] == [token["token"] for token in content]
    assert len(tokens) == 4
    for token in tokens:
        assert token["prob"] == pytest.approx(token["top"][0]["prob"])  # the likeliest is taken


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([[240, 159], [153, 130]], ["🙂"]),
        ([[240], [159], [153], [130]], ["🙂"]),
        ([[230, 188], [162, 97]], ["漢a"]),
        ([[230], [97]], ["‹E6›", "a"]),
        ([[153], [130]], ["‹99›", "‹82›"]),
        ([[240, 159]], ["‹F0›‹9F›"]),
        ([[97], [240, 159], [153, 130], [98]], ["a", "🙂", "b"]),
        ([[255], [97]], ["‹FF›", "a"]),
    ],
)
def test_pieces_of_characters_are_joined(page, corral, pieces, expected):
    page.goto(corral.url + "/js/token.js")
    joined = page.evaluate(
        """async (pieces) => {
          const { joinTokens, tokensOf } = await import("/js/token.js");
          const decode = (bytes) => new TextDecoder().decode(new Uint8Array(bytes));
          const content = pieces.map((bytes) => ({ token: decode(bytes), bytes, logprob: Math.log(0.5) }));
          return joinTokens(tokensOf({ choices: [{ logprobs: { content } }] }));
        }""",
        pieces,
    )
    assert [token["text"] for token in joined] == expected
    assert joined[-1]["prob"] == pytest.approx(0.5 ** len(joined[-1].get("pieces", [0])))


@pytest.mark.parametrize("chunk", [None, {}, {"choices": []}, {"choices": [{"logprobs": None}]}])
def test_a_chunk_without_probabilities_has_no_tokens(page, corral, chunk):
    page.goto(corral.url + "/js/token.js")
    assert page.evaluate("async (chunk) => (await import('/js/token.js')).tokensOf(chunk)", chunk) == []


def test_the_pointer_shows_what_else_there_was(show, page):
    show(tokens=TOKENS)
    details = page.locator(".token-details")
    expect(details).to_have_count(0)
    page.locator(".token").nth(1).hover()
    expect(details).to_be_visible()
    expect(details.locator("code")).to_have_text(["␣cat", "␣dog"])
    assert details.locator(".token-percent").all_inner_texts() == ["31.0 %", "40.0 %"]
    widths = details.locator(".token-share span").evaluate_all("all => all.map((bar) => bar.style.width)")
    assert widths == ["31%", "40%"]
    page.locator(".token").nth(2).hover()
    expect(details.locator("code").first).to_have_text("↵↵")
    assert details.locator(".token-percent").first.inner_text() == "< 0.1 %"
    page.get_by_role("button", name="next").hover()
    expect(details).to_have_count(0)


def test_keys_move_between_tokens_and_there_is_one_stop(show, page):
    show(tokens=TOKENS)
    page.keyboard.press("Tab")
    options = page.get_by_role("option")
    chosen = page.locator(".token[aria-selected=true]")
    expect(chosen).to_have_text("The")
    assert chosen.get_attribute("aria-label") == "The, 97.0 %; or A 2.0 %"
    assert page.get_by_role("listbox").get_attribute("aria-activedescendant") == chosen.get_attribute("id")
    for key, text in [
        ("ArrowRight", " cat"),
        ("ArrowLeft", "The"),
        ("ArrowLeft", "The"),
        ("End", " sat"),
        ("ArrowRight", " sat"),
        ("ArrowLeft", "∅"),
        ("ArrowUp", "↵ ↵"),
        ("Home", "The"),
    ]:
        page.keyboard.press(key)
        expect(chosen).to_have_count(1)
        expect(chosen).to_have_text(text)
    expect(options).to_have_count(len(TOKENS))
    page.keyboard.press("Escape")
    expect(page.locator(".token-details")).to_have_count(0)
    page.keyboard.press("ArrowRight")
    expect(page.locator(".token-details")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="next")).to_be_focused()
    expect(page.locator(".token-details")).to_have_count(0)


def test_lines_are_one_key_apart(show, page):
    words = [{"text": f"word{i} ", "prob": 0.5, "top": []} for i in range(200)]
    page.set_viewport_size({"width": 500, "height": 400})
    show(tokens=words)
    page.mouse.move(250, 200)  # where it stays, while tokens scroll away below it
    page.keyboard.press("Tab")
    page.keyboard.press("Home")
    chosen = page.locator(".token[aria-selected=true]")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(chosen).to_have_text("word3 ")
    before = chosen.bounding_box()
    page.keyboard.press("ArrowDown")
    expect(chosen).not_to_have_text("word3 ")
    after = chosen.bounding_box()
    assert before["y"] < after["y"] < before["y"] + 2 * before["height"]
    assert abs(before["x"] - after["x"]) < 60
    page.keyboard.press("ArrowUp")
    expect(chosen).to_have_text("word3 ")
    page.keyboard.press("End")
    expect(chosen).to_have_text("word199 ")
    expect(chosen).to_be_in_viewport()
    expect(page.locator(".token-details")).to_be_in_viewport(ratio=1)


def test_a_finger_shows_it_too(new_page, corral):
    page = new_page(has_touch=True, viewport={"width": 390, "height": 700})
    page.goto(corral.url + "/js/token.js")
    page.evaluate(SHOW, {"chunks": [], "tokens": TOKENS})
    page.locator(".token").nth(1).tap()
    expect(page.locator(".token-details")).to_be_in_viewport(ratio=1)
    expect(page.locator(".token-details code").first).to_have_text("␣cat")


def test_less_likely_is_darker(show, page):
    show(tokens=TOKENS)
    shades = page.locator(".token").evaluate_all("all => all.map((token) => token.className)")
    assert shades == [f"token shade-{n}" for n in (9, 3, 0, 5, 9, 8)]
    colours = page.locator(".token-legend span").evaluate_all(
        "all => all.map((each) => getComputedStyle(each).backgroundColor)"
    )
    assert len(set(colours)) == 10


def test_text_of_tokens_is_only_text(show, page):
    show(tokens=TOKENS)
    assert page.locator(".token").nth(3).text_content() == "<img src=x onerror=alert(1)>"
    assert page.locator("img").count() == 0
