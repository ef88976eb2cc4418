"""Map fields of the canonical request to the client's names, so that errors name fields as the client
sent them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from corral.core.errors import CorralError

_ENDS = (".", "[")


@contextlib.contextmanager
def renaming(names: Mapping[str, str]) -> Iterator[None]:
    """Rename fields in errors to the client's names."""
    try:
        yield
    except CorralError as error:
        rename_param(error, names)
        raise


def rename_param(error: CorralError, names: Mapping[str, str]) -> None:
    param = error.details.get("param")
    known = find_name(param, names) if isinstance(param, str) else None
    if known is not None and known != param:
        error.details["param"] = known
        error.message = error.message.replace(f"'{param}'", f"'{known}'", 1)
        error.args = (error.message,)


def find_name(param: str, names: Mapping[str, str]) -> str | None:
    """Replace the longest renamed prefix of a field."""
    found = [name for name in names if param == name or param.startswith(tuple(name + end for end in _ENDS))]
    longest = max(found, key=len, default=None)
    return None if longest is None else names[longest] + param[len(longest) :]
