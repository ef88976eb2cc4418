"""What a request gets that asks for nothing in particular: from options, and from files that they name."""

from __future__ import annotations

from pathlib import Path

import msgspec
import orjson

from corral.api.constraint import grammar_or_schema
from corral.api.guidance import make_guidance
from corral.api.prepare import resolve_seed
from corral.core.errors import CorralError
from corral.core.params import (
    RANDOM_SEED,
    Constraint,
    GenerationParams,
    Guidance,
    SamplingParams,
    SpeculativeParams,
)
from corral.core.settings import ServerSettings, Settings
from corral.llama.vocab import Vocab


def default_params(settings: Settings) -> GenerationParams:
    """What a request gets that asks for nothing in particular."""
    server = settings.server
    seed = RANDOM_SEED if server.seed < 0 else resolve_seed(server.seed)
    sampling = msgspec.structs.replace(SamplingParams(), seed=seed, temperature=server.temperature)
    return GenerationParams(
        sampling=sampling,
        n_predict=server.n_predict,
        n_keep=server.n_keep,
        n_cache_reuse=server.cache_reuse,
        json_whitespace=server.json_whitespace,
        constraint=_default_constraint(server),
        speculative=SpeculativeParams(
            n_max=server.n_draft, n_min=server.n_draft_min, p_min=server.p_draft_min
        ),
    )


def default_guidance(server: ServerSettings, vocab: Vocab, n_ctx: int) -> Guidance | None:
    """Also where it is for requests that say how strongly."""
    prompt = _text_of(
        server.cfg_negative_prompt, server.cfg_negative_prompt_file, "--cfg-negative-prompt-file"
    )
    if server.cfg_scale == 1.0 and not prompt:
        return None
    return make_guidance(server.cfg_scale, prompt, vocab, n_ctx)


def _default_constraint(server: ServerSettings) -> Constraint | None:
    grammar = _text_of(server.grammar, server.grammar_file, "--grammar-file")
    try:
        schema = orjson.loads(server.json_schema) if server.json_schema else None
    except orjson.JSONDecodeError as error:
        raise CorralError(f"--json-schema is not valid JSON: {error}") from None
    return grammar_or_schema(grammar, schema, server.json_whitespace)


def _text_of(text: str, path: str, option: str) -> str:
    """What an option says, or the file that another one names."""
    if not path:
        return text
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CorralError(f"cannot read {option}: {error}") from None
