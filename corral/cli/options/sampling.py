"""Options: defaults of sampling and grammars for requests that do not set them.

Most sampling options come from `core/sampling_params.py`.
"""

from __future__ import annotations

from typing import get_args

from corral.cli.options import value
from corral.cli.options.option import Option, PathUse, param_option
from corral.core.params import DEFAULT_SAMPLERS, JsonWhitespace

_NUMBERS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "top_n_sigma",
    "tfs_z",
    "typical_p",
    "xtc_probability",
    "xtc_threshold",
    "repeat_last_n",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "dry_multiplier",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dynatemp_range",
    "dynatemp_exponent",
    "mirostat",
    "mirostat_eta",
    "mirostat_tau",
    "adaptive_target",
    "adaptive_decay",
    "cfg_scale",
)

OPTIONS = (
    Option(
        ("--sampling-seq", "--sampler-seq"),
        "samplers in order, by their letters, such as kfypmt",
        "SEQUENCE",
        parse=value.sampler_letters,
        repeats=False,
        target="sampling.samplers",
    ),
    param_option(
        "samplers",
        "SAMPLERS",
        help="samplers in order, separated by ;",
        parse=value.samplers,
        repeats=False,
        shown=";".join(DEFAULT_SAMPLERS),
    ),
    param_option("ignore_eos", "", negative=("--no-ignore-eos",)),
    param_option("penalize_nl", "", negative=("--no-penalize-nl",)),
    *map(param_option, _NUMBERS),
    param_option("dry_base", help="growth of the DRY penalty per repeated token", limits=(1, 1e4)),
    param_option(
        "dry_sequence_breakers",
        "STRING",
        help="sequence breaker for DRY, replaces the defaults; none: no breakers; may be repeated",
        parse=value.breakers,
    ),
    param_option(
        "logit_bias",
        "TOKEN(+/-)BIAS",
        help="change the likelihood of a token, as 15043+1 or 15043-1; may be repeated",
        parse=value.logit_bias,
    ),
    param_option("cfg_negative_prompt", "PROMPT", help="negative prompt for classifier-free guidance"),
    Option(("--cfg-negative-prompt-file",), "file with the negative prompt", path=PathUse.TEXT),
)

GRAMMAR = (
    Option(
        ("--grammar",),
        "GBNF grammar for requests without their own",
        "GRAMMAR",
        parse=value.grammar,
    ),
    Option(("--grammar-file",), "file with a GBNF grammar", path=PathUse.TEXT),
    Option(
        ("-j", "--json-schema"),
        "JSON Schema for requests without their own; {} allows any JSON",
        "SCHEMA",
        parse=value.json_text,
    ),
    Option(
        ("-jf", "--json-schema-file"),
        "file with a JSON Schema for requests without their own",
        path=PathUse.TEXT,
    ),
    Option(
        ("--json-whitespace",),
        "whitespace in JSON that a schema constrains: compact, spaced, or flexible, where the model decides",
        "LAYOUT",
        choices=get_args(JsonWhitespace),
    ),
    Option(
        ("--schema-retries",),
        "redraws of one part of an answer for rules of a JSON Schema that a grammar cannot express",
        "N",
        limits=(0, 10000),
        target="engine.schema_retries",
    ),
)
