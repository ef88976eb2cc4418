"""The parameters of sampling, said once: meaning, limits, names on the command line.

Read by the request schema (`api/schema/completion.py`), the options (`cli/options/sampling.py`) and the
reference pages. Defaults are those of `core/params.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from corral.core.params import MAX_AHEAD

INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Param:
    """A number outside of `limits` is refused; in a request, one outside of `clamp` becomes the nearer bound.

    `options`: names on the command line. `setting`: its default in the settings, if not `sampling.NAME`.
    """

    help: str
    options: tuple[str, ...] = ()
    limits: tuple[float, float] = (-INT32_MAX, INT32_MAX)
    clamp: tuple[float, float] | None = None
    setting: str = ""


PARAMS: Mapping[str, Param] = {
    "seed": Param(
        "Seed of the random draws; negative: a random one, which the answer reports.", ("-s", "--seed")
    ),
    "samplers": Param("Samplers in order, by name or as a string of their letters.", ("--samplers",)),
    "ignore_eos": Param(
        "Go on past the end-of-stream token.", ("--ignore-eos",), setting="server.ignore_eos"
    ),
    "penalize_nl": Param("Apply the penalties to the newline too.", ("--penalize-nl",)),
    "temperature": Param(
        "Randomness of the choice; 0 always takes the most probable token.",
        ("--temp", "--temperature"),
        clamp=(0, 1e6),
    ),
    "top_k": Param("Keep the K most probable tokens; 0: all.", ("--top-k",), clamp=(0, INT32_MAX)),
    "top_p": Param(
        "Keep the most probable tokens that together reach P; 1: off.", ("--top-p",), clamp=(0, 1)
    ),
    "min_p": Param(
        "Drop tokens less probable than this share of the best one's; 0: off.", ("--min-p",), clamp=(0, 1)
    ),
    "top_n_sigma": Param(
        "Keep logits within N standard deviations of the best; <= 0: off.",
        ("--top-nsigma", "--top-n-sigma"),
        limits=(-1e6, 1e6),
    ),
    "tfs_z": Param("Tail-free sampling; 1: off.", ("--tfs",), clamp=(0, 1)),
    "typical_p": Param("Locally typical sampling; 1: off.", ("--typical", "--typical-p"), clamp=(0, 1)),
    "xtc_probability": Param(
        "Chance that XTC removes the top choices of a token; 0: off.", ("--xtc-probability",), clamp=(0, 1)
    ),
    "xtc_threshold": Param(
        "Probability above which XTC removes all tokens but the last; > 0.5: off.",
        ("--xtc-threshold",),
        clamp=(0, 1),
    ),
    "repeat_last_n": Param(
        "Tokens that count as repeated; 0: none, -1: the whole context.",
        ("--repeat-last-n",),
        limits=(-1, INT32_MAX),
    ),
    "repeat_penalty": Param(
        "Divides the odds of repeated tokens; 1: off.", ("--repeat-penalty",), limits=(1e-3, 1e3)
    ),
    "presence_penalty": Param(
        "Subtracted from a token's logit once it has occurred; 0: off.",
        ("--presence-penalty",),
        limits=(-1e4, 1e4),
    ),
    "frequency_penalty": Param(
        "Subtracted from a token's logit per occurrence; 0: off.",
        ("--frequency-penalty",),
        limits=(-1e4, 1e4),
    ),
    "penalty_prompt": Param("Takes the prompt's place for the penalties: a text or token ids."),
    "dry_multiplier": Param(
        "Strength of the DRY repetition penalty; 0: off.", ("--dry-multiplier",), limits=(0, 1e4)
    ),
    "dry_base": Param(
        "Growth of the DRY penalty per repeated token; below 1: the default.",
        ("--dry-base",),
        limits=(-1e4, 1e4),
    ),
    "dry_allowed_length": Param(
        "Repetitions up to this length cost nothing under DRY.",
        ("--dry-allowed-length",),
        limits=(0, INT32_MAX),
    ),
    "dry_penalty_last_n": Param(
        "Tokens that DRY looks back; 0: off, -1: the whole context.",
        ("--dry-penalty-last-n",),
        limits=(-1, INT32_MAX),
    ),
    "dry_sequence_breakers": Param(
        "Strings that interrupt a repetition for DRY.", ("--dry-sequence-breaker",)
    ),
    "dynatemp_range": Param(
        "The temperature moves within +- this range, by the entropy of the candidates; 0: off.",
        ("--dynatemp-range",),
        limits=(0, 1e6),
    ),
    "dynatemp_exponent": Param(
        "How entropy maps to temperature within the dynamic range.", ("--dynatemp-exp",), limits=(0, 1e6)
    ),
    "mirostat": Param(
        "1 or 2: Mirostat steers perplexity, instead of the top-* samplers; 0: off.",
        ("--mirostat",),
        clamp=(0, 2),
    ),
    "mirostat_eta": Param("Learning rate of Mirostat.", ("--mirostat-lr",), limits=(0, 1e4)),
    "mirostat_tau": Param("Target entropy of Mirostat.", ("--mirostat-ent",), limits=(0, 1e4)),
    "logit_bias": Param(
        "Pairs [token or text, bias], or an object from them; a bias of false forbids the token.",
        ("-l", "--logit-bias"),
    ),
    "min_keep": Param("Samplers leave at least N candidates.", limits=(0, INT32_MAX)),
    "n_probs": Param("Report the N most probable tokens at every position.", limits=(0, INT32_MAX)),
    "post_sampling_probs": Param("Report probabilities after the samplers, not before."),
    "cfg_negative_prompt": Param(
        "A prompt that is continued alongside this one, to steer away from.",
        ("--cfg-negative-prompt",),
        setting="server.cfg_negative_prompt",
    ),
    "cfg_scale": Param(
        "How strongly to steer away from the negative prompt; 1: not at all.",
        ("--cfg-scale",),
        limits=(-100, 100),
        setting="server.cfg_scale",
    ),
    "n_predict": Param(
        "Most tokens to generate; 0: only evaluate, -1: no limit, -2: until the context is full.",
        ("-n", "--predict", "--n-predict"),
        limits=(-2, INT32_MAX),
        setting="server.n_predict",
    ),
    "n_keep": Param(
        "Prompt tokens to keep when the context shifts; -1: all of them.",
        ("--keep",),
        limits=(-1, INT32_MAX),
        setting="server.n_keep",
    ),
    "speculative_n_max": Param(
        "Most tokens to draft at once; 0: no drafts. Answers are the same.",
        ("--draft", "--draft-n", "--draft-max", "--spec-draft-n-max"),
        clamp=(0, MAX_AHEAD - 1),
        setting="server.n_draft",
    ),
    "speculative_n_min": Param(
        "Shorter drafts are not used.",
        ("--draft-min", "--draft-n-min", "--spec-draft-n-min"),
        clamp=(0, INT32_MAX),
        setting="server.n_draft_min",
    ),
    "speculative_p_min": Param(
        "A draft of the draft model ends where it is less sure than this.",
        ("--draft-p-min", "--spec-draft-p-min"),
        clamp=(0, 1),
        setting="server.p_draft_min",
    ),
}
