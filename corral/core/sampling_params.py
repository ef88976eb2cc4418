"""The table of sampling parameters: meaning, limits, names on the command line.

Used by the request schema (`schema/completion.py`), the options (`cli/options/sampling.py`) and the
reference pages. Defaults are in `core/params.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from corral.core.params import MAX_AHEAD

INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter. Numbers outside `limits` are refused; in a request, numbers outside `clamp` are clamped.

    `options`: names on the command line, if not `--NAME`. `setting`: its default, if not `sampling.NAME`.
    """

    help: str
    limits: tuple[float, float] = (-INT32_MAX, INT32_MAX)
    clamp: tuple[float, float] | None = None
    options: tuple[str, ...] | None = None
    setting: str = ""


PARAMS: Mapping[str, Param] = {
    "seed": Param(
        "Seed of the random draws; negative: a random one, which the answer reports.",
        options=("-s", "--seed"),
    ),
    "samplers": Param("Samplers in order, by name or as a string of their letters."),
    "ignore_eos": Param("Ignore the end-of-generation token and continue.", setting="server.ignore_eos"),
    "penalize_nl": Param("Apply the penalties to newlines too."),
    "temperature": Param(
        "Randomness of the choice; 0 always takes the most probable token.",
        options=("--temp", "--temperature"),
        clamp=(0, 1e6),
    ),
    "top_k": Param("Keep the K most probable tokens; 0: all.", clamp=(0, INT32_MAX)),
    "top_p": Param("Keep the most probable tokens that together reach P; 1: off.", clamp=(0, 1)),
    "min_p": Param(
        "Drop tokens less probable than this share of the most probable one; 0: off.", clamp=(0, 1)
    ),
    "top_n_sigma": Param(
        "Keep tokens within N standard deviations of the highest logit; <= 0: off.",
        options=("--top-nsigma", "--top-n-sigma"),
        limits=(-1e6, 1e6),
    ),
    "tfs_z": Param("Tail-free sampling; 1: off.", options=("--tfs",), clamp=(0, 1)),
    "typical_p": Param(
        "Locally typical sampling; 1: off.", options=("--typical", "--typical-p"), clamp=(0, 1)
    ),
    "xtc_probability": Param(
        "Chance that XTC removes the most probable tokens at a position; 0: off.", clamp=(0, 1)
    ),
    "xtc_threshold": Param(
        "Probability above which XTC removes all tokens except the least probable of them; > 0.5: off.",
        clamp=(0, 1),
    ),
    "repeat_last_n": Param(
        "Number of last tokens to penalize; 0: none, -1: the whole context.", limits=(-1, INT32_MAX)
    ),
    "repeat_penalty": Param(
        "Penalty for repeated tokens: divides positive logits, multiplies negative ones; 1: off.",
        limits=(1e-3, 1e3),
    ),
    "presence_penalty": Param(
        "Subtracted from a token's logit once it has occurred; 0: off.", limits=(-1e4, 1e4)
    ),
    "frequency_penalty": Param("Subtracted from a token's logit per occurrence; 0: off.", limits=(-1e4, 1e4)),
    "penalty_prompt": Param("Text or token ids to penalize instead of the prompt.", options=()),
    "dry_multiplier": Param("Strength of the DRY repetition penalty; 0: off.", limits=(0, 1e4)),
    "dry_base": Param(
        "Growth of the DRY penalty per repeated token; below 1: the default.", limits=(-1e4, 1e4)
    ),
    "dry_allowed_length": Param("Longest repetition without a DRY penalty.", limits=(0, INT32_MAX)),
    "dry_penalty_last_n": Param(
        "Number of last tokens to scan for DRY; 0: off, -1: the whole context.", limits=(-1, INT32_MAX)
    ),
    "dry_sequence_breakers": Param(
        "Strings that interrupt a repetition for DRY.", options=("--dry-sequence-breaker",)
    ),
    "dynatemp_range": Param(
        "Dynamic temperature range: +- this, by the entropy of the candidates; 0: off.",
        limits=(0, 1e6),
    ),
    "dynatemp_exponent": Param(
        "Exponent of the dynamic temperature.",
        options=("--dynatemp-exp",),
        limits=(0, 1e6),
    ),
    "mirostat": Param("Mirostat version 1 or 2, which replaces the top-* samplers; 0: off.", clamp=(0, 2)),
    "mirostat_eta": Param("Learning rate of Mirostat.", options=("--mirostat-lr",), limits=(0, 1e4)),
    "mirostat_tau": Param("Target entropy of Mirostat.", options=("--mirostat-ent",), limits=(0, 1e4)),
    "adaptive_target": Param(
        "Probability that the sampler `adaptive_p` steers chosen tokens to, if it is among `samplers`; "
        "negative: off.",
        clamp=(-1e6, 1),
    ),
    "adaptive_decay": Param(
        "How slowly `adaptive_p` forgets: it looks back about 1 / (1 - N) tokens.", limits=(0, 0.99)
    ),
    "logit_bias": Param(
        "Pairs [token or text, bias], or an object of them; a bias of false bans the token.",
        options=("-l", "--logit-bias"),
    ),
    "min_keep": Param("Minimum number of candidates that samplers keep.", options=(), limits=(0, INT32_MAX)),
    "n_probs": Param(
        "Report the N most probable tokens at every position.", options=(), limits=(0, INT32_MAX)
    ),
    "post_sampling_probs": Param("Report probabilities after the samplers, not before.", options=()),
    "cfg_negative_prompt": Param(
        "Negative prompt for classifier-free guidance.",
        setting="server.cfg_negative_prompt",
    ),
    "cfg_scale": Param(
        "Strength of classifier-free guidance; 1: off.",
        limits=(-100, 100),
        setting="server.cfg_scale",
    ),
    "n_predict": Param(
        "Maximum number of tokens to generate; 0: only evaluate the prompt, -1: no limit, -2: until "
        "the context is full.",
        options=("-n", "--predict", "--n-predict"),
        limits=(-2, INT32_MAX),
        setting="server.n_predict",
    ),
    "n_keep": Param(
        "Prompt tokens to keep in a context shift; -1: all.",
        options=("--keep",),
        limits=(-1, INT32_MAX),
        setting="server.n_keep",
    ),
    "speculative_n_max": Param(
        "Maximum number of tokens to draft; 0: no drafts. Drafts do not change answers.",
        options=("--draft", "--draft-n", "--draft-max", "--spec-draft-n-max"),
        clamp=(0, MAX_AHEAD - 1),
        setting="server.n_draft",
    ),
    "speculative_n_min": Param(
        "Minimum length of a draft; shorter ones are not used.",
        options=("--draft-min", "--draft-n-min", "--spec-draft-n-min"),
        clamp=(0, INT32_MAX),
        setting="server.n_draft_min",
    ),
    "speculative_p_min": Param(
        "Minimum probability of a drafted token (draft model); below it a draft ends.",
        options=("--draft-p-min", "--spec-draft-p-min"),
        clamp=(0, 1),
        setting="server.p_draft_min",
    ),
}


def option_names(name: str) -> tuple[str, ...]:
    options = PARAMS[name].options
    return (f"--{name.replace('_', '-')}",) if options is None else options
