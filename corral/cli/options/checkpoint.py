"""Options of checkpoints and sliding windows: models whose memory cannot be cut everywhere."""

from __future__ import annotations

from corral.cli.options.option import Option

OPTIONS = (
    Option(
        ("-ctxcp", "--ctx-checkpoints", "--swa-checkpoints"),
        "most checkpoints of a slot, for models with a recurrent state or a sliding window; 0: off",
        "N",
        limits=(0, 1024),
        target="engine.n_ctx_checkpoints",
    ),
    Option(
        ("-cms", "--checkpoint-min-step"),
        "fewest tokens between checkpoints that are not near the end of a prompt; 0: one after every message",
        "N",
        limits=(0, None),
        env="LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT",
    ),
    Option(
        ("--swa-full",),
        "keep all tokens in layers with a sliding window: takes more memory, and prompts can be cut anywhere",
    ),
)
