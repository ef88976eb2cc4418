"""Read uploaded files: a form in several parts, limited while it is received."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator

from starlette.datastructures import FormData, Headers

from corral.api.multipart import DAMAGED, boundary_of
from corral.core.errors import InvalidRequest, TooLarge
from corral.storage.batch_store import MAX_FILE_BYTES

_MAX_FIELDS = 16
_FORM_BYTES = 1 << 20  # of everything but the file


@contextlib.asynccontextmanager
async def read_form(content_type: str, parts: AsyncIterable[bytes]) -> AsyncIterator[FormData]:
    """Receive a form with one file, which is closed afterwards."""
    from starlette.formparsers import MultiPartException, MultiPartParser  # few requests need it

    kind = _in_utf8(content_type)
    parser = MultiPartParser(kind, _limited(parts), max_files=1, max_fields=_MAX_FIELDS)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise InvalidRequest(f"the form is invalid: {error.message}") from None
    except DAMAGED:
        raise InvalidRequest("the form is invalid: the parameters of a part are malformed") from None
    try:
        yield form
    finally:
        await form.close()
        for file in parser._files_to_close_on_error:  # one whose part has no end is not in the form
            file.close()


def _in_utf8(content_type: str) -> Headers:
    """Return the header without a `charset`: names in another one need not even be Unicode."""
    boundary = boundary_of(content_type)
    if b'"' in boundary or b"\\" in boundary:
        raise InvalidRequest("the boundary of the form has characters that are not allowed")
    return Headers(raw=[(b"content-type", b'multipart/form-data; boundary="%b"' % boundary)])


async def _limited(parts: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    n_bytes = 0
    async for part in parts:
        n_bytes += len(part)
        if n_bytes > MAX_FILE_BYTES + _FORM_BYTES:
            raise TooLarge(f"a file may have at most {MAX_FILE_BYTES >> 20} MiB")
        yield part
