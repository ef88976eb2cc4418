"""Read uploaded files: a form in several parts, limited while it is received."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

from starlette.datastructures import FormData
from starlette.requests import Request

from corral.core.errors import InvalidRequest, TooLarge
from corral.storage.batch_store import MAX_FILE_BYTES

_MAX_FIELDS = 16
_FORM_BYTES = 1 << 20  # of everything but the file


@contextlib.asynccontextmanager
async def read_form(request: Request) -> AsyncIterator[FormData]:
    """Receive a form with one file, which is closed afterwards."""
    from starlette.formparsers import MultiPartException, MultiPartParser  # few requests need it

    kind = request.headers.get("content-type", "")
    if not kind.startswith("multipart/form-data"):
        raise InvalidRequest("the body must be multipart/form-data")
    try:
        form = await MultiPartParser(
            request.headers, _limited(request), max_files=1, max_fields=_MAX_FIELDS
        ).parse()
    except MultiPartException as error:
        raise InvalidRequest(f"the form is invalid: {error.message}") from None
    try:
        yield form
    finally:
        await form.close()


async def _limited(request: Request) -> AsyncGenerator[bytes, None]:
    n_bytes = 0
    async for part in request.stream():
        n_bytes += len(part)
        if n_bytes > MAX_FILE_BYTES + _FORM_BYTES:
            raise TooLarge(f"a file may have at most {MAX_FILE_BYTES >> 20} MiB")
        yield part
