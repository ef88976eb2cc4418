"""Images within a message's text, as LLaMAfiler takes them."""

from __future__ import annotations

import html

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.core.media_item import MediaKind
from corral.media.data_uri import parse_data_uri
from corral.media.decoded import BadMedia
from corral.media.inline import InlineImage, split_inline
from tests.tools.examples import is_quick
from tests.tools.growth import FACTOR, is_linear

GIF = "data:image/gif;base64,R0lGODlhAQABAIAAAP///wAAACH5BAEAAAAALAAAAAABAAEAAAICRAEAOw=="
ONE = InlineImage(GIF)


def test_the_example_of_the_manual():
    text = f'![1x1.gif]({GIF})\n<img src="{GIF}">'
    assert split_inline(text) == [ONE, "\n", ONE]


@pytest.mark.parametrize(
    "markup",
    [
        f"![]({GIF})",
        f"![a photo (1).png]({GIF})",
        f"![a \\] b \\[ c]({GIF})",
        f"![back\\\\]({GIF})",
        f"![a [b] c]({GIF})",
        f"![a [b c]({GIF})",
        f"![two\nlines]({GIF})",
        f'![a]({GIF} "a title")',
        f"![a]({GIF}  'a (title)' )",
        f"![a]( {GIF}\n)",
        f"![a](<{GIF}>)",
        f'![a](<{GIF}> "title")',
        f"![<img src='x'>]({GIF})",
        f'<img src="{GIF}">',
        f"<img src='{GIF}'>",
        f"<img src={GIF}>",
        f"<img src={GIF}/>",
        f"<img src={GIF} />",
        f'<IMG\n\tALT="a > b" SRC = "{GIF}" width=3 hidden/>',
        f"<img/src='{GIF}'/alt=x>",
        f'<img alt="![a](x)" src="{GIF}" src="/second.png">',
        f'<img data-src="/a.png" src=" {GIF}\n">',
        f'<img src="{html.escape(GIF).replace("=", "&#61;").replace("/", "&#x2F;")}">',
        f'<img src="{GIF.replace("=", "&equals;")}">',
    ],
)
def test_ways_to_write_one(markup):
    assert split_inline(markup) == [ONE]
    assert split_inline(f"before {markup} after {markup}") == ["before ", ONE, " after ", ONE]
    assert parse_data_uri(ONE.uri, MediaKind.IMAGE).startswith(b"GIF89a")


def test_case_does_not_matter():
    assert split_inline("![](DATA:image/gif,x)") == [InlineImage("DATA:image/gif,x")]
    assert split_inline("<img src=Data:image/gif,x>") == [InlineImage("Data:image/gif,x")]


@pytest.mark.parametrize(
    "text",
    [
        "hello",
        "![x](https://example.com/a.png)",
        '<img src="/a.png">',
        "data: ![ ] ( ) <img \\",
        "data:image/gif",
        "data:image/gif;base64,",
        "data:image/gif;base64,<BASE64>",
        "data:image/svg+xml,<svg></svg>",
        "data:text/plain;base64,AAAA",
        "data:image/;base64,AAAA",
    ],
)
def test_what_stays_text(text):
    assert split_inline(text) == [text]


@pytest.mark.parametrize(
    "text",
    [
        GIF,
        f"see {GIF}.",
        f"({GIF})",
        f"`{GIF}`, {GIF.replace(';base64', ';charset=utf-8;base64')}",
        f"url({GIF})",
        f"![x](https://example.com/?{GIF})",
        f"[x]({GIF})",
        f"![x] ({GIF})",
        f"![x\\]({GIF})",
        f"\\![x\\]({GIF})",
        f"![x]({GIF}",
        f"![x]({GIF} title)",
        f"![x](<{GIF})",
        f"<img data-src='{GIF}'>",
        f"<img src='{GIF}'",
        f"<img src='{GIF}>",
        f"<img src='/a.png' src='{GIF}'>",
        f"<image src='{GIF}'>",
        f"<imgsrc='{GIF}'>",
        f"\\<img src='{GIF}'>",
        f'<img alt="no end <img src="{GIF}">',
        GIF.replace("/", "%2F").replace("%2F", "/", 1),
        GIF.upper()[:22] + GIF[22:],
    ],
)
def test_a_uri_without_markup_is_an_image_too(text):
    pieces = split_inline(text)
    images = [piece for piece in pieces if isinstance(piece, InlineImage)]
    assert "".join(piece if isinstance(piece, str) else piece.uri for piece in pieces) == text
    assert len(images) == text.lower().count("data:image")
    for image in images:
        assert image.is_bare
        assert parse_data_uri(image.uri, MediaKind.IMAGE).startswith(b"GIF89a")


def test_markup_and_bare_uris_side_by_side():
    bare = InlineImage(GIF, is_bare=True)
    assert split_inline(f"{GIF} ![a]({GIF}) {GIF}{GIF}") == [bare, " ", ONE, " ", bare, bare]
    assert split_inline(f"{GIF}and") == [bare, "and"]


def test_nothing():
    assert split_inline("") == []


def test_the_nearer_bracket_is_the_image():
    assert split_inline(f"![ is markup, as in ![a]({GIF})") == ["![ is markup, as in ", ONE]
    assert split_inline(f"[![a]({GIF})](https://example.com)") == ["[", ONE, "](https://example.com)"]
    pieces = split_inline(f"![a ![b]({GIF}) c]({GIF})")
    assert pieces == ["![a ", ONE, " c](", InlineImage(GIF, is_bare=True), ")"]


def test_after_a_tag_that_is_none():
    assert split_inline(f"<img <img src='{GIF}'>") == ["<img ", ONE]
    assert split_inline(f"<img title=\"<img src='{GIF}'>") == ['<img title="', ONE]


def test_another_type_is_refused_later():
    [image] = split_inline("![x](data:text/plain,hi)")
    assert isinstance(image, InlineImage)
    with pytest.raises(BadMedia, match="text/plain"):
        parse_data_uri(image.uri, MediaKind.IMAGE)


def test_a_number_that_is_no_character():
    uri = "data:image/gif,&#" + "9" * 10_000 + ";"
    assert split_inline(f'<img src="{uri}">') == [InlineImage(uri)]


texts = st.text(alphabet="ab \n!(\\", max_size=20).map(lambda text: text + ".")


@given(st.lists(texts | st.sampled_from([f"![a]({GIF})", f"<img src='{GIF}'>"]), max_size=8))
def test_text_and_images_keep_their_order(parts):
    expected = []
    for part in parts:
        if GIF in part:
            expected.append(ONE)
        elif expected and isinstance(expected[-1], str):
            expected[-1] += part
        else:
            expected.append(part)
    assert split_inline("".join(parts)) == expected


@given(
    st.lists(
        st.sampled_from(["![", "]", "(", ")", "<img ", "src=", "data:", '"', "'", ">", "<", "/", "\\", " "])
    )
)
def test_nothing_is_lost(tokens):
    text = "".join(tokens)
    at = 0
    for piece in split_inline(text):
        found = text.index(piece if isinstance(piece, str) else piece.uri, at)
        assert found == at or isinstance(piece, InlineImage) or text[found - 1] in ")>"
        at = found + len(piece if isinstance(piece, str) else piece.uri)


UNITS = [
    "![",
    "[",
    "]",
    "![]",
    "![](",
    "![](data:",
    "![](<data:",
    '![](data:x "',
    "![](data:x '",
    "![](data:x ",
    "![a](data:x)",
    "](data:",
    "[](data:",
    "<img ",
    "<img src=",
    "<img src=data:",
    '<img a="',
    "<img a='",
    "<img a=\"b='",
    "<img a=\"b='c\" d='",
    ' b="<img "',
    "<img src='data:'>",
    "\\",
    "\\![",
    "data:",
    "&#9",
    "data:image/",
    "data:image/a;b=c",
    "data:image/a;base64,",
    "data:image/a;base64,A%2",
    ";a=b",
]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    ("before", "after"),
    [("data:", ""), ("<img ", "data:"), ("![", "](data:"), ('<img src="data:', ""), ("data:image/a", ",")],
)
def test_time_is_linear(unit, before, after):
    def split(n_chars):
        return split_inline(before + unit * (n_chars // len(unit)) + after)

    n_chars = 1_000 if is_quick() else 4_000
    assert is_linear(lambda: split(n_chars), lambda: split(n_chars * FACTOR))


@pytest.mark.parametrize("unit", ["![", "![](data:", "<img ", "<img src="])
def test_a_megabyte(unit):
    text = unit * ((1 << 20) // len(unit)) + "data:"
    assert split_inline(text) == [text]
