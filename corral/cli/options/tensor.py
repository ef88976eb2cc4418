"""Options: where tensors of large models are kept and computed."""

from __future__ import annotations

import re

from corral.cli.options.option import Option
from corral.core.modifier import TensorPlace


def tensor_places(args: list[str]) -> tuple[TensorPlace, ...]:
    r"""Parse `PATTERN=BUFFER,...`, as `\.ffn_.*_exps\.=CPU`."""
    pairs = [text.partition("=") for text in args[0].split(",") if text]
    for pattern, _, buffer_type in pairs:
        if not (pattern and buffer_type):
            raise ValueError(f"'{pattern}' must be followed by = and a buffer type, such as CPU")
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"'{pattern}' is not a regular expression: {error}") from None
    return tuple(TensorPlace(pattern, buffer_type) for pattern, _, buffer_type in pairs)


OPTIONS = (
    Option(
        ("-ot", "--override-tensor"),
        "put tensors whose names match a regular expression into another memory, such as CPU or CUDA0; may "
        "be repeated",
        "PATTERN=BUFFER,...",
        parse=tensor_places,
    ),
    Option(("-cmoe", "--cpu-moe"), "keep the experts of a mixture-of-experts model in host memory"),
    Option(
        ("-ncmoe", "--n-cpu-moe"),
        "keep the experts of the first N layers in host memory",
        "N",
        limits=(0, 1024),
    ),
    Option(("--no-host",), "do not use a GPU's own host memory, so that weights there can be repacked"),
    Option(
        ("--op-offload",),
        "compute large batches on a GPU, also with weights in host memory",
        negative=("--no-op-offload",),
    ),
)
