"""Options of llama.cpp's other programs and of older servers: ignored with a warning."""

from __future__ import annotations

from corral.cli.options.option import Option


def _ignored(names: tuple[str, ...], help: str, metavar: str = "") -> Option:
    return Option(names, help, metavar, target="", n_args=1 if metavar else 0)


GENERAL = (
    _ignored(("--verbose-prompt",), "print the prompt's tokens"),
    _ignored(("--no-display-prompt",), "do not print the prompt"),
    _ignored(("-co", "--color"), "coloured output"),
    _ignored(("--chunks",), "chunks to process", "N"),
    _ignored(("-p", "--prompt"), "initial prompt", "PROMPT"),
    _ignored(("-f", "--file"), "file with the initial prompt", "FNAME"),
    _ignored(("--in-file",), "file with input", "FNAME"),
    _ignored(("-bf", "--binary-file"), "binary file with the prompt", "FNAME"),
    _ignored(("-ptc", "--print-token-count"), "print the number of tokens", "N"),
    _ignored(("--prompt-cache",), "file to cache the prompt's state in", "FNAME"),
    _ignored(("--prompt-cache-all",), "also cache answers in it"),
    _ignored(("--prompt-cache-ro",), "do not update that file"),
    _ignored(("-cnv", "--conversation"), "chat in the terminal"),
    _ignored(("-i", "--interactive"), "interactive mode"),
    _ignored(("-if", "--interactive-first"), "interactive mode, wait for input first"),
    _ignored(("-mli", "--multiline-input"), "multiline input in the terminal"),
    _ignored(("--in-prefix-bos",), "add BOS before the input"),
    _ignored(("--in-prefix",), "text before the input", "STRING"),
    _ignored(("--in-suffix",), "text after the input", "STRING"),
)

PERPLEXITY = (
    _ignored(("--all-logits",), "logits of all tokens"),
    _ignored(("--hellaswag",), "HellaSwag score"),
    _ignored(("--hellaswag-tasks",), "number of HellaSwag tasks", "N"),
    _ignored(("--winogrande",), "Winogrande score"),
    _ignored(("--winogrande-tasks",), "number of Winogrande tasks", "N"),
    _ignored(("--multiple-choice",), "multiple-choice score"),
    _ignored(("--multiple-choice-tasks",), "number of multiple-choice tasks", "N"),
    _ignored(("--kl-divergence",), "KL divergence"),
    _ignored(("--kl-divergence-base",), "file with the base logits", "FNAME"),
    _ignored(("--ppl-stride",), "stride of perplexity", "N"),
    _ignored(("--ppl-output-type",), "output format of perplexity", "0|1"),
)

CONTEXT = (_ignored(("-dkvc", "--dump-kv-cache"), "print the KV cache"),)

PARALLEL = (
    _ignored(("-ns", "--sequences"), "sequences to decode", "N"),
    _ignored(("-dt", "--defrag-thold"), "KV cache defragmentation threshold; libllama does not need it", "N"),
)

MEDIA = (_ignored(("--image", "--audio"), "initial image; a server gets images in requests", "FILE"),)

LOGGING = (
    _ignored(("--simple-io",), "plain input and output"),
    _ignored(("-ld", "--logdir"), "directory for YAML logs", "LOGDIR"),
    _ignored(("--log-test",), "test the log"),
)
