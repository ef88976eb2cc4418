"""Extract the text of PDF files with `pypdf`, in a separate process, since a file can cost much time or
memory.

    python -m corral.media.pdf < FILE > TEXT
"""

from __future__ import annotations

import asyncio
import importlib.util
import io
import sys

from corral.core.errors import NotSupported
from corral.media.decoded import BadMedia

MAX_PAGES = 1000
_LIMIT_S = 60
_LIMIT_BYTES = 2 << 30  # of memory
_ENCRYPTED, _TOO_LONG = 3, 4
_REASONS = {
    _ENCRYPTED: "the PDF file is encrypted",
    _TOO_LONG: f"the PDF file has more than {MAX_PAGES} pages",
}


async def read_pdf(data: bytes) -> str:
    """Return the text of all pages; scanned images have none."""
    if importlib.util.find_spec("pypdf") is None:
        raise NotSupported(
            "send the text, or have the server read PDF files: pip install '.[pdf]' in its clone"
        )
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__), stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        text, _ = await asyncio.wait_for(child.communicate(data), _LIMIT_S)
    except asyncio.TimeoutError:
        raise BadMedia(f"the PDF file took more than {_LIMIT_S} s to read") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode:
        raise BadMedia(_REASONS.get(child.returncode, "the PDF file is damaged"))
    return text.decode("utf-8", "replace").strip()


def main() -> int:
    import pypdf

    _limit_memory()
    reader = pypdf.PdfReader(io.BytesIO(sys.stdin.buffer.read()))
    if reader.is_encrypted and not reader.decrypt(""):
        return _ENCRYPTED
    if len(reader.pages) > MAX_PAGES:
        return _TOO_LONG
    texts = (page.extract_text().strip() for page in reader.pages)
    sys.stdout.buffer.write("\n\n".join(filter(None, texts)).encode("utf-8", "replace"))
    return 0


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    resource.setrlimit(resource.RLIMIT_AS, (_LIMIT_BYTES, _LIMIT_BYTES))


if __name__ == "__main__":
    sys.exit(main())
