"""What is wrong with files and directories that options name is said before anything else happens."""

from __future__ import annotations

import os
import socket

import pytest

from corral.cli import main as command
from corral.cli import model_source
from corral.cli.options import SETTINGS
from corral.cli.options.option import PathUse
from corral.server.log import close_log
from tests.tools.small_gguf import small_gguf

CHECKED = [option for option in SETTINGS if option.path is not None and option.target != "engine.model"]
INPUTS = [o for o in CHECKED if o.path in (PathUse.TEXT, PathUse.DATA, PathUse.GGUF)]
DIRECTORIES = [o for o in CHECKED if o.path.is_directory]
LORA = small_gguf(architecture="llama", general__type="adapter", adapter__type="lora")


@pytest.fixture
def start(monkeypatch, capsys):
    """Run the command; returns its exit status and what it said, once nothing was resolved or served."""
    monkeypatch.setattr(command, "run", lambda *_: pytest.fail("it serves"))
    resolved = []

    def resolve(settings, *_):
        resolved.append(settings)
        return settings

    monkeypatch.setattr(model_source, "resolve_model", resolve)

    def run(*argv, can_serve=False):
        if can_serve:
            monkeypatch.setattr(command, "run", lambda *_: None)
        status = command.main([str(word) for word in argv])
        assert bool(resolved) == can_serve
        return status, capsys.readouterr().err

    yield run
    close_log()


def args_for(option, path):
    return [option.names[-1], path, *(["1"] if option.n_args == "+" else [])]


def test_every_option_that_names_a_file_or_a_directory_is_checked():
    named = {o for o in SETTINGS if o.metavar in ("FNAME", "FILE", "PATH") or "file" in o.target}
    assert {o.long_name for o in named if o.path is None} == {"--hf-file"}


@pytest.mark.parametrize("option", INPUTS, ids=lambda o: o.long_name)
def test_a_file_to_read_must_be_there_and_no_directory(option, start, tmp_path):
    status, said = start(*args_for(option, tmp_path / "none"))
    assert status == 2
    assert f"{option.names[-1]} '{tmp_path / 'none'}': No such file" in said
    status, said = start(*args_for(option, tmp_path))
    assert status == 2
    assert f"{option.names[-1]} '{tmp_path}': it is a directory" in said


@pytest.mark.parametrize("option", DIRECTORIES, ids=lambda o: o.long_name)
def test_a_directory_must_be_one_and_be_there_unless_it_can_be_made(option, start, tmp_path):
    file = tmp_path / "file"
    file.touch()
    status, said = start(*args_for(option, file))
    assert status == 2
    assert f"{option.names[-1]} '{file}'" in said
    missing = tmp_path / "a" / "b"
    makes_it = option.path is PathUse.OWN_DIRECTORY
    status, said = start(*args_for(option, missing), can_serve=makes_it)
    assert status == (0 if makes_it else 2)
    assert (f"{option.names[-1]} '{missing}'" in said) != makes_it


@pytest.mark.parametrize(
    "option", [o for o in CHECKED if o.path is PathUse.OUTPUT], ids=lambda o: o.long_name
)
def test_a_file_to_write_needs_a_directory(option, start, tmp_path):
    status, said = start(*args_for(option, tmp_path / "none" / "file.x"))
    assert status == 2
    assert option.names[-1] in said
    assert str(tmp_path / "none") in said


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_what_may_not_be_read_or_written(start, tmp_path):
    (tmp_path / "file").touch(0o000)
    (tmp_path / "directory").mkdir(0o500)
    for option in CHECKED:
        path = tmp_path / ("directory" if option.path.is_directory else "file")
        if option.path is not PathUse.READ_DIRECTORY:
            status, said = start(*args_for(option, path))
            assert (status, "ermission" in said) == (2, True), option


@pytest.mark.parametrize(
    ("option", "content", "reason"),
    [
        ("--lora", b"<html>", "not a GGUF file"),
        ("--lora", LORA[:150], "incomplete"),
        ("--lora", small_gguf(), "not a LoRA adapter"),
        ("--mmproj", small_gguf(), "not a multimodal projector"),
        ("--model-draft", small_gguf(architecture="clip"), "--mmproj"),
        ("--control-vector", b"text", "not a GGUF file"),
        ("--grammar-file", b"root ::= (", "--grammar-file"),
        ("--grammar-file", b"\xff", "not UTF-8"),
        ("--chat-template-file", b"{% if %}", "jinja"),
        ("--api-key-file", b"# nothing\n", "has no keys"),
        ("--ui-config-file", b"[]", "JSON object"),
        ("--system-prompt-file", b"\xff", "not UTF-8"),
    ],
)
def test_what_a_file_holds_is_looked_at_too(option, content, reason, start, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(content)
    status, said = start(option, path)
    assert status == 2
    assert f"{option} '{path}': " in said
    assert reason in said
    assert said.count(str(path)) == 1


def test_all_faults_are_said_at_once_and_where_they_were_given(start, tmp_path, monkeypatch):
    monkeypatch.setenv("LLAMA_ARG_LORA", str(tmp_path / "1"))
    (tmp_path / "corral.toml").write_text(f"chats = {str(tmp_path / '2')!r}\n")
    words = ["--config", tmp_path / "corral.toml", "--path", tmp_path / "3"]
    status, said = start(*words)
    assert status == 2
    for name, path in (("LLAMA_ARG_LORA", "1"), ("corral.toml: chats", "2"), ("--path", "3")):
        assert f"{name} '{tmp_path / path}': " in said


def test_only_what_counts_is_checked(start, tmp_path):
    (tmp_path / "x.gbnf").write_text('root ::= "a" <[1]> <think>')
    grammar = ("--grammar-file", tmp_path / "none", "--grammar-file", tmp_path / "x.gbnf")
    assert start(*grammar, "--file", "none", "--lora", "", can_serve=True)[0] == 0


def test_a_pipe_is_not_read(start):
    reading, writing = os.pipe()
    with open(reading, "rb") as pipe, open(writing, "wb") as full:
        full.write(b"key\n")
        full.flush()
        assert start("--api-key-file", f"/dev/fd/{reading}", can_serve=True)[0] == 0
        full.close()
        assert pipe.read() == b"key\n"


def test_a_certificate_without_its_key(start, tmp_path):
    (tmp_path / "cert.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    status, said = start("--ssl-cert-file", tmp_path / "cert.pem")
    assert status == 2
    assert "--ssl-key-file" in said


def test_a_port_that_is_taken_is_noticed_before_a_download(monkeypatch, capsys):
    monkeypatch.setattr(model_source, "resolve_model", lambda *_: pytest.fail("it downloads"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert command.main(["-hf", "user/model", "--port", str(port)]) == 1
    close_log()
    assert f"port {port}" in capsys.readouterr().err


def test_an_adapter_of_another_model(start, modifiers, models, tmp_path):
    (tmp_path / "cut.gguf").write_bytes((models / "llama-bpe.gguf").read_bytes()[:5000])
    (adapter, *_) = sorted(modifiers.glob("*lora*.gguf"))
    other = next(path for path in models.glob("*.gguf") if not path.name.startswith("llama"))
    for model, status, name in (
        (models / "llama-bpe.gguf", 0, ""),
        (other, 2, "--lora"),
        (tmp_path / "cut.gguf", 1, "cut.gguf': the file is incomplete"),
    ):
        found, said = start("-m", model, "--lora", adapter, can_serve=True)
        assert (found, name in said) == (status, True), said
