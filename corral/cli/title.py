"""Hide secrets of the command line from other users of the machine (`ps`)."""

from __future__ import annotations

from collections.abc import Sequence

from corral.cli.given import Given, Source

_HIDDEN = "..."


def hide_secrets(argv: Sequence[str], given: Sequence[Given]) -> None:
    """Replace the process title if the command line has secrets."""
    title = public_title(argv, given)
    if title is not None:
        import setproctitle  # rarely needed

        setproctitle.setproctitle(title)


def public_title(argv: Sequence[str], given: Sequence[Given]) -> str | None:
    """Return the command without secrets; None if it has none."""
    spoken = [one for one in given if one.source is Source.COMMAND_LINE and one.option.secret]
    secrets = {word for one in spoken for word in one.args if word}
    if not secrets:
        return None
    return " ".join(["corral", *(_public(word, secrets) for word in argv)])


def _public(word: str, secrets: set[str]) -> str:
    name, equals, value = word.partition("=")
    if equals and value in secrets:
        return f"{name}={_HIDDEN}"
    return _HIDDEN if word in secrets else word
