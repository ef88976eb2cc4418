"""What is suggested for words that the command line does not know."""

from __future__ import annotations

import pytest

from corral.cli.arguments import read_arguments
from corral.cli.command import COMMANDS
from corral.cli.given import UsageError
from corral.cli.hint import OPTION_HINTS
from corral.cli.options import OPTIONS

_NAMES = {name for option in OPTIONS for name in (*option.names, *option.negative)}


def refusal(*argv: str) -> str:
    with pytest.raises(UsageError) as error:
        read_arguments(argv)
    return error.value.message


@pytest.mark.parametrize(
    ("argv", "suggestion"),
    [
        (["model.gguf"], "corral -m model.gguf"),
        (["-c", "512", "my model.gguf"], "corral -m 'my model.gguf'"),
        (["user/model:Q4_K_M"], "corral -hf user/model:Q4_K_M"),
        (["https://host/m.gguf"], "corral -mu https://host/m.gguf"),
        (["run", "llama3.2"], "corral -hf USER/MODEL"),
        (["run", "hf.co/user/model-GGUF:Q8_0"], "corral -hf user/model-GGUF:Q8_0"),
        (["run", "model.gguf"], "corral -m model.gguf"),
        (["pull", "user/model"], "corral -hf user/model"),
        (["pull"], "corral -hf USER/MODEL"),
        (["list"], "corral models list"),
        (["rm", "m"], "corral models rm NAME"),
        (["serve"], "corral -m FILE.gguf"),
        (["docter"], "corral doctor"),
        (["xyzzy"], ", ".join(COMMANDS)),
    ],
)
def test_a_word_that_is_no_option(argv, suggestion):
    assert suggestion in refusal(*argv)


def test_a_file_that_is_there_is_a_model_whatever_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights").touch()
    assert "corral -m weights" in refusal("weights")


@pytest.mark.parametrize(
    ("name", "likely"),
    [
        ("--n-ctx", "--ctx-size"),
        ("--n_ctx=4096", "--ctx-size"),
        ("--max-model-len", "--ctx-size"),
        ("--paralel", "--parallel"),
    ],
)
def test_an_option_of_another_program_or_with_a_mistake(name, likely):
    assert f"did you mean '{likely}'?" in refusal(name, "1")


def test_hints_lead_from_what_there_is_not_to_what_there_is():
    assert not _NAMES.intersection(OPTION_HINTS)
    assert _NAMES.issuperset(OPTION_HINTS.values())
