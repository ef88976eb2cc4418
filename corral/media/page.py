"""The text of web pages, for tools that read them. One pass over it, however it is written.

Knows nothing of where a page comes from. What it returns is data, never an instruction.
"""

from __future__ import annotations

import contextlib
import html
import re
from dataclasses import dataclass, field

from corral.media.decoded import BadMedia

_TEXT_TYPES = re.compile(r"text/|application/(?:[\w.+-]*\+)?(?:json|xml|yaml|javascript)\b")
_HTML_TYPES = ("text/html", "application/xhtml+xml")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w.:-]{1,40})", re.ASCII)
_CHARSETS = re.compile(
    r"utf-?8|utf-16(?:le|be)?|(?:us-)?ascii|iso-8859-\d+|windows-\d+|koi8-[ru]|gb2312|gbk|gb18030|big5|euc-(?:jp|kr)"
    r"|shift_jis|iso-2022-jp"
)
_SNIFFED_BYTES = 1024  # in which a page names its encoding
_TAG = re.compile(r"<(?:!--|(/?)([A-Za-z][A-Za-z0-9]{0,15})|[!?])")
_HIDDEN = frozenset({"script", "style", "noscript", "template", "svg", "math", "iframe", "object", "select"})
_BREAKS = re.compile(
    "address|article|aside|blockquote|br|dd|div|dl|dt|figcaption|figure|footer|form|h[1-6r]|header|li|main|nav|"
    "ol|p|pre|section|table|td|th|title|tr|ul"
)
_SPACES = re.compile(r"[^\S\n]+")
_LINES = re.compile(r" ?\n\s*")


def page_text(body: bytes, content_type: str) -> str:
    """Return what a reader would see. Raises BadMedia if it is not a text."""
    kind = content_type.partition(";")[0].strip().lower()
    if not _TEXT_TYPES.match(kind or "text/plain"):
        raise BadMedia("it is not a text")
    text = _decode(body, content_type)
    if "\0" in text:
        raise BadMedia("it is not a text")
    is_html = kind in _HTML_TYPES or (
        not kind and text.lstrip()[:9].lower().startswith(("<!doctype", "<html"))
    )
    return _Reader(text).read() if is_html else text.strip()


def _decode(body: bytes, content_type: str) -> str:
    start = body[:_SNIFFED_BYTES].decode("ascii", "ignore")
    for named in (_CHARSET.search(content_type.lower()), _CHARSET.search(start.lower())):
        if named is not None and _CHARSETS.fullmatch(named[1]):
            with contextlib.suppress(LookupError):
                return body.decode(named[1], "replace")
    return body.decode("utf-8", "replace")


@dataclass(slots=True)
class _Reader:
    """Mutable: reads a page from its beginning to its end."""

    source: str
    parts: list[str] = field(default_factory=list)

    def read(self) -> str:
        at = 0
        while (found := _TAG.search(self.source, at)) is not None:
            self._add(self.source[at : found.start()])
            at = self._skip(found)
        self._add(self.source[at:])
        text = _SPACES.sub(" ", "".join(self.parts))
        return _LINES.sub("\n", text).strip()

    def _add(self, text: str) -> None:
        self.parts.append(html.unescape(text).replace("\n", " "))

    def _skip(self, found: re.Match[str]) -> int:
        """Return where the visible text continues: after a tag, a comment, or what an element hides."""
        name = (found[2] or "").lower()
        if found[0] == "<!--":
            return self._after("-->", found.end())
        if _BREAKS.fullmatch(name):
            self.parts.append("\n")
        end = self._after(">", found.end())
        if name in _HIDDEN and not found[1]:
            return self._after_element(name, end)
        return end

    def _after_element(self, name: str, at: int) -> int:
        closing = re.compile(rf"</{name}\b", re.IGNORECASE).search(self.source, at)
        return len(self.source) if closing is None else self._after(">", closing.end())

    def _after(self, mark: str, at: int) -> int:
        """Return the place after a mark; the end if there is none: it is not looked for twice."""
        found = self.source.find(mark, at)
        return len(self.source) if found < 0 else found + len(mark)
