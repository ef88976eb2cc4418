"""Environment variables, as values of options."""

from __future__ import annotations

from collections.abc import Mapping

from corral.cli.given import Given, Source, give
from corral.cli.options import OPTIONS
from corral.cli.options.option import PREFIX, Option


def read_environment(environ: Mapping[str, str]) -> list[Given]:
    given = (_find(option, environ) for option in OPTIONS)
    return [value for value in given if value is not None]


def _find(option: Option, environ: Mapping[str, str]) -> Given | None:
    for name in option.variables:
        if name in environ:
            return _read(option, name, environ[name])
    if option.negative:
        # compat: llama-server: LLAMA_ARG_NO_MMAP, whatever its value.
        for name in option.variables:
            opposite = name.replace(PREFIX, f"{PREFIX}NO_")
            if opposite in environ:
                return Given(option, False, (environ[opposite],), Source.ENVIRONMENT, opposite)
    return None


def _read(option: Option, name: str, text: str) -> Given | None:
    if option.is_flag and not isinstance(option.default, bool):
        is_given = give(_SWITCH, (text,), Source.ENVIRONMENT, name).value
        return Given(option, option.read(()), (text,), Source.ENVIRONMENT, name) if is_given else None
    words = tuple(text.split()) if option.n_words in (2, "+") else (text,)
    return give(option, words, Source.ENVIRONMENT, name)


_SWITCH = Option(("--switch",), "server.log", "on or off")
