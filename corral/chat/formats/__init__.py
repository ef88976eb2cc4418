"""The known families, in the order in which a template is tried on them."""

from __future__ import annotations

from corral.chat.format import Format
from corral.chat.formats import (
    command_r,
    deepseek,
    firefunction,
    functionary,
    generic,
    glm,
    granite,
    harmony,
    hermes,
    kimi_k2,
    lfm2,
    llama3,
    minimax,
    mistral,
    nemotron,
    phi4,
    qwen3_coder,
    seed_oss,
)

FORMATS: tuple[Format, ...] = (
    deepseek.FENCED,
    deepseek.PLAIN,
    command_r.FORMAT,
    functionary.TURNS,
    kimi_k2.FORMAT,
    harmony.FORMAT,
    minimax.FORMAT,
    glm.FORMAT,
    qwen3_coder.FORMAT,
    hermes.FORMAT,
    granite.FORMAT,
    phi4.FORMAT,
    nemotron.FORMAT,
    firefunction.FORMAT,
    mistral.NAMED,
    mistral.LISTED,
    lfm2.FORMAT,
    seed_oss.FORMAT,
    functionary.TAGS,
    llama3.FORMAT,
    generic.FORMAT,
)


def choose_format(template: str) -> Format:
    """The family that a template belongs to."""
    return next(format for format in FORMATS if format.matches(template))
