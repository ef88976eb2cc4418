"""The table of all options: names, environment variable, type, default, help, target.

The groups are those of llama-server. Command line, environment, configuration files, `--help`, shell
completion and the reference pages are made from it.
"""

from __future__ import annotations

from dataclasses import dataclass

from corral.cli.options import (
    backend,
    checkpoint,
    context,
    embedding,
    general,
    ignored,
    media,
    model,
    models,
    parallel,
    removed,
    sampling,
    server,
    speculative,
    tensor,
)
from corral.cli.options.option import Option


@dataclass(frozen=True, slots=True)
class OptionGroup:
    title: str
    options: tuple[Option, ...]
    about: str = ""


GROUPS = (
    OptionGroup("general", general.OPTIONS + speculative.OPTIONS),
    OptionGroup("sampling", sampling.OPTIONS, "for requests that do not say otherwise"),
    OptionGroup("grammar", sampling.GRAMMAR),
    OptionGroup("embedding", embedding.OPTIONS),
    OptionGroup("context hacking", context.OPTIONS + checkpoint.OPTIONS),
    OptionGroup("parallel", parallel.OPTIONS),
    OptionGroup("multi-modality", media.OPTIONS),
    OptionGroup("backend", backend.OPTIONS + tensor.OPTIONS),
    OptionGroup("model", model.OPTIONS),
    OptionGroup("server", server.OPTIONS + models.OPTIONS + server.CHAT + server.STATE),
    OptionGroup("logging", general.LOGGING),
    OptionGroup("without effect", ignored.OPTIONS, "options of llama.cpp that are ignored or refused"),
    OptionGroup("removed", removed.OPTIONS, "options of former versions, and what to use instead"),
)

OPTIONS = tuple(option for group in GROUPS for option in group.options)
SETTINGS = tuple(option for option in OPTIONS if option.is_used and not option.command)
