"""The option table, as a command line and as environment."""

from __future__ import annotations

import pytest

from corral.cli.arguments import build_parser, parse_options
from corral.cli.options import OPTIONS

_WORDS = {
    "--lora": "a.gguf,b.gguf",
    "--lora-scaled": "a.gguf 0.5",
    "--control-vector": "a.gguf",
    "--control-vector-scaled": "a.gguf:0.5,b.gguf:-1",
    "--control-vector-layer-range": "3 7",
    "--override-kv": "a.b=int:3,c=bool:true",
    "--audio": "a.png,b.wav",
}


def parse(*argv, **environ):
    return parse_options(argv, environ)


def test_defaults_are_the_settings_own():
    assert parse().engine.n_parallel == 1
    assert parse().server.port == 8080


@pytest.mark.parametrize("option", OPTIONS, ids=lambda o: o.names[-1])
def test_every_name_and_every_variable_of_the_table_works(option):
    part, name = option.target.split(".")
    default = option.default
    if isinstance(default, bool):
        arguments, value, text = [], True, "1"
    elif option.parse is not None:
        text = _WORDS[option.names[-1]]
        arguments, value = text.split(), option.parse(text.split())
    else:
        value = option.choices[0] if option.choices else type(default)(min(16, option.high or 16))
        arguments = [text] = [str(value)]
    for flag in option.names:
        assert getattr(getattr(parse(flag, *arguments), part), name) == value
    for flag in option.negative:
        assert getattr(getattr(parse(flag), part), name) is False
    assert getattr(getattr(parse(**{option.env: text}), part), name) == value


def test_the_command_line_wins_over_the_environment():
    assert parse("--port", "1", LLAMA_ARG_PORT="2").server.port == 1


def test_names_are_said_once():
    names = [n for option in OPTIONS for n in (*option.names, *option.negative)]
    assert len(names) == len(set(names))
    assert len({option.env for option in OPTIONS}) == len(OPTIONS)


@pytest.mark.parametrize(
    ("argv", "environ", "message"),
    [
        (["--paralel", "3"], {}, "did you mean '--parallel'?"),
        (["-np", "0"], {}, "must be between 1 and 256"),
        (["-np", "x"], {}, "invalid int value"),
        (["-fa", "maybe"], {}, "invalid choice"),
        ([], {"LLAMA_ARG_PORT": "x"}, "LLAMA_ARG_PORT: invalid value 'x'"),
        ([], {"LLAMA_ARG_FLASH_ATTN": "x"}, "is not one of on, off, auto"),
    ],
)
def test_a_mistake_exits_with_2_and_says_what_is_wrong(argv, environ, message, capsys):
    with pytest.raises(SystemExit) as exit:
        parse(*argv, **environ)
    assert exit.value.code == 2
    assert message in capsys.readouterr().err


def test_help_names_every_option():
    text = build_parser().format_help()
    assert all(option.names[0] in text for option in OPTIONS)


def test_flash_attention_may_be_asked_for_without_a_value():
    assert parse("-fa", "-np", "2").engine.flash_attn == "on"
