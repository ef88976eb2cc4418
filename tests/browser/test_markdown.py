"""Text of a model in a real browser, under the server's own policy: safe, quick, however it arrives."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.chat_page import keep_notes
from tests.browser.conftest import OPTIONS, PATIENCE_MS
from tests.browser.hostile import HOSTILE
from tests.browser.problem import Problems

PLAYGROUND = Path(__file__).parent / "markdown_playground.js"
RICH = """\
# Title

Some **bold**, *slanted*, ~~struck~~ words, `code`, a [link](https://a.test/ "its title") and $E = mc^2$.
A second line.

1. one
   - inner
   - [x] done
2. two

| left | right |
| :--- | ----: |
| $a_1$ | `b` |
| <br> | [ref] |

> A quote
> over two lines

```python
def f(x: int) -> str:
    return f"{x}"  # comment
```

$$
\\int_0^1 x\\,dx = \\frac{1}{2}
$$

Setext
------

\\[ a^2 + b^2 = c^2 \\]

    indented

[ref]: https://b.test/
"""
FRAGMENTS = [
    *(
        "\n",
        "\n\n",
        "\n\n\n",
        " ",
        "    ",
        "\t",
        "- a",
        "- ",
        "* b",
        "1. x",
        "2) y",
        "> q",
        ">",
        "1",
        "+ b",
        "- [ ] t",
    ),
    *(
        "```",
        "```py",
        "~~~",
        "`c`",
        "$$",
        "\\[",
        "\\]",
        "$x$",
        "\\(y\\)",
        "\\",
        "a_b",
        "**b**",
        "*",
        "foo",
        "bar baz",
    ),
    *(
        "# H",
        "---",
        "===",
        "-",
        "=",
        "| a | b |\n",
        "|---|---|\n",
        "| 1 | 2 |\n",
        "<div>",
        "<!--",
        "<br>",
        "&amp;",
    ),
    *("[a]: http://x", "[a]", "[b][a]", "[b]: z 't'", "https://x.y", "[", "]:", '"'),
]


def play_on(page, corral):
    """Functions of the playground, on a page of the server that has nothing in it but text."""
    page.goto(corral.url + "/js/markdown.js")
    page.evaluate(PLAYGROUND.read_text())
    return lambda name, *arguments: page.evaluate("([name, list]) => play[name](...list)", [name, arguments])


@pytest.fixture
def markdown(page, corral):
    return play_on(page, corral)


@pytest.fixture(scope="module")
def shared_page(browser, corral):
    """A page for many short tests, and what goes wrong in it."""
    context = browser.new_context(**OPTIONS)
    context.set_default_timeout(PATIENCE_MS)
    problems = Problems()
    problems.watch(context)
    page = context.new_page()
    page.on("dialog", lambda dialog: (problems.all.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    yield play_on(page, corral), problems
    context.close()


@pytest.fixture
def quick(shared_page):
    """As `markdown`, on a page on which other texts were shown before."""
    play, problems = shared_page
    problems.all.clear()
    yield play
    assert not problems.unexpected, "\n".join(problems.unexpected)


@pytest.mark.parametrize("text", [RICH, "", "plain", "a\r\n\r\nb"])
def test_however_it_arrives_it_ends_the_same(quick, text):
    once = quick("show", text)
    assert quick("stream", text, [*range(1, len(text))]) == once


def test_random_texts_cut_anywhere_end_the_same(quick):
    chance = random.Random(8)
    for _ in range(120):
        parts = chance.choices(FRAGMENTS, k=chance.randint(2, 25))
        text = "".join(part + chance.choice(("", "", "\n")) for part in parts)
        cuts = sorted(chance.sample(range(len(text) + 1), k=min(len(text), chance.randint(1, 30))))
        assert quick("stream", text, cuts) == quick("show", text), (text, cuts)


@pytest.mark.parametrize(
    ("text", "seen"), HOSTILE, ids=lambda value: value[:40].encode("unicode_escape").decode()
)
def test_nothing_hostile_runs(quick, text, seen):
    shown = quick("attack", text)
    assert shown["bad"] == []
    assert shown["hacked"] is False
    assert re.sub(r"\s+", " ", seen).strip() in re.sub(r"\s+", " ", shown["text"])
    assert shown["isSame"]


def test_there_are_enough_attacks_and_they_would_be_noticed(markdown, problems):
    problems.allow("Content Security Policy")
    assert len(HOSTILE) >= 100
    for html in (
        "<p onclick=x()>a</p>",
        "<p style=color:red>a</p>",
        "<form></form>",
        "<a href=javascript:x()>a</a>",
    ):
        assert markdown("faults", html) != [], html
    assert markdown("canHack") is True


def test_the_gate_alone_lets_nothing_through(markdown, page, problems):
    """HTML does not get there as such; if it did, nothing of it would run."""
    problems.allow(
        "inline event handler|inline style|base URI"
    )  # it is parsed, in a document that nobody sees
    for html, _ in HOSTILE:
        assert markdown("gate", html) in ([], ["refused"]), html
    assert page.evaluate("window.hacked") is False


def test_links_leave_no_trace(quick):
    html = quick("show", "[a](https://a.test/) <mailto:a@b.c> https://c.test/?q=1")
    links = re.findall(r"<a [^>]*>", html)
    assert len(links) == 3
    for link in links:
        assert 'rel="noopener noreferrer nofollow"' in link
        assert 'target="_blank"' in link


def test_pictures_of_other_hosts_are_links(quick):
    html = quick(
        "show", "![tree](https://a.test/tree.png) ![dot](data:image/gif;base64,R0lGODlhAQABAAAAACw=)"
    )
    assert re.search(r'<a href="https://a.test/tree.png"[^>]*>tree</a>', html)
    assert re.search(r'<img src="data:image/gif;base64,[^"]*" alt="dot">', html)


@pytest.mark.parametrize(
    ("text", "n_formulas"),
    [
        ("$x$", 1),
        ("$$x$$", 1),
        (r"\(x\) and \[y\]", 2),
        ("it costs $5 and $6", 0),
        ("US$5 to US$6, or $5-$6", 0),
        ("`$x$` and ```$y$```", 0),
        ("```\n$x$\n```", 0),
        ("$HOME and $PATH", 0),
        ("a $ b $ c", 0),
        ("Thus:\n$$\na\n+ b\n- c\n$$\nfollows", 1),
        ("*$a*b$* and **$c_d$**", 2),
        ("1. item\n   $$x$$\n2. $y$", 2),
        (r"$\frac{1}{$", 0),
        (r"$$\nosuchcommand{$$", 0),
        ("| a |\n| - |\n| $x$ |", 1),
        (r"\\(x\\)", 0),
    ],
)
def test_formulas(quick, text, n_formulas):
    html = quick("show", text)
    assert html.count('class="katex"') == n_formulas
    if n_formulas == 0:
        assert "is-drawn" not in html


def test_bad_formulas_stay_as_they_were_written(markdown, page):
    markdown("show", r"before $\frac{1}{$ after, and $$\left($$")
    assert page.inner_text(".markdown") == r"before $\frac{1}{$ after, and $$\left($$"


def test_finished_blocks_keep_their_nodes(quick):
    n_blocks, n_kept, is_code_kept = quick("keeps", RICH)
    assert n_blocks == 10
    assert n_kept == n_blocks
    assert is_code_kept


def test_code_is_coloured_and_copied(markdown, page, corral):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=corral.url)
    code = "def f(x):\n    return '<b>'  # & more"
    html = markdown("show", f"```python\n{code}\n```")
    assert '<span class="hljs-keyword">def</span>' in html
    assert page.inner_text(".code-language") == "python"
    assert page.inner_text(".code code") == code
    keep_notes(page)
    page.get_by_role("button", name="Copy the code").click()
    expect(page.locator(".code-copy").first).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == code


def test_code_of_any_other_language_is_plain(markdown, page):
    html = markdown("show", "```brainfuck\n+[<>]\n```\n\n```\nplain\n```")
    assert "hljs" not in html
    assert page.locator(".code-language").all_inner_texts() == ["brainfuck", "text"]


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("Here is it:\n```py", r"<p>Here is it:</p><div class=\"code\">"),
        ("Here is it:\n``", "<p>Here is it:</p>"),
        ("```py\nprint(1)\n``", r".*>print</span>\(.*<span class=\"hljs-number\">1</span>\)</code>.*"),
        ("A list:\n-", "<p>A list:</p>"),
        ("A title?\n=", r"<p>A title\?</p>"),
        ("| a | b |\n|--", r"<p>\| a \| b \|</p>"),
    ],
)
def test_unfinished_marks_do_not_flicker(quick, text, html):
    assert re.match(html, quick("writing", text).replace("\n", ""))


def test_nothing_is_loaded_before_it_is_needed(page, corral):
    asked = []
    page.on("request", lambda request: asked.append(request.url.removeprefix(corral.url)))
    page.goto(corral.url)
    page.evaluate(PLAYGROUND.read_text())
    page.evaluate("play.show('**words** and `code`\\n\\n| a |\\n| - |')")
    assert any("marked" in path for path in asked)
    assert not any(re.search("highlight|katex|colour_worker", path) for path in asked)
    page.evaluate("play.show('$x$')")
    assert any("katex.css" in path for path in asked)
    assert not any("highlight" in path for path in asked)
    page.evaluate("play.show('```js\\nlet x;\\n```')")
    assert any("highlight" in path for path in asked)


MONSTERS = {
    "brackets": "[" * 100_000,
    "stars": "**" * 50_000,
    "underscores": "a__b_" * 20_000,
    "mixed": "*_`~[" * 20_000,
    "quotes": ">" * 100_000,
    "lists": "- " * 50_000,
    "quoted lists": "> - 1. " * 14_000,
    "deeper and deeper": "\n".join("  " * i + "- a" for i in range(400)),
    "one line": "word " * 200_000,
    "many blocks": "a\n\n" * 60_000,
    "many rows": "|a|b|\n|-|-|\n" * 4_000,
    "dollars": "$a" * 50_000,
    "many formulas": "$x$ " * 20_000,
    "backslashes": "\\(" * 50_000,
    "a tower": "$$" + r"\frac{1}{" * 300 + "x" + "}" * 300 + "$$",
    "macros": r"$$\def\a{\a\a}\a$$",
    "colours": "$$" + r"\color{red}" * 300 + "x$$",
    "definitions": "".join(f"[{i}]: b\n" for i in range(9_000)),
    "slow code": "```csharp\n" + ("public a " * 110 + "\n") * 45 + "```",
    "links": "![a](" * 20_000,
    "ticks": "`a" * 50_000,
    "a megabyte": ("**a** $x$ [b](c)\n\n" * 70_000)[:1_000_000],
}


@pytest.mark.parametrize("name", MONSTERS)
def test_monsters_do_not_stop_the_page(markdown, name):
    text = MONSTERS[name]
    worst_ms, shown = markdown("time", text)
    assert worst_ms < 30_000
    assert len(shown) > 0 or name == "definitions"


def test_long_text_is_shown_as_it_was_written(markdown, page):
    text = "**a** <b>\n" * 25_000
    html = markdown("stream", text, [100, 150_000, 200_000, 210_000])
    assert html.startswith('<div class="plain-text">**a** &lt;b&gt;\n**a**')
    assert page.evaluate("document.querySelector('.markdown').textContent") == text


def test_while_it_grows_only_the_end_is_read_again(markdown):
    """Work for each new piece does not grow with what is there already."""
    reads = markdown("reads", "Some words of *this* paragraph, and `more`.\n\n" * 300)
    assert len(reads) > 600
    assert max(reads) < 200


GROW = """async ({ text, step }) => {
  const { html, render } = await import("/js/html.js");
  const { Markdown } = await import("/js/view/markdown.js");
  document.body.replaceChildren();
  for (let end = 0; end <= text.length; end += step) {
    render(html`<${Markdown} text=${text.slice(0, end)} isWriting=${true} />`, document.body);
    await new Promise(requestAnimationFrame);
  }
  const last = document.querySelector(".markdown").textContent;
  render(html`<${Markdown} text=${text} />`, document.body);
  const element = document.querySelector(".markdown");
  await new Promise(requestAnimationFrame);
  return [last.length, element.className];
}"""


def test_the_view_shows_a_growing_text(markdown, page):
    shown, classes = page.evaluate(GROW, {"text": RICH, "step": 25})
    assert shown > 0  # not only at the end; how much depends on the machine
    assert classes == "markdown"
    expect(page.locator(".katex")).to_have_count(4)
    expect(page.locator(".hljs-keyword").first).to_be_attached()
    html = page.inner_html(".markdown")
    assert html == markdown("show", RICH)


def test_a_view_that_leaves_while_it_is_drawn_leaves_nothing(markdown, page):
    left = page.evaluate(
        """async (text) => {
          const { html, render } = await import("/js/html.js");
          const { Markdown } = await import("/js/view/markdown.js");
          document.body.replaceChildren();
          for (let end = 1; end < text.length; end += 7) {
            render(html`<${Markdown} text=${text.slice(0, end)} isWriting=${true} />`, document.body);
          }
          render(null, document.body);
          await new Promise((resolve) => setTimeout(resolve, 100));
          return document.body.innerHTML;
        }""",
        RICH,
    )
    assert left == ""
