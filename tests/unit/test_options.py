"""The option table, as a command line, as environment, and as a file."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from corral.cli.arguments import read_arguments
from corral.cli.command import COMMANDS
from corral.cli.configuration import configure
from corral.cli.given import UsageError
from corral.cli.help import build_parser
from corral.cli.options import GROUPS, OPTIONS, SETTINGS
from corral.cli.print_config import render_config
from corral.cli.title import public_title
from corral.core.settings import EngineSettings, Settings
from tests.tools import llama_server_options
from tests.tools.flag_example import example

_IGNORED = "it is for another program of llama.cpp, or for an older version"


def parse(*argv, **environ):
    return configure(argv, environ).settings


def notes(*argv, **environ):
    return configure(argv, environ).notes


def value_of(settings, option):
    part, name = option.target.split(".")
    return getattr(getattr(settings, part), name)


def test_defaults_are_the_settings_own():
    assert parse() == Settings(engine=EngineSettings(model=""))


@pytest.mark.parametrize("option", SETTINGS, ids=lambda o: o.long_name)
def test_every_name_and_every_variable_of_the_table_works(option):
    words = example(option)
    value = option.read(words)
    if not isinstance(option.default, bool):
        assert value != option.default
    for name in option.names:
        assert value_of(parse(name, *words), option) == value
    for name in option.negative:
        assert value_of(parse(name), option) is False
    for variable in option.variables:
        text = " ".join(words) if words else "1"
        assert value_of(parse(**{variable: text}), option) == value
        if isinstance(option.default, bool):
            assert value_of(parse(**{variable: "off"}), option) is False
    if option.negative:
        name = option.variables[-1].replace("LLAMA_ARG_", "LLAMA_ARG_NO_")
        assert value_of(parse(**{name: "1"}), option) is False


@pytest.mark.parametrize("option", SETTINGS, ids=lambda o: o.long_name)
def test_a_file_says_the_same(option, tmp_path):
    words = example(option)
    path = tmp_path / "corral.toml"
    said = parse(option.names[0], *words)
    text = render_config(configure([option.names[0], *words], {}))
    path.write_text(text)
    if option.secret:
        assert not any(word in text for word in words)
        text += f"{option.key} = {words[0]!r}\n"
        path.write_text(text)
    assert parse("--config", str(path)) == said


def test_all_that_is_said_at_once_is_the_same_in_a_file(tmp_path):
    words = [w for o in SETTINGS if not o.secret for w in (o.long_name, *example(o))]
    path = tmp_path / "corral.toml"
    path.write_text(render_config(configure(words, {})))
    assert parse("--config", str(path)) == parse(*words)


def test_names_are_said_once():
    names = [n for option in OPTIONS for n in (*option.names, *option.negative)]
    assert len(names) == len(set(names))
    variables = [name for option in OPTIONS for name in option.variables]
    assert len(variables) == len(set(variables))
    assert all(option.long_name.startswith("--") for option in OPTIONS)


@pytest.mark.parametrize("field", [f"engine.{n}" for n in EngineSettings.__struct_fields__])
def test_every_setting_of_the_engine_has_an_option(field):
    internal = ("verbose", "is_gated", "host_limit", "n_alike", "n_on_device", "reports_states", "cpus")
    is_internal = field.removeprefix("engine.") in internal
    assert is_internal or any(option.target == field for option in OPTIONS)


_SERVER = [
    (name, command)
    for name, text in [("oldest", llama_server_options.OLDEST), *llama_server_options.GROUPS.items()]
    for command in llama_server_options.command_lines(text)
]


@pytest.mark.parametrize(("group", "words"), _SERVER, ids=lambda v: v if isinstance(v, str) else " ".join(v))
def test_options_of_llama_server_are_accepted_where_it_lists_them(group, words):
    [given] = read_arguments(words)
    found = next(g.title for g in GROUPS if given.option in g.options)
    configuration = configure(words, {})
    if words[0] in llama_server_options.UNUSED.split():
        assert found == "without effect"
        assert configuration.notes == [f"{words[0]} is ignored: {_IGNORED}"]
        assert configuration.settings == parse()
        return
    assert group in ("oldest", found)
    assert configuration.notes == []
    if not given.option.command and words[0] not in _AS_BY_DEFAULT:
        assert value_of(configuration.settings, given.option) != given.option.default


_AS_BY_DEFAULT = (
    *("--host", "-mg", "--main-gpu", "--slots-endpoint-disable", "--no-slots", "-cb", "--cont-batching"),
    *("-e", "--escape", "--penalize-nl", "--log-enable", "-fa", "--log-format"),
)


@pytest.mark.parametrize("text", llama_server_options.VARIABLES.split())
def test_variables_of_llama_server_are_accepted(text):
    name, _, value = text.partition("=")
    assert parse(**{name: value}) != parse()


def test_the_command_line_wins_over_the_environment_and_that_over_a_file(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text('port = 1\nctx_size = 256\nalias = "file"\nlora = ["a.gguf", "b.gguf"]\n')
    environ = {"LLAMA_ARG_PORT": "2", "LLAMA_ARG_ALIAS": "environment", "LLAMA_ARG_CONFIG": str(path)}
    configuration = configure(["--port", "3"], environ)
    settings = configuration.settings
    assert (settings.server.port, settings.engine.n_ctx, settings.server.alias) == (3, 256, "environment")
    assert [file.path for file in settings.engine.lora] == ["a.gguf", "b.gguf"]
    assert configuration.notes == ["--port 3 overrides LLAMA_ARG_PORT=2 from the environment"]
    assert notes("--port", "2", LLAMA_ARG_PORT="2") == []
    text = render_config(configuration)
    assert "port = 3" in text
    assert "# --port on the command line" in text
    assert "# LLAMA_ARG_ALIAS in the environment" in text
    assert f"# {path}: ctx_size" in text


def test_a_list_is_taken_from_one_place():
    environ = {"LLAMA_ARG_LORA": "a.gguf"}
    assert [f.path for f in parse("--lora", "b.gguf", "--lora", "c.gguf", **environ).engine.lora] == [
        "b.gguf",
        "c.gguf",
    ]


def test_keys_and_tokens_are_never_shown():
    configuration = configure(["--api-key", "hush"], {"LLAMA_API_KEY": "quiet", "HF_TOKEN": "still"})
    assert configuration.settings.server.api_keys == ("hush",)
    text = render_config(configuration) + "".join(configuration.notes)
    assert not any(secret in text for secret in ("hush", "quiet", "still"))
    assert "--api-key (not shown) overrides LLAMA_API_KEY (not shown)" in text


@pytest.mark.parametrize(
    ("argv", "environ", "message"),
    [
        (["--paralel", "3"], {}, "unknown option '--paralel'; did you mean '--parallel'?"),
        (["-xyzzy"], {}, "unknown option '-xyzzy'"),
        (["-np", "0"], {}, "-np: 0 is out of range, it must be between 1 and 256"),
        (["-np", "x"], {}, "-np: 'x' is not an integer"),
        (["-np"], {}, "-np requires a value: -np N"),
        (["--temp", "nan"], {}, "--temp: nan is out of range"),
        (["--temp", "inf"], {}, "--temp: inf is out of range"),
        (["--timeout", "1e10"], {}, "out of range, it must be between 0 and"),
        (["-c", "99999999999"], {}, "out of range"),
        (["-fa", "maybe"], {}, "-fa: 'maybe' is not one of on, off, auto"),
        (["--chat-template", "{% no"], {}, "--chat-template: the chat template is not valid jinja"),
        (["--grammar", "root ::= ("], {}, "--grammar: "),
        (["--json-schema", "{"], {}, "--json-schema: not valid JSON"),
        (["--chat-template-kwargs", "[]"], {}, "--chat-template-kwargs: must be a JSON object"),
        ([], {"LLAMA_ARG_UI_CONFIG": "x"}, "LLAMA_ARG_UI_CONFIG: not valid JSON"),
        (["--mlock=1"], {}, "--mlock does not take a value"),
        (["--no-mmap=1"], {}, "--no-mmap does not take a value"),
        (["-l", "x+1"], {}, "-l: 'x+1' is not of the form"),
        (["--samplers", "top_k;guess"], {}, "--samplers: unknown sampler 'guess'"),
        (["--sampling-seq", "kq"], {}, "unknown sampler 'q'"),
        (["-ts", "3,-1"], {}, "negative share"),
        (["-ngl", "some"], {}, "not a number of layers, all"),
        (["-s", "5000000000"], {}, "maximum is 4294967295"),
        (
            ["--control-vector-layer-range", "3"],
            {},
            "requires a value: --control-vector-layer-range START END",
        ),
        ([], {"LLAMA_ARG_PORT": "x"}, "LLAMA_ARG_PORT: 'x' is not an integer"),
        ([], {"LLAMA_ARG_FLASH_ATTN": "x"}, "LLAMA_ARG_FLASH_ATTN: 'x' is not one of on, off, auto"),
        ([], {"LLAMA_ARG_MLOCK": "maybe"}, "LLAMA_ARG_MLOCK: 'maybe' is not on or off"),
        (["--config", "/nowhere.toml"], {}, "--config: cannot read /nowhere.toml"),
    ],
)
def test_a_mistake_says_what_is_wrong(argv, environ, message):
    with pytest.raises(UsageError) as error:
        parse(*argv, **environ)
    assert message in error.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port = ", "is not valid TOML"),
        ("prot = 1", "prot: unknown option; did you mean 'port'?"),
        ("help = true", "help: unknown option"),
        ("port = true", "port: true and false are not allowed"),
        ("port = 1.5", "port: '1.5' is not an integer"),
        ("port = 99999", "port: 99999 is out of range"),
        ("[server]\nport = 1", "server: unknown option"),
        ("alias = 1979-05-27", "alias: a value of type date is not allowed"),
        ("parallel = [1, [2]]", "parallel"),
    ],
)
def test_a_mistake_in_a_file_names_it(text, message, tmp_path):
    path = tmp_path / "a.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        parse("--config", str(path))
    assert message in error.value.message
    assert str(path) in error.value.message


@pytest.mark.parametrize(
    ("argv", "target", "value"),
    [
        (["-fa", "-np", "2"], "engine.flash_attn", "on"),
        (["-fa", "off"], "engine.flash_attn", "off"),
        (["--ctx_size=512"], "engine.n_ctx", 512),
        (["--alias=a=b"], "server.alias", "a=b"),
        (["--alias", "--odd"], "server.alias", "--odd"),
        (["-r", "-", "-r", "b"], "server.stop", ("-", "b")),
        (["--keep", "-1"], "server.n_keep", -1),
        (["-ngl", "all"], "engine.n_gpu_layers", -2),
        (["-ngl", "auto"], "engine.n_gpu_layers", -1),
        (["--numa", "1", "--port", "1"], "engine.numa", "distribute"),
        (["--transcode", "false"], "engine.transcode", "off"),
        (["-v"], "server.verbosity", 4),
        (["-v", "--verbosity", "1"], "server.verbosity", 1),
        (["-s", "-5"], "sampling.seed", 2**32 - 1),
        (["-l", "3+0.5", "-l", "4-inf"], "sampling.logit_bias", ((3, 0.5), (4, -math.inf))),
        (["--samplers", "temp;typical-p"], "sampling.samplers", ("temperature", "typ_p")),
        (
            ["--sampling-seq", "edskfypmxti"],
            "sampling.samplers",
            ("penalties", "dry"),
        ),
        (["--dry-sequence-breaker", "none"], "sampling.dry_sequence_breakers", ()),
        (["--lora-scaled", "a", "0.5", "--port", "1"], "engine.lora", 1),
        (["--no-slots", "--slots"], "server.slots", True),
        (["--log-disable", "--log-enable"], "server.log", True),
        (["--api-key", "a, b", "--api-key", "c"], "server.api_keys", ("a", "b", "c")),
        (["-ts", "3/1"], "engine.tensor_split", (3.0, 1.0)),
    ],
)
def test_how_words_are_read(argv, target, value):
    part, name = target.split(".")
    found = getattr(getattr(parse(*argv), part), name)
    if name in ("lora", "samplers") and not isinstance(value, tuple):
        found = len(found)
    assert (found[: len(value)] if name == "samplers" else found) == value


def test_verbose_reaches_the_engine():
    assert parse("-v").engine.verbose
    assert not parse("--verbosity", "3").engine.verbose


def names_in_help(*, is_full):
    """The options that have a line of their own."""
    text = build_parser(is_full=is_full).format_help()
    lines = [line for line in text.splitlines() if line.startswith("  -")]
    words = {word.strip(",") for line in lines for word in line.split() if word.startswith("-")}
    return {option for option in OPTIONS if words.issuperset(option.names)}, text


def test_help_names_every_option_that_does_something():
    shown, text = names_in_help(is_full=False)
    assert shown == {option for option in OPTIONS if option.is_used}
    assert "--help all" in text
    shown, text = names_in_help(is_full=True)
    assert shown == set(OPTIONS)
    assert all(f"\n{group.title}:\n" in text for group in GROUPS)
    with_effect = [title for title in llama_server_options.GROUPS if title != "perplexity"]
    assert [g.title for g in GROUPS] == [*with_effect, "without effect", "removed"]


def test_usage_names_every_command():
    usage = build_parser().format_usage()
    assert all(f"corral {name} {command.arguments}" in usage for name, command in COMMANDS.items())
    lines = usage.splitlines()
    columns = {line.index(c.help) for c in COMMANDS.values() for line in lines if line.endswith(c.help)}
    assert len(columns) == 1


_SWITCHES = [option for option in SETTINGS if {"on", "off"} <= set(option.choices)]


@pytest.mark.parametrize("option", _SWITCHES, ids=lambda o: o.long_name)
def test_what_can_be_on_or_off_takes_the_words_of_a_flag(option):
    assert len(_SWITCHES) > 1
    for value, words in (("on", "on 1 true TRUE yes enabled"), ("off", "off 0 false no Disabled")):
        for word in words.split():
            assert value_of(parse(option.names[0], word), option) == value
            assert value_of(parse(**{option.variables[0]: word}), option) == value
    if "auto" in option.choices:
        assert all(value_of(parse(option.names[0], word), option) == "auto" for word in ("auto", "-1"))


@pytest.mark.parametrize(
    ("name", "likely"),
    [
        ("LLAMA_ARG_CTX_SISE", "LLAMA_ARG_CTX_SIZE"),
        ("LLAMA_ARG_NGPU_LAYERS", "LLAMA_ARG_N_GPU_LAYERS"),
        ("LLAMA_ARG_NO_MAP", "LLAMA_ARG_NO_MMAP"),
        ("LLAMA_ARG_XYZZY", ""),
    ],
)
def test_a_variable_of_no_option_is_a_warning(name, likely):
    configuration = configure([], {name: "1", "LLAMA_CACHE": "x", "OTHER": "y"})
    (note,) = configuration.notes
    assert note.startswith(f"{name} is ignored")
    assert (f"did you mean {likely}?" in note) if likely else ("did you mean" not in note)
    assert configuration.settings == parse()


@pytest.mark.parametrize(
    ("value", "near"),
    [
        ("nosuch", "built-in templates: "),
        ("chat-ml", "chatml"),
        ("Llama3", "llama3"),
        ("mistral", "mistral-v1"),
    ],
)
def test_a_chat_template_is_a_known_name_or_a_text(value, near):
    for argv, environ in ((["--chat-template", value], {}), ([], {"LLAMA_ARG_CHAT_TEMPLATE": value})):
        with pytest.raises(UsageError) as error:
            configure(argv, environ)
        assert near in error.value.message
    for text in ("", "chatml", "{{ messages }}", "no Jinja at all", "{% for m in messages %}{% endfor %}"):
        assert parse("--chat-template", text).server.chat_template == text
    with pytest.raises(UsageError, match="--chat-template-file"):
        parse("--chat-template", "my/template.jinja")


def test_the_title_of_the_process_has_no_secrets():
    def title(*argv: str) -> str | None:
        given = configure(argv, {}).given
        return public_title(argv, [one for values in given.values() for one in values])

    assert title("-c", "512") is None
    assert (
        title("-c", "512", "--api-key", "sk-1", "--api_key=sk-2,sk=3")
        == "corral -c 512 --api-key ... --api_key=..."
    )
    assert (
        title("--api-key-file", "keys", "--hf-token", "hf_x") == "corral --api-key-file keys --hf-token ..."
    )


TODAY = [
    line.split()
    for line in (Path(__file__).parents[1] / "tools/llama_server_today.txt").read_text().splitlines()
]


def test_every_option_of_todays_llama_server_has_a_name_here():
    """As its `--help` lists them, `/` between spellings."""
    known = {name for option in OPTIONS for name in (*option.names, *option.negative)}
    assert {name for names, *_ in TODAY for name in names.split("/")} - known == set()
    assert len(TODAY) > 250


def test_what_cannot_be_honoured_is_refused_with_the_reason():
    for option in OPTIONS:
        if option.refusal:
            line = ["-m", "x.gguf", option.long_name, *([] if option.n_args == 0 else ["1"])]
            with pytest.raises(UsageError, match=re.escape(option.refusal)):
                configure(line, {})
            for name in option.negative:
                assert [note.split()[0] for note in configure(["-m", "x.gguf", name], {}).notes] == [name]


def test_what_means_nothing_is_noted():
    for option in OPTIONS:
        if option.note and option.parse is None and not option.is_used:
            line = ["-m", "x.gguf", option.long_name, *([] if option.n_args == 0 else ["1"])]
            assert configure(line, {}).notes == [f"{option.long_name} is ignored: {option.note}"]
    assert configure(["-m", "x.gguf", "--spec-type", "ngram-mod,none"], {}).notes
    with pytest.raises(UsageError, match="draft-mtp"):
        configure(["-m", "x.gguf", "--spec-type", "draft-mtp"], {})
