"""The command, when it does something else than to serve."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from corral import __version__
from corral.cli.command import COMMANDS
from corral.cli.options import OPTIONS
from tests.system.document import ROOT, marked_blocks, run_block
from tests.tools.small_gguf import small_gguf


def corral(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "corral", *words],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", **environ},
    )


def complete(script: str, *words: str) -> set[str]:
    """What bash offers for the last of the words."""
    line = " ".join(repr(word) for word in words)
    code = f"""
source /dev/stdin
COMP_WORDS=({line})
COMP_CWORD={len(words) - 1}
_shtab_corral corral {words[-1]!r} {words[-2]!r}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    answer = subprocess.run(["bash", "-c", code], input=script, capture_output=True, text=True, check=True)
    return set(answer.stdout.split())


@pytest.mark.parametrize("name", ["-h", "--help", "--usage", "help"])
def test_help(name):
    answer = corral(name)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert all(option.long_name in answer.stdout for option in OPTIONS if option.is_used)
    assert not any(f" {option.long_name} " in answer.stdout for option in OPTIONS if not option.is_used)
    full = corral(name, "all").stdout
    assert all(option.long_name in full for option in OPTIONS)


def test_version():
    assert corral("--version").stdout == f"corral {__version__}\n"


def test_an_unknown_option_is_exit_2_with_the_nearest_name():
    answer = corral("--ctx-sise", "4096")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr == "corral: unknown option '--ctx-sise'; did you mean '--ctx-size'?\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name):
    answer = corral("help", name)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert f"corral {name}" in answer.stdout


def test_models_are_listed_with_and_without_a_word(tmp_path):
    (tmp_path / "a.gguf").write_bytes(small_gguf())
    plain = corral("models", LLAMA_CACHE=str(tmp_path))
    assert "a.gguf" in plain.stdout
    for word in ("list", "ls"):
        assert corral("models", word, LLAMA_CACHE=str(tmp_path)).stdout == plain.stdout
    assert corral("models", "list", "--json", LLAMA_CACHE=str(tmp_path)).stdout.startswith("[")


@pytest.mark.parametrize("words", [("run", "llama3"), ("pull", "m"), ("list",), ("model.gguf",), ("xyzzy",)])
def test_an_unknown_command_is_exit_2(words):
    answer = corral(*words)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith(f"corral: '{words[0]}' ")
    assert len(answer.stderr.splitlines()) == 1


def test_print_config_can_be_read_again(tmp_path):
    first = corral("-c", "4096", "--print-config", LLAMA_ARG_N_PARALLEL="3", LLAMA_API_KEY="hush")
    assert first.returncode == 0, first.stderr
    assert "hush" not in first.stdout
    path = tmp_path / "corral.toml"
    path.write_text(first.stdout)
    again = corral("--config", str(path), "--print-config")
    assert again.returncode == 0, again.stderr
    values = [[line.partition("#")[0] for line in text.splitlines()] for text in (first.stdout, again.stdout)]
    assert [v for v in values[0] if v] == [v for v in values[1] if v and not v.startswith("api-key =")]
    assert f"# {path}: parallel" in again.stdout


def test_the_page_for_beginners_finds_all_that_it_looks_for():
    """`grep` ends well if it finds one line: here it is to find one for each name."""
    text = (ROOT / "docs" / "start" / "getting_started.md").read_text()
    ((kind, block),) = [block for block in marked_blocks(text) if "--print-config" in block[1]]
    names = re.findall(r"[\w-]+", block.partition("grep -E")[2])
    printed = run_block(kind, block, "").splitlines()
    assert sorted(line.split()[0] for line in printed) == sorted(names)
    assert len(names) == 3


@pytest.mark.parametrize("words", [("completion", "bash"), ("--completion-bash",)])
def test_bash_completes_names_values_and_files(words, tmp_path):
    script = corral(*words).stdout
    assert complete(script, "corral", "--ctx-s") == {"--ctx-size"}
    assert complete(script, "corral", "mod") == {"models"}
    assert complete(script, "corral", "--split-mode", "") == {"none", "layer", "row", "tensor"}
    (tmp_path / "model.gguf").touch()
    assert complete(script, "corral", "-m", f"{tmp_path}/mod") == {f"{tmp_path}/model.gguf"}


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_get_scripts_too(shell):
    answer = corral("completion", shell)
    assert answer.returncode == 0
    assert "ctx-size" in answer.stdout


@pytest.mark.parametrize("words", [("completion",), ("completion", "csh"), ("completion", "bash", "zsh")])
def test_a_shell_that_is_not_known(words):
    answer = corral(*words)
    assert answer.returncode == 2
    assert "bash,zsh,tcsh" in answer.stderr
