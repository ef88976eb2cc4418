"""The built-in templates of `--chat-template`: one file each, listed by directory.

They take plain text messages and render what libllama's own formatter renders for the same name.
"""

from __future__ import annotations

from importlib.resources import files

_DIRECTORY = files("corral.chat") / "templates"
_SUFFIX = ".jinja"

NAMES: tuple[str, ...] = tuple(
    sorted(file.name.removesuffix(_SUFFIX) for file in _DIRECTORY.iterdir() if file.name.endswith(_SUFFIX))
)


def named_template(name: str) -> str | None:
    """Return the Jinja source of a built-in template, or None for an unknown name."""
    if name not in NAMES:
        return None
    return (_DIRECTORY / f"{name}{_SUFFIX}").read_text(encoding="utf-8")
