"""Defaults for requests, from options and from files that they name."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import orjson

from corral.core.errors import CorralError
from corral.core.params import Constraint, GenerationParams, Guidance, SamplingParams, SpeculativeParams
from corral.core.settings import ServerSettings, Settings
from corral.generate.constraint import grammar_or_schema
from corral.generate.params import make_guidance
from corral.generate.vocab import Vocab

_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}
_ESCAPE = re.compile(r"\\([nrt'\"\\]|x[0-9a-fA-F]{2})")


def default_params(settings: Settings) -> GenerationParams:
    """Return the parameters of a request that sets none."""
    server, sampling = settings.server, settings.sampling
    breakers = tuple(_text(server, breaker) for breaker in sampling.dry_sequence_breakers)
    return GenerationParams(
        sampling=msgspec.structs.replace(sampling, dry_sequence_breakers=breakers),
        n_predict=_default_n_predict(server),
        n_keep=server.n_keep,
        max_repeats=server.max_repeats,
        stop=tuple(_text(server, stop) for stop in server.stop),
        ignore_eos=server.ignore_eos,
        special=server.special,
        n_cache_reuse=server.cache_reuse,
        cache_prompt=server.cache_prompt,
        json_whitespace=server.json_whitespace,
        constraint=_default_constraint(server),
        speculative=SpeculativeParams(
            n_max=server.n_draft, n_min=server.n_draft_min, p_min=server.p_draft_min
        ),
    )


def _default_n_predict(server: ServerSettings) -> int:
    n, most = server.n_predict, server.max_predict
    return n if most < 0 or 0 <= n <= most else most


def default_guidance(server: ServerSettings, vocab: Vocab, n_ctx: int) -> Guidance | None:
    """Return the default guidance, also if only its prompt is set and requests set the scale."""
    said = _text(server, server.cfg_negative_prompt)
    prompt = text_of(said, server.cfg_negative_prompt_file, "--cfg-negative-prompt-file")
    if server.cfg_scale == 1.0 and not prompt:
        return None
    return make_guidance(server.cfg_scale, prompt, vocab, n_ctx)


def check_tokens(sampling: SamplingParams, n_vocab: int) -> None:
    """Check token ids against the vocabulary."""
    for token, _ in sampling.logit_bias:
        if token >= n_vocab:
            raise CorralError(
                f"--logit-bias: token {token} does not exist; ids range from 0 to {n_vocab - 1}"
            )


def _default_constraint(server: ServerSettings) -> Constraint | None:
    grammar = text_of(server.grammar, server.grammar_file, "--grammar-file")
    try:
        text = text_of(server.json_schema, server.json_schema_file, "--json-schema-file")
        schema = orjson.loads(text) if text else None
    except orjson.JSONDecodeError as error:
        raise CorralError(f"--json-schema is not valid JSON: {error}") from None
    return grammar_or_schema(grammar, schema, server.json_whitespace)


def text_of(text: str, path: str, option: str) -> str:
    """Return an option's text, or the content of the file that another option names."""
    if not path:
        return text
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CorralError(f"cannot read {option}: {error}") from None


def _text(server: ServerSettings, text: str) -> str:
    """Process escape sequences unless --no-escape is set."""
    return _ESCAPE.sub(_unescape, text) if server.escape else text


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code[1:], 16)) if code[0] == "x" else _ESCAPES[code]
