"""URLs of media: what would be fetched, and what would be read below `--media-path`."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from corral.media.decoded import BadMedia
from corral.media.local import LocalMedia
from corral.media.remote import _parse as parse_url
from tests.fuzz.mutation import mutated
from tests.fuzz.target import Target

_CONTENT = b"inside"
_DIRECTORY = tempfile.TemporaryDirectory(prefix="fuzz-url-")
_INSIDE = Path(_DIRECTORY.name) / "media"
(_INSIDE / "a").mkdir(parents=True)
(_INSIDE / "a" / "b.png").write_bytes(_CONTENT)
(_INSIDE.parent / "secret").write_bytes(b"outside")
(_INSIDE / "link").symlink_to("../secret")
_LOCAL = LocalMedia(str(_INSIDE))


def parse(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    if text.startswith("file:"):
        assert _LOCAL.read(text) == _CONTENT
        return
    url = parse_url(text)
    assert url.scheme in ("http", "https")
    with contextlib.suppress(BadMedia):
        parse_url(text, url)


_HERE = f"file://{_INSIDE}".encode()
SEEDS = [
    _HERE + b"/a/b.png",
    b"https://example.com:8443/a/b.png?x=1#y",
    b"http://[2606:2800:220:1::1]/",
    "https://bücher.example/ä".encode(),
]
OTHERS = [*SEEDS, _HERE + b"/link", _HERE + b"/../secret", b"http://127.1/", b"http://0x7f.1/"]
WORDS = [b"..", b"%2e%2e/", b"secret", b"link", b"@", b"\\", b"%00", b"[::1]", b":99999", b"xn--", b"//"]
TARGET = Target("url", parse, SEEDS, mutated(OTHERS, WORDS), (BadMedia,))
