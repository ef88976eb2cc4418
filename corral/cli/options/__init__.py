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
    media,
    model,
    models,
    other_program,
    parallel,
    removed,
    sampling,
    server,
    speculative,
    tensor,
    todays_server,
)
from corral.cli.options.option import Option


@dataclass(frozen=True, slots=True)
class Group:
    title: str
    options: tuple[Option, ...]
    about: str = ""


GROUPS = (
    Group("general", general.OPTIONS + speculative.OPTIONS + other_program.GENERAL + todays_server.GENERAL),
    Group("sampling", sampling.OPTIONS + todays_server.SAMPLING, "for requests that do not say otherwise"),
    Group("grammar", sampling.GRAMMAR),
    Group("embedding", embedding.OPTIONS),
    Group("context hacking", context.OPTIONS + checkpoint.OPTIONS + other_program.CONTEXT),
    Group("perplexity", other_program.PERPLEXITY),
    Group("parallel", parallel.OPTIONS + other_program.PARALLEL + todays_server.PARALLEL),
    Group("multi-modality", media.OPTIONS + other_program.MEDIA + todays_server.MEDIA),
    Group("backend", backend.OPTIONS + tensor.OPTIONS + todays_server.BACKEND),
    Group("model", model.OPTIONS + todays_server.MODEL),
    Group("server", server.OPTIONS + models.OPTIONS + server.CHAT + server.STATE + todays_server.SERVER),
    Group("logging", general.LOGGING + other_program.LOGGING + todays_server.LOGGING),
    Group("removed", removed.OPTIONS, "options of former versions, and what to use instead"),
)

OPTIONS = tuple(option for group in GROUPS for option in group.options)
SETTINGS = tuple(option for option in OPTIONS if option.is_used and not option.command)
