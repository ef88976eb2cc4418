"""Every option, said once: names, environment variable, type, default, help, where it goes.

The groups are those of llama-server. The command line itself, the environment, configuration files, `--help`,
completion in shells and the reference pages are made from here.
"""

from __future__ import annotations

from dataclasses import dataclass

from corral.cli.options import (
    backend,
    context,
    embedding,
    general,
    media,
    model,
    other_program,
    parallel,
    sampling,
    server,
    speculative,
)
from corral.cli.options.option import Option


@dataclass(frozen=True, slots=True)
class Group:
    title: str
    options: tuple[Option, ...]
    about: str = ""


GROUPS = (
    Group("general", general.OPTIONS + speculative.OPTIONS + other_program.GENERAL),
    Group("sampling", sampling.OPTIONS, "for requests that do not say otherwise"),
    Group("grammar", sampling.GRAMMAR),
    Group("embedding", embedding.OPTIONS),
    Group("context hacking", context.OPTIONS + other_program.CONTEXT),
    Group("perplexity", other_program.PERPLEXITY),
    Group("parallel", parallel.OPTIONS + other_program.PARALLEL),
    Group("multi-modality", media.OPTIONS + other_program.MEDIA),
    Group("backend", backend.OPTIONS),
    Group("model", model.OPTIONS),
    Group("server", server.OPTIONS + server.CHAT + server.STATE),
    Group("logging", general.LOGGING + other_program.LOGGING),
)

OPTIONS = tuple(option for group in GROUPS for option in group.options)
SETTINGS = tuple(option for option in OPTIONS if option.is_used and not option.command)
