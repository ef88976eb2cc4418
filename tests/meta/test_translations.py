"""Every text of the pages is in the file of each language, and nowhere else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from corral.telemetry.explain_cache import TEXTS as CACHE
from corral.telemetry.explain_time import TEXTS as SLOW
from tests.meta.js_text import literals

PAGE = Path(__file__).parents[2] / "corral" / "webui"
SOURCE = "en"
FILES = sorted((PAGE / "text").glob("*.json"))
FOLDERS = ("more", "monitor")  # texts of parts that are loaded on demand, and of the monitor
ALL_FILES = [*FILES, *(path for name in FOLDERS for path in sorted((PAGE / "text" / name).glob("*.json")))]
SCRIPTS = sorted((PAGE / "js").rglob("*.js"))
FORMS = {"zh-Hans": {"other"}, "ja": {"other"}}  # as of Intl.PluralRules; other languages have two

# What only the model reads, in English like its tools. `docs.js` belongs to a page in English.
FOR_MODELS = {"tools/calculator.js", "tools/loop.js", "docs.js", "titles.js", "files/length.js"}
ALLOWED = {
    # Keys as they are written on keyboards.
    *("Alt+N", "Alt+K", "Alt+S", "Alt+R", "Alt+/", "Ctrl+K", "Enter", "Esc"),
    # Names of events, headers, errors, files and other things of the web.
    *("Escape", "Files", "Slash", "Home", "End", "Conflict", "Content-Security-Policy", "Corral"),
    *(
        "KeyN",
        "KeyK",
        "KeyS",
        "KeyR",
        "ArrowDown",
        "ArrowUp",
        "ArrowLeft",
        "ArrowRight",
        "PageDown",
        "PageUp",
    ),
    *("AbortError", "TimeoutError", "QuotaExceededError", "PasswordException", "VersionError"),
    *(
        "Content-Type",
        "X-Conversation-Id",
        "If-Match",
        "If-None-Match",
        "RIFF",
        "WAVEfmt ",
        "Bearer {}",
        "{} · Corral",
    ),
    *("user/model:Q4_K_M", "noopener noreferrer nofollow", "a piece became more than one"),
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'",
    # Selectors, and names of elements and classes.
    "section p hr h1 h2 h3 h4 h5 h6 blockquote ul ol li pre table thead tbody tr th td",
    *("br code em strong del a img span", ".sidebar-foot input[type=file]", "part part-{}"),
    *("plain code-copy", "plain code-copy code-preview", "unseen copied"),
    *("KiB", "MiB", "12px system-ui, sans-serif"),
    # For the model.
    *("--- File: {} ---\\n{}\\n\\n", "'{}' is not a time zone.", "The tool took too long."),
    *("The arguments are not JSON.", "The arguments are not an object."),
    "{}\\n[cut: {} characters in all]",
}
PROSE = re.compile(r"(?<![A-Za-z])[A-Z][a-z]+|[a-z]{2,} [a-z]{2,}")
MARKUP = re.compile(r"<[a-z!]")
SHOWN_ATTRIBUTE = re.compile(r'\b(?:label|title|placeholder|alt|aria-label|text|name)="([^"]*)"')


def texts_of(path: Path) -> dict[str, str | dict[str, str]]:
    return json.loads(path.read_text())


def forms_of(text: str | dict[str, str]) -> dict[str, str]:
    return {"other": text} if isinstance(text, str) else text


def placeholders(text: str) -> list[str]:
    return sorted(set(re.findall(r"\{(\w+)\}", text)))


def source_of(path: Path) -> dict[str, str | dict[str, str]]:
    return texts_of(path.with_name(f"{SOURCE}.json"))


ENGLISH = texts_of(PAGE / "text" / f"{SOURCE}.json")
OTHERS = {name: texts_of(PAGE / "text" / name / f"{SOURCE}.json") for name in FOLDERS}
EACH = pytest.mark.parametrize("path", ALL_FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")


def test_the_page_offers_the_languages_that_have_a_file():
    source = (PAGE / "js" / "text.js").read_text()
    table = source.partition("export const LANGUAGES = {")[2].partition("};")[0]
    offered = re.findall(r'^  "?([\w-]+)"?: "', table, re.M)
    assert sorted(offered) == [path.stem for path in FILES]
    assert len(offered) >= 6


@pytest.mark.parametrize("name", FOLDERS)
def test_other_texts_are_in_the_same_languages(name):
    assert [path.name for path in sorted((PAGE / "text" / name).iterdir())] == [path.name for path in FILES]
    assert not set(ENGLISH) & set(OTHERS[name]), "those who load it have both"


@EACH
def test_no_text_is_missing_and_none_is_superfluous(path):
    texts = texts_of(path)
    assert list(texts) == list(source_of(path)), "the same keys in the same order"
    assert all(form.strip() == form != "" for text in texts.values() for form in forms_of(text).values())


@EACH
def test_a_key_is_written_once(path):
    keys = [key for key, _ in json.loads(path.read_text(), object_pairs_hook=list)]
    assert len(keys) == len(set(keys))


@EACH
def test_plurals_have_the_forms_of_the_language(path):
    wanted = FORMS.get(path.stem, {"one", "other"})
    english = source_of(path)
    for key, text in texts_of(path).items():
        assert isinstance(text, dict) == isinstance(english[key], dict), key
        if isinstance(text, dict):
            assert set(text) == wanted, key


@EACH
def test_placeholders_are_those_of_the_source(path):
    english = source_of(path)
    for key, text in texts_of(path).items():
        wanted = placeholders(forms_of(english[key])["other"])
        for name, form in forms_of(text).items():
            found = placeholders(form)
            assert found == wanted or (name == "one" and [*found, "n"] == wanted), key
            assert "{" not in re.sub(r"\{\w+\}", "", form), key


@EACH
def test_texts_are_translated(path):
    """Names of parameters and short words may be the same in two languages; sentences may not."""
    if path.stem != SOURCE:
        english = source_of(path)
        same = [key for key, text in texts_of(path).items() if text == english[key]]
        assert not [key for key in same if len(forms_of(english[key])["other"].split()) > 4]


def used_keys(source: str) -> tuple[set[str], set[str]]:
    """The keys that a script names, and the beginnings of those that it composes."""
    whole = set(re.findall(r'\b(?:t|parts)\(\s*"([\w.]+)"', source))
    begun = set(re.findall(r"\b(?:t|parts)\(\s*`([\w.]+)\$\{", source))
    return whole, begun


def used_by(scripts: list[Path]) -> tuple[set[str], tuple[str, ...]]:
    """The same of several scripts."""
    found = [used_keys(path.read_text()) for path in scripts]
    return set().union(*(whole for whole, _ in found)), tuple(set().union(*(begun for _, begun in found)))


def folder_of(path: Path) -> str:
    """The folder whose texts a script has, besides those that all have."""
    if "monitor" in path.parts:
        return "monitor"
    return "more" if "/more_text.js" in path.read_text() else ""


@pytest.mark.parametrize("name", ["", *FOLDERS])
def test_every_key_exists_and_is_used(name):
    whole, begun = used_by([path for path in SCRIPTS if not name or folder_of(path) == name])
    own = set(OTHERS.get(name, ENGLISH))
    assert not {key for key in own - whole if not key.startswith(begun)}
    named, _ = used_by([path for path in SCRIPTS if folder_of(path) == name])
    assert not named - own - set(ENGLISH)


def test_every_setting_and_group_has_its_texts():
    rows = re.findall(r'^  field\("(\w+)", "\w+", "(\w+)"', (PAGE / "js" / "settings.js").read_text(), re.M)
    assert len(rows) > 30
    wanted = {f"field.{name}{part}" for name, _ in rows for part in ("", ".about")}
    wanted |= {f"group.{group}" for _, group in rows}
    assert wanted == {key for key in OTHERS["more"] if key.startswith(("field.", "group."))}


@pytest.mark.parametrize(("prefix", "texts"), [("why.slow.", SLOW), ("why.cache.", CACHE)])
def test_every_reason_has_its_text_and_all_of_its_values(prefix, texts):
    names = {code: placeholders(text) for code, text in texts.items()}
    found = {
        key.removeprefix(prefix): text for key, text in OTHERS["monitor"].items() if key.startswith(prefix)
    }
    assert set(found) == set(names)
    for code, text in found.items():
        for form in forms_of(text).values():
            assert set(placeholders(form)) <= set(names[code]), code


def shown_literals(source: str) -> list[str]:
    """Texts in a script that a user might see."""
    found = []
    for kind, text, before in literals(source):
        if kind == "html":
            found += [
                part
                for part in re.split(r"<[^<>]*>", text.replace("=>", ""))
                if re.search(r"[A-Za-z]{2}", part)
            ]
            found += [
                part for part in SHOWN_ATTRIBUTE.findall(text) if re.search(r"[A-Z]|[a-z] |[a-z]{2,}\{", part)
            ]
        elif not re.search(r"\b(?:t|parts|import|description:)\(?\s*$|\bfrom $", before) and PROSE.search(
            text
        ):
            found += [] if MARKUP.search(text) else [text]
    return [text for text in found if text not in ALLOWED]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(PAGE / "js")))
def test_scripts_contain_no_texts(path):
    if str(path.relative_to(PAGE / "js")) not in FOR_MODELS | {"text.js"}:
        assert shown_literals(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        'tell("Stopped.")',
        "throw new Error(`${name} is empty.`)",
        "html`<p>Hello</p>`",
        "html`<p>${n} more</p>`",
        'html`<button aria-label="Send">${icon}</button>`',
        "html`<p>${n > 1 ? html`<b>Many</b>` : null}</p>`",
        'const text = "The model is loading";',
    ],
)
def test_a_text_in_a_script_is_found(source):
    assert shown_literals(source)


@pytest.mark.parametrize(
    "source",
    [
        't("common.close")',
        'html`<p class="soft">${t("app.down")}</p>`',
        "// A comment with words\nconst a = /Some words/;",
        'ask("/v1/chat/completions")',
    ],
)
def test_what_is_not_a_text_is_not_found(source):
    assert not shown_literals(source)
