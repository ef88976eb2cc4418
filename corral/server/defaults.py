"""What a request gets that asks for nothing in particular: from options, and from files that they name."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import orjson

from corral.api.constraint import grammar_or_schema
from corral.api.guidance import Tokenizer, make_guidance
from corral.core.errors import CorralError
from corral.core.params import Constraint, GenerationParams, Guidance, SamplingParams, SpeculativeParams
from corral.core.settings import ServerSettings, Settings

_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}
_ESCAPE = re.compile(r"\\([nrt'\"\\]|x[0-9a-fA-F]{2})")


def default_params(settings: Settings) -> GenerationParams:
    """What a request gets that asks for nothing in particular."""
    server, sampling = settings.server, settings.sampling
    breakers = tuple(_text(server, breaker) for breaker in sampling.dry_sequence_breakers)
    return GenerationParams(
        sampling=msgspec.structs.replace(sampling, dry_sequence_breakers=breakers),
        n_predict=server.n_predict,
        n_keep=server.n_keep,
        max_repeats=server.max_repeats,
        stop=tuple(_text(server, stop) for stop in server.stop),
        ignore_eos=server.ignore_eos,
        special=server.special,
        n_cache_reuse=server.cache_reuse,
        json_whitespace=server.json_whitespace,
        constraint=_default_constraint(server),
        speculative=SpeculativeParams(
            n_max=server.n_draft, n_min=server.n_draft_min, p_min=server.p_draft_min
        ),
    )


def default_guidance(server: ServerSettings, vocab: Tokenizer, n_ctx: int) -> Guidance | None:
    """Also where it is for requests that say how strongly."""
    said = _text(server, server.cfg_negative_prompt)
    prompt = text_of(said, server.cfg_negative_prompt_file, "--cfg-negative-prompt-file")
    if server.cfg_scale == 1.0 and not prompt:
        return None
    return make_guidance(server.cfg_scale, prompt, vocab, n_ctx)


def check_tokens(sampling: SamplingParams, n_vocab: int) -> None:
    """What only the model can tell of them."""
    for token, _ in sampling.logit_bias:
        if token >= n_vocab:
            raise CorralError(f"--logit-bias: there is no token {token}; ids go from 0 to {n_vocab - 1}")


def _default_constraint(server: ServerSettings) -> Constraint | None:
    grammar = text_of(server.grammar, server.grammar_file, "--grammar-file")
    try:
        schema = orjson.loads(server.json_schema) if server.json_schema else None
    except orjson.JSONDecodeError as error:
        raise CorralError(f"--json-schema is not valid JSON: {error}") from None
    return grammar_or_schema(grammar, schema, server.json_whitespace)


def text_of(text: str, path: str, option: str) -> str:
    """What an option says, or the file that another one names."""
    if not path:
        return text
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CorralError(f"cannot read {option}: {error}") from None


def _text(server: ServerSettings, text: str) -> str:
    """What an option's text stands for."""
    return _ESCAPE.sub(_unescape, text) if server.escape else text


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code[1:], 16)) if code[0] == "x" else _ESCAPES[code]
