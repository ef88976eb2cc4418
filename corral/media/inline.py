"""Find images within a message's text: `data:` URIs in Markdown or HTML, and bare ones.

One pass from left to right, in linear time for any text. Python's `html.parser` does not report where a
tag ends, and would also parse the text between tags as HTML.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, field
from typing import NamedTuple

from corral.media.data_uri import is_data_uri

_DATA = re.compile("data:", re.IGNORECASE)
_TOKEN = re.compile(r"\\.|!?\[|\]|<img(?=[\s/])|data:image/", re.IGNORECASE | re.DOTALL | re.ASCII)
_BARE = re.compile(
    r"""data:image/[a-z0-9.+-]{1,64}
    (?: ;[a-z0-9.+-]{1,64}=[a-z0-9.+-]{0,64} ){0,8}
    ;base64,
    (?: [a-z0-9+/_-]+ | %[0-9a-f]{2} )+ ={0,2}""",
    re.IGNORECASE | re.VERBOSE | re.ASCII,
)
_DESTINATION = re.compile(
    r"""\(\s*
    (?: <(?P<bracketed>data:[^<>\n]*)> | (?P<plain>data:[^\s()<>]*) )
    (?: \s+ (?: "[^"]*" | '[^']*' ) )?
    \s*\)""",
    re.IGNORECASE | re.VERBOSE,
)
_ATTRIBUTE = re.compile(
    r"""[\s/]*
    (?P<name>[^\s"'<>/=]+)
    (?: \s*=\s* (?: "(?P<double>[^"]*)" | '(?P<single>[^']*)' | (?P<bare>[^\s"'<>`]+) ) )?""",
    re.VERBOSE,
)
_TAG_END = re.compile(r"[\s/]*>")
_PAYLOAD = re.compile(r"""(data:[^\s,]*,)[^\s"'<>)]*""", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class InlineImage:
    """`is_bare`: no markup says that it is meant as an image. `markup`: as it is in the text."""

    uri: str
    is_bare: bool = False
    markup: str = field(default="", compare=False)

    @property
    def text(self) -> str:
        """What a model reads that sees no images: the markup, without hundreds of meaningless tokens."""
        return _PAYLOAD.sub(r"\1...", self.markup)


class _Found(NamedTuple):
    start: int
    end: int
    image: InlineImage


def split_inline(text: str) -> list[str | InlineImage]:
    """Split a text into texts and images, in order; the markup of an image is removed. Without a `data:` URI
    it stays text.

    A bare URI must be base64, since nothing else marks its end.
    """
    pieces: list[str | InlineImage] = []
    end = 0
    for found in _Scanner(text).scan() if _DATA.search(text) else []:
        pieces += [text[end : found.start], found.image]
        end = found.end
    pieces.append(text[end:])
    return [piece for piece in pieces if piece != ""]


class _Scanner:
    """Matches brackets as CommonMark does: of two `![` before a `](`, the nearer one is the image."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._is_image: list[bool] = []  # for each open bracket
        self._images: list[int] = []  # positions of the open brackets of images
        self._tag_from = 0  # before it, `<img` is part of something that is not a tag

    def scan(self) -> list[_Found]:
        found = []
        token = _TOKEN.search(self._text)
        while token is not None:
            image = self._match(token)
            if image is not None:
                found.append(image)
                self._is_image.clear()
                self._images.clear()
            token = _TOKEN.search(self._text, token.end() if image is None else image.end)
        return found

    def _match(self, token: re.Match[str]) -> _Found | None:
        if token[0] == "]":
            return self._close(token.end())
        if token[0].endswith("["):
            self._open(token)
        elif token[0][0] == "<" and token.start() >= self._tag_from:
            return self._read_tag(token)
        elif token[0][0] in "dD" and (uri := _BARE.match(self._text, token.start())):
            return _Found(uri.start(), uri.end(), InlineImage(uri[0], True, uri[0]))
        return None

    def _open(self, token: re.Match[str]) -> None:
        is_image = token[0] == "!["
        self._is_image.append(is_image)
        if is_image:
            self._images.append(token.start())

    def _close(self, end: int) -> _Found | None:
        destination = _DESTINATION.match(self._text, end) if self._images else None
        if destination is not None:
            uri = destination["bracketed"] or destination["plain"]
            start, end = self._images[-1], destination.end()
            return _Found(start, end, InlineImage(uri, markup=self._text[start:end]))
        if self._is_image and self._is_image.pop():
            self._images.pop()
        return None

    def _read_tag(self, token: re.Match[str]) -> _Found | None:
        end, source = token.end(), None
        while (attribute := _ATTRIBUTE.match(self._text, end)) is not None:
            end = attribute.end()
            if source is None and attribute["name"].lower() == "src":
                source = _read_value(attribute)
        self._tag_from = end
        closing = _TAG_END.match(self._text, end)
        if closing is None or source is None or not is_data_uri(source):
            return None
        markup = self._text[token.start() : closing.end()]
        return _Found(token.start(), closing.end(), InlineImage(source, markup=markup))


def _read_value(attribute: re.Match[str]) -> str:
    bare = attribute["bare"]
    if bare is not None:  # the slash of `/>` is not part of base64 here
        at_end = attribute.string.startswith(">", attribute.end())
        return _unescape(bare[:-1] if at_end and bare.endswith("/") else bare)
    return _unescape(attribute["double"] or attribute["single"] or "").strip()


def _unescape(value: str) -> str:
    try:
        return html.unescape(value)
    except ValueError:  # a character reference with thousands of digits
        return value
