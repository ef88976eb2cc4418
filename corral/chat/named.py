"""The templates that `--chat-template` knows by name: one file each, the directory is the table.

They take plain text messages and write what libllama's own formatter writes for the same name.
"""

from __future__ import annotations

from importlib.resources import files

_DIRECTORY = files("corral.chat") / "templates"
_SUFFIX = ".jinja"

NAMES: tuple[str, ...] = tuple(
    sorted(file.name.removesuffix(_SUFFIX) for file in _DIRECTORY.iterdir() if file.name.endswith(_SUFFIX))
)


def named_template(name: str) -> str | None:
    """The jinja source of a well-known template, or None where the name is not one."""
    if name not in NAMES:
        return None
    return (_DIRECTORY / f"{name}{_SUFFIX}").read_text(encoding="utf-8")
