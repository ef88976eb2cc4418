"""What is in the cache, how it is listed, and how it goes."""

from __future__ import annotations

import json
import re

import pytest
from rich.console import Console

from corral.cli import model_cache
from corral.cli.model_cache import find_model, run_models
from corral.core.errors import CorralError, NotFound
from corral.models.files.cached_model import find_models, remove_model
from corral.models.files.download import Access, download, lock_of
from corral.models.files.fetch import RetryPolicy
from corral.models.files.hub import Hub
from tests.tools.fake_hub import FakeHub, Repository
from tests.tools.file_server import FileServer, Served
from tests.tools.recorder import Recorder
from tests.tools.small_gguf import small_gguf, split_gguf

pytestmark = pytest.mark.usefixtures("cache")

IMPATIENT = Access(retry=RetryPolicy(n_tries=1, sleep=lambda _: None))


@pytest.fixture
def server():
    with FileServer() as server:
        yield server


@pytest.fixture
def hub(monkeypatch):
    parts = {f"big-BF16-{i:05}-of-00002.gguf": part for i, part in enumerate(split_gguf(2), 1)}
    files = {
        "m-Q4_K_M.gguf": small_gguf(1500, numbers={"general.file_type": 15}),
        "m-Q8_0.gguf": small_gguf(2000),
        "mmproj-F16.gguf": small_gguf(seed=4, architecture="clip"),
        **parts,
    }
    with FakeHub({"user/m": Repository(large=files)}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


def get(server, name="m.gguf", content=None, **how):
    content = small_gguf(2000, tensors=["a", "b"]) if content is None else content
    server.files[f"/{name}"] = Served(content, etag='"1"', **how)
    return download(f"{server.url}/{name}", "-mu", Recorder(), access=IMPATIENT)


def get_hub(repo="user/m", name="", **how):
    return Hub(repo, Recorder(), IMPATIENT).get_model(name, **how).path


def files_in(directory):
    return [path for path in directory.rglob("*") if path.is_file() and path.suffix not in (".lock", ".TAG")]


def names():
    return [model.name for model in find_models()]


def remove_cached(name):
    model = find_model(name, find_models())
    remove_model(model)
    return model


def test_nothing_is_there(capsys, cache):
    assert find_models() == []
    assert run_models([]) == 0
    assert capsys.readouterr().out == f"no models in {cache}\n"
    assert run_models(["--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert not cache.exists()


def test_a_file_from_a_url(server):
    path = get(server)
    (model,) = find_models()
    assert model.name == "m.gguf"
    assert model.paths == (str(path),)
    assert model.n_bytes == path.stat().st_size
    assert model.format == "llama F32, 4K parameters"
    assert model.source == f"{server.url}/m.gguf"
    assert abs(model.time - path.stat().st_mtime) < 3600
    assert not model.is_partial


def test_files_of_the_hub(hub):
    get_hub()
    get_hub(name="big-BF16-00001-of-00002.gguf", with_projector=False)
    models = {model.name: model for model in find_models()}
    assert sorted(models) == ["user/m/mmproj-F16.gguf", "user/m:BF16", "user/m:Q4_K_M"]
    assert models["user/m:Q4_K_M"].format == "llama Q4_K_M, 1.5K parameters"
    assert models["user/m/mmproj-F16.gguf"].format == "clip F32, 1K parameters"
    assert len(models["user/m:BF16"].paths) == 2
    assert models["user/m:BF16"].n_bytes == sum(map(len, split_gguf(2)))
    assert models["user/m:BF16"].format == "llama F32, 2K parameters"
    assert {model.source for model in models.values()} == {"hub user/m"}


def test_what_did_not_come_whole(server, hub):
    with pytest.raises(CorralError):
        get(server, cuts=[2000])
    hub.cuts = iter([1000])
    with pytest.raises(CorralError):
        get_hub(with_projector=False)
    ours, theirs = find_models()
    assert (ours.name, theirs.name) == ("m.gguf.part", "user/m/m-Q4_K_M.gguf.part")
    assert ours.is_partial
    assert theirs.is_partial
    assert 0 < ours.n_bytes <= 2000
    assert ours.format.startswith("partial, ")
    assert ours.format.endswith("% of 15.8 KiB")
    assert ours.source == f"{server.url}/m.gguf"
    for name in names():
        remove_cached(name)
    assert find_models() == []


def test_parts_that_are_missing(server, cache):
    for i, part in enumerate(split_gguf(2), 1):
        server.files[f"/s-{i:05}-of-00002.gguf"] = Served(part)
    path = download(f"{server.url}/s-00001-of-00002.gguf", "-mu", Recorder())
    (model,) = find_models()
    assert model.name == "s-00001-of-00002.gguf"
    assert len(model.paths) == 2
    path.with_name(path.name.replace("00001-of", "00002-of")).unlink()
    (model,) = find_models()
    assert model.format == "1 of its parts missing"
    assert model.is_partial
    remove_cached("s")
    assert files_in(cache) == []


def test_what_is_damaged_is_listed(server):
    get(server).write_bytes(b"GGUFnonsense")
    (model,) = find_models()
    assert model.format.startswith("damaged: ")


def test_what_is_cut_short_is_listed_as_incomplete(server):
    path = get(server)
    path.write_bytes(path.read_bytes()[:1000])
    (model,) = find_models()
    assert model.format.startswith("incomplete, ")
    assert model.is_partial


def test_what_others_put_there(cache):
    cache.mkdir()
    (cache / "user_model.gguf").write_bytes(small_gguf())
    (cache / "user_model.gguf.etag").write_text('"1"')
    (cache / "lora-base-0123.gguf").write_bytes(small_gguf())
    (cache / "something.else").write_bytes(b"x")
    assert names() == ["lora-base-0123.gguf", "user_model.gguf"]
    assert find_models()[0].source == "made for --lora-base"
    remove_cached("user_model.gguf")
    assert sorted(path.name for path in files_in(cache)) == ["lora-base-0123.gguf", "something.else"]


def test_a_name_that_ends_in_no_gguf(server):
    get(server, name="download")
    assert names() == ["download"]


def test_equal_names_are_told_apart(server):
    first = get(server)
    server.files["/other/m.gguf"] = Served(small_gguf())
    second = download(f"{server.url}/other/m.gguf", "-mu", Recorder())
    assert names() == sorted([first.name, second.name])
    remove_cached(second.name)
    assert first.exists()
    assert not second.exists()


def test_removing_leaves_nothing(server, cache, hub):
    get(server)
    remove_cached("m.gguf")
    assert files_in(cache) == []
    get_hub()
    remove_cached("user/m:Q4_K_M")
    assert names() == ["user/m/mmproj-F16.gguf"]
    remove_cached("user/m/mmproj-F16.gguf")
    assert files_in(cache) == []
    assert not (cache / "hub" / "models--user--m").exists()
    get_hub()
    assert len(names()) == 2


def test_what_never_got_a_name_is_listed_too(hub, cache):
    blob = get_hub(with_projector=False).resolve()
    for link in (cache / "hub").rglob("*.gguf"):
        link.unlink()
    (model,) = find_models()
    assert model.name == f"user/m/{blob.name}.part"
    assert model.format == "leftover"
    remove_cached("user/m")
    assert not blob.exists()
    assert find_models() == []


def test_removing_takes_all_versions_but_nothing_of_others(hub, cache):
    repository = hub.repositories["user/m"]
    get_hub(with_projector=False)
    repository.commit, repository.large["m-Q4_K_M.gguf"] = "d" * 40, small_gguf(seed=5)
    repository.large["copy-F32.gguf"] = small_gguf(seed=5)
    get_hub(with_projector=False)
    copy = get_hub(name="copy-F32.gguf", with_projector=False)
    model = next(model for model in find_models() if model.name == "user/m:Q4_K_M")
    assert model.n_bytes == len(small_gguf(1500, numbers={"general.file_type": 15})) + len(small_gguf(seed=5))
    assert model.paths[0].split("/")[-2] == "d" * 40
    remove_cached("user/m:Q4_K_M")
    assert names() == ["user/m:F32"]
    assert copy.read_bytes() == small_gguf(seed=5)
    assert len(files_in(cache / "hub" / "models--user--m" / "blobs")) == 1


def test_names_may_be_shortened(server, cache):
    for name in ("alpha.gguf", "alpha-2.gguf", "beta.gguf"):
        get(server, name=name)
    with pytest.raises(CorralError, match=r"'al'.*alpha-2\.gguf, alpha\.gguf"):
        remove_cached("al")
    assert remove_cached("BE").name == "beta.gguf"
    assert remove_cached("alpha.gguf").name == "alpha.gguf"
    with pytest.raises(NotFound, match=r"'alhpa-2'.*'alpha-2\.gguf'"):
        remove_cached("alhpa-2")
    with pytest.raises(NotFound, match="`corral models`"):
        remove_cached("zzzzzzz")
    assert names() == ["alpha-2.gguf"]


def test_what_is_being_downloaded_stays(server):
    path = get(server)
    with lock_of(path), pytest.raises(CorralError, match=r"'m\.gguf'"):
        remove_cached("m.gguf")
    assert path.exists()


def test_the_list_for_people(server, hub, capsys):
    get(server)
    get_hub()
    assert run_models([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[0].split() == ["NAME", "SIZE", "NEEDS", "FORMAT", "FROM", "SINCE"]
    sizes = [re.search(r"\S+ KiB", line).start() for line in lines[1:]]
    assert {lines[0].index("SIZE"), *sizes} == {sizes[0]}
    assert "llama Q4_K_M, 1.5K parameters" in lines[3]
    assert f"{server.url}/m.gguf" in lines[1]


def test_the_list_on_a_terminal(server, capsys, monkeypatch):
    get(server, name="[bold]m.gguf")
    original = Console
    monkeypatch.setattr(
        model_cache, "Console", lambda **how: original(force_terminal=True, no_color=True, width=150, **how)
    )
    assert run_models([]) == 0
    out = capsys.readouterr().out
    assert "[bold]m.gguf" in out
    assert "llama F32, 4K parameters" in out
    assert "15.8 KiB in " in out


def test_the_list_for_machines(server, capsys):
    path = get(server)
    assert run_models(["--json"]) == 0
    (model,) = json.loads(capsys.readouterr().out)
    assert model.pop("time") > 0
    assert model == {
        "name": "m.gguf",
        "paths": [str(path)],
        "n_bytes": path.stat().st_size,
        "source": f"{server.url}/m.gguf",
        "n_needed": 0,
        "architecture": "llama",
        "quantization": "F32",
        "n_params": 4000,
        "fault": "",
        "is_partial": False,
        "format": "llama F32, 4K parameters",
    }


def test_the_command_removes_all_or_nothing(server, capsys):
    get(server, name="one.gguf")
    get(server, name="two.gguf")
    assert run_models(["rm", "one.gguf", "three.gguf"]) == 1
    assert "corral: model 'three.gguf' is not in the cache" in capsys.readouterr().err
    assert len(names()) == 2
    assert run_models(["rm", "-y", "one", "two", "one.gguf"]) == 0
    assert capsys.readouterr().out == "removed one.gguf (15.8 KiB)\nremoved two.gguf (15.8 KiB)\n"
    assert names() == []


@pytest.mark.parametrize(("answer", "is_gone"), [("y", True), ("YES", True), ("n", False), ("", False)])
def test_on_a_terminal_it_asks(server, monkeypatch, answer, is_gone):
    get(server)
    original = Console
    monkeypatch.setattr(model_cache, "Console", lambda **how: original(force_terminal=True, **how))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    asked = []
    monkeypatch.setattr("builtins.input", lambda prompt: asked.append(prompt) or answer)
    assert run_models(["rm", "m.gguf"]) == 0
    assert asked == ["remove m.gguf (15.8 KiB)? [y/N] "]
    assert (names() == []) == is_gone


@pytest.mark.parametrize("words", [["rm"], ["nonsense"], ["--nonsense"]])
def test_what_is_no_command(words, capsys):
    with pytest.raises(SystemExit) as caught:
        run_models(words)
    assert caught.value.code == 2
    assert "usage: corral models" in capsys.readouterr().err
