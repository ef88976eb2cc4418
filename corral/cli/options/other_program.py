"""Options of llama.cpp's other programs and of older servers: ignored with a warning."""

from __future__ import annotations

from typing import Any

from corral.cli.options.option import Option


def _ignored(names: tuple[str, ...], help: str, metavar: str = "", **more: Any) -> Option:
    return Option(names, help, metavar, target="", **more)


GENERAL = (
    _ignored(("--verbose-prompt",), "print the prompt's tokens", n_args=0),
    _ignored(("--no-display-prompt",), "do not print the prompt", n_args=0),
    _ignored(("-co", "--color"), "coloured output", n_args=0),
    _ignored(("--chunks",), "chunks to process", "N"),
    _ignored(("-p", "--prompt"), "initial prompt", "PROMPT"),
    _ignored(("-f", "--file"), "file with the initial prompt", "FNAME"),
    _ignored(("--in-file",), "file with input", "FNAME"),
    _ignored(("-bf", "--binary-file"), "binary file with the prompt", "FNAME"),
    _ignored(("-ptc", "--print-token-count"), "print the number of tokens", "N"),
    _ignored(("--prompt-cache",), "file to cache the prompt's state in", "FNAME"),
    _ignored(("--prompt-cache-all",), "also cache answers in it", n_args=0),
    _ignored(("--prompt-cache-ro",), "do not update that file", n_args=0),
    _ignored(("-cnv", "--conversation"), "chat in the terminal", n_args=0),
    _ignored(("-i", "--interactive"), "interactive mode", n_args=0),
    _ignored(("-if", "--interactive-first"), "interactive mode, wait for input first", n_args=0),
    _ignored(("-mli", "--multiline-input"), "multiline input in the terminal", n_args=0),
    _ignored(("--in-prefix-bos",), "add BOS before the input", n_args=0),
    _ignored(("--in-prefix",), "text before the input", "STRING"),
    _ignored(("--in-suffix",), "text after the input", "STRING"),
)

PERPLEXITY = (
    _ignored(("--all-logits",), "logits of all tokens", n_args=0),
    _ignored(("--hellaswag",), "HellaSwag score", n_args=0),
    _ignored(("--hellaswag-tasks",), "number of HellaSwag tasks", "N"),
    _ignored(("--winogrande",), "Winogrande score", n_args=0),
    _ignored(("--winogrande-tasks",), "number of Winogrande tasks", "N"),
    _ignored(("--multiple-choice",), "multiple-choice score", n_args=0),
    _ignored(("--multiple-choice-tasks",), "number of multiple-choice tasks", "N"),
    _ignored(("--kl-divergence",), "KL divergence", n_args=0),
    _ignored(("--kl-divergence-base",), "file with the base logits", "FNAME"),
    _ignored(("--ppl-stride",), "stride of perplexity", "N"),
    _ignored(("--ppl-output-type",), "output format of perplexity", "0|1"),
)

CONTEXT = (_ignored(("-dkvc", "--dump-kv-cache"), "print the KV cache", n_args=0),)

PARALLEL = (
    _ignored(("-ns", "--sequences"), "sequences to decode", "N"),
    _ignored(("-dt", "--defrag-thold"), "KV cache defragmentation threshold; libllama does not need it", "N"),
)

MEDIA = (_ignored(("--image", "--audio"), "initial image; a server gets images in requests", "FILE"),)

LOGGING = (
    _ignored(("--simple-io",), "plain input and output", n_args=0),
    _ignored(("-ld", "--logdir"), "directory for YAML logs", "LOGDIR"),
    _ignored(("--log-test",), "test the log", n_args=0),
)
