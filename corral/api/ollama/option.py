"""Map the `options` of a request to our fields."""

from __future__ import annotations

from typing import Any

from corral.schema.parse import MAX_IGNORED

_SAME = (
    *("seed", "temperature", "top_k", "top_p", "min_p", "tfs_z", "typical_p", "stop"),
    *("repeat_last_n", "repeat_penalty", "presence_penalty", "frequency_penalty"),
    *("mirostat", "mirostat_tau", "mirostat_eta"),
)
FIELDS = {
    **{name: name for name in _SAME},
    "num_predict": "n_predict",
    "num_keep": "n_keep",
    "penalize_newline": "penalize_nl",
}


def parse_options(options: dict[str, Any], n_ctx: int) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """Return canonical fields, the client's names of them, and warnings about unsupported options."""
    known = {name: value for name, value in options.items() if name in FIELDS and value is not None}
    fields = {FIELDS[name]: value for name, value in known.items()}
    names = {FIELDS[name]: f"options.{name}" for name in known}
    others = [name for name, value in options.items() if name not in FIELDS and value is not None]
    warnings = [_explain(name, options[name], n_ctx) for name in others[:MAX_IGNORED]]
    return fields, names, [warning for warning in warnings if warning]


def explain_options(options: Any, n_ctx: int) -> list[str]:
    """Return warnings about all options, for a request that generates nothing."""
    names = (
        [name for name, value in options.items() if value is not None] if isinstance(options, dict) else []
    )
    warnings = [_explain(name, options[name], n_ctx) for name in names[:MAX_IGNORED]]
    return [warning for warning in warnings if warning]


def _explain(name: str, value: Any, n_ctx: int) -> str:
    if name != "num_ctx":
        return f"Field 'options.{name:.64}' was ignored: it is not an option of requests here"
    is_enough = isinstance(value, int) and value <= n_ctx
    return "" if is_enough else f"Field 'options.num_ctx' was ignored: slots have {n_ctx} tokens (--ctx-size)"
