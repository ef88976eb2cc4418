"""The known families, in the order in which they are matched against a template."""

from __future__ import annotations

from corral.chat.format import Format
from corral.chat.formats import (
    command_r,
    deepseek,
    functionary,
    generic,
    glm,
    harmony,
    hermes,
    json_list,
    kimi_k2,
    lfm2,
    llama3,
    minimax,
    mistral,
    qwen3_coder,
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
    json_list.GRANITE,
    json_list.PHI4,
    json_list.NEMOTRON,
    json_list.FIREFUNCTION,
    mistral.NAMED,
    mistral.LISTED,
    lfm2.FORMAT,
    qwen3_coder.SEED_OSS,
    functionary.TAGS,
    llama3.FORMAT,
    generic.FORMAT,
)


def choose_format(template: str) -> Format:
    return next(format for format in FORMATS if format.matches(template))
