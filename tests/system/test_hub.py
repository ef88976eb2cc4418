"""Models from a hub: the right files, whole, and a token only for whom it is."""

from __future__ import annotations

import contextlib
import hashlib
import re
import subprocess
import sys

import pytest

from corral.core.errors import CorralError
from corral.gguf.model_file import check_model_file
from corral.models.files.download import Access
from corral.models.files.fetch import RetryPolicy
from corral.models.files.hub import Hub, token_for
from corral.models.files.hub_choice import choose_model, choose_projector, quant_of
from tests.tools.fake_hub import FakeHub, Repository
from tests.tools.recorder import Recorder
from tests.tools.small_gguf import small_gguf, split_gguf

pytestmark = pytest.mark.usefixtures("cache")

QUICK = RetryPolicy(sleep=lambda _: None)
Q4, Q8, F16 = (small_gguf(seed=i) for i in range(3))
MMPROJ = small_gguf(seed=9, architecture="clip")


def many():
    return Repository(
        large={"m-F16.gguf": F16, "m-Q4_K_M.gguf": Q4, "m-Q8_0.gguf": Q8, "mmproj-m-F16.gguf": MMPROJ},
        small={"README.md": b"# m", "config.json": b"{}"},
    )


@pytest.fixture
def hub(monkeypatch):
    with FakeHub({"user/many": many()}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


@pytest.fixture
def progress():
    return Recorder()


@pytest.fixture
def get(progress):
    def get(repo, name="", token="", offline=False, **how):
        return Hub(repo, progress, Access(token, offline, QUICK)).get_model(name, **how)

    return get


@pytest.mark.parametrize(
    ("repo", "content"),
    [("user/many", Q4), ("user/many:Q8_0", Q8), ("user/many:q8_0", Q8), ("user/many:F16", F16)],
)
def test_a_model_comes_with_its_projector(hub, get, cache, repo, content):
    found = get(repo)
    assert found.path.read_bytes() == content
    assert found.projector.read_bytes() == MMPROJ
    assert found.path.is_relative_to(cache / "hub" / "models--user--many" / "snapshots")


def test_a_file_by_its_name_and_no_projector(hub, get):
    found = get("user/many:Q4_K_M", "m-Q8_0.gguf", with_projector=False)
    assert found.path.read_bytes() == Q8
    assert found.projector is None
    assert {seen.path.rpartition("/")[2] for seen in hub.seen[1:]} == {"m-Q8_0.gguf"}


def test_it_is_the_cache_of_the_library(hub, get, cache):
    """Which finds what is there, without asking."""
    from huggingface_hub import scan_cache_dir, try_to_load_from_cache

    path = get("user/many").path
    assert try_to_load_from_cache("user/many", "m-Q4_K_M.gguf", cache_dir=cache / "hub") == str(path)
    assert path.resolve().name == hashlib.sha256(Q4).hexdigest()
    (repo,) = scan_cache_dir(cache / "hub").repos
    assert repo.repo_id == "user/many"
    assert repo.size_on_disk == len(Q4) + len(MMPROJ)


def test_only_what_is_needed_is_asked(hub, get, progress):
    get("user/many:Q8_0", with_projector=False)
    asked = [(seen.method, seen.path) for seen in hub.seen]
    resolve = f"/user/many/resolve/{'c' * 40}/m-Q8_0.gguf"
    assert asked == [
        ("GET", "/api/models/user/many?blobs=true"),
        ("GET", resolve),
        ("HEAD", resolve),
    ]
    assert all(seen.headers["user-agent"].startswith("corral/") for seen in hub.seen)
    assert progress.begun == [("downloading m-Q8_0.gguf", len(Q8), 0)]
    hub.seen.clear()
    get("user/many:Q8_0", with_projector=False)
    assert [(seen.method, seen.path) for seen in hub.seen] == asked[:1]


def test_small_files_come_through_the_library(hub, get):
    hub.repositories["user/tiny"] = Repository(small={"tiny-Q4_0.gguf": Q4})
    assert get("user/tiny").path.read_bytes() == Q4


def test_a_new_version_is_got_and_an_equal_file_is_not(hub, get):
    get("user/many")
    repository = hub.repositories["user/many"]
    repository.commit = "d" * 40
    hub.storage.seen.clear()
    path = get("user/many").path
    assert path.parent.name == "d" * 40
    assert not hub.storage.seen
    repository.commit, repository.large["m-Q4_K_M.gguf"] = "e" * 40, F16
    assert get("user/many").path.read_bytes() == F16


def test_a_model_in_parts(hub, get, tmp_path):
    parts = split_gguf(3)
    names = [f"Q4_K_M/m-Q4_K_M-{i:05}-of-00003.gguf" for i in range(1, 4)]
    hub.repositories["user/parts"] = Repository(large=dict(zip(names, parts, strict=True)))
    path = get("user/parts").path
    assert path.name == "m-Q4_K_M-00001-of-00003.gguf"
    assert len(check_model_file(path)) == 3
    assert get("user/parts", names[1]).path == path
    placed = get("user/parts", to=tmp_path / "mine" / "x.gguf").path
    assert placed == tmp_path / "mine" / "m-Q4_K_M-00001-of-00003.gguf"
    assert len(check_model_file(placed)) == 3
    del hub.repositories["user/parts"].large[names[2]]
    with pytest.raises(CorralError, match=r"'Q4_K_M/m-Q4_K_M-00003-of-00003\.gguf'"):
        get("user/parts")


def test_a_place_of_ones_own(hub, get, tmp_path, cache):
    to = tmp_path / "mine.gguf"
    found = get("user/many", to=to)
    assert found.path == to
    assert to.read_bytes() == Q4
    assert found.projector.read_bytes() == MMPROJ
    assert len(list((cache / "hub").rglob("*.gguf"))) == 1


def test_dropped_connections(hub, get, progress):
    hub.cuts = iter([1000, 0, 2000, 10])
    assert get("user/many", with_projector=False).path.read_bytes() == Q4
    assert progress.said.count("interrupted") == 4
    assert len(hub.storage.requests("GET")) == 5
    assert [seen.headers.get("range") for seen in hub.storage.seen].count(None) == 1


def test_what_one_run_has_left_the_next_one_uses(hub, get):
    hub.cuts = iter([1000] + [0] * 30)
    with pytest.raises(CorralError, match="are kept, run the same command"):
        get("user/many", with_projector=False)
    hub.cuts = iter(())
    hub.storage.seen.clear()
    assert get("user/many", with_projector=False).path.read_bytes() == Q4
    assert re.fullmatch(r"bytes=\d+-", hub.storage.requests("GET")[0].headers["range"])


def test_a_damaged_file_is_not_kept(hub, get, cache):
    hub.damage = True
    with pytest.raises(CorralError, match="checksum"):
        get("user/many")
    assert not [path for path in (cache / "hub").rglob("*") if path.is_file() and "lock" not in path.name]
    hub.damage = False
    assert get("user/many").path.read_bytes() == Q4


def test_the_token_goes_to_the_hub_alone(hub, get, progress):
    hub.repositories["user/mine"] = Repository(large={"m-Q4_K_M.gguf": Q4}, token="hf_t0ken")
    assert get("user/mine", token="hf_t0ken").path.read_bytes() == Q4
    assert all(seen.headers["authorization"] == "Bearer hf_t0ken" for seen in hub.seen)
    assert hub.storage.seen
    assert not any("authorization" in seen.headers for seen in hub.storage.seen)
    assert "t0ken" not in progress.said


def test_a_token_that_was_saved_by_the_library_is_used(hub, get, monkeypatch):
    hub.repositories["user/mine"] = Repository(large={"m-Q4_K_M.gguf": Q4}, token="hf_saved")
    monkeypatch.setenv("HF_TOKEN", "hf_saved")
    assert get("user/mine").path.read_bytes() == Q4


def test_no_token_no_header(hub, get):
    get("user/many")
    assert not any("authorization" in seen.headers for seen in hub.seen)


def test_a_gated_repository_says_what_to_do(hub, get):
    hub.repositories["user/gated"] = Repository(large={"m-Q4_K_M.gguf": Q4}, gated="yes")
    for token in ("", "no"):
        with pytest.raises(CorralError) as caught:
            get("user/gated", token=token)
        assert "gated: accept the terms on its page" in caught.value.message
        assert "--hf-token or HF_TOKEN" in caught.value.message
    assert get("user/gated", token="yes").path.read_bytes() == Q4


@pytest.mark.parametrize("token", ["", "any"])
def test_a_repository_that_is_not_there(hub, get, token):
    with pytest.raises(CorralError) as caught:
        get("user/none", token=token)
    assert caught.value.message == (
        "--hf-repo: cannot get user/none: 127.0.0.1 has no such repository, or it is private: "
        "check the name, or pass a token with --hf-token or HF_TOKEN"
    )


def test_a_busy_hub_is_asked_again(hub, get):
    hub.statuses = iter([503, 500, 429])
    assert get("user/many").path.read_bytes() == Q4
    hub.statuses = iter([500] * 9)
    with pytest.raises(CorralError, match=r"127\.0\.0\.1.*500"):
        Hub("user/none", Recorder(), Access(retry=QUICK)).get_model()


@pytest.mark.parametrize(
    "repo", ["", "many", "user/many/x", "user/many:", "../many/x", "a b/c", "/x", "x/", "u/m:q:r"]
)
def test_what_is_no_repository_is_refused(get, repo):
    with pytest.raises(CorralError, match="user/model:quant"):
        get(repo)


def test_what_a_repository_does_not_have(hub, get):
    with pytest.raises(CorralError, match=r"user/many.*Q2_K.*F16, Q4_K_M, Q8_0"):
        get("user/many:Q2_K")
    with pytest.raises(CorralError, match=r"--hf-file.*'m-Q8_1\.gguf'.*'m-Q8_0\.gguf'"):
        get("user/many", "m-Q8_1.gguf")
    with pytest.raises(CorralError, match=r"'zzz'.*m-F16\.gguf, m-Q4_K_M\.gguf"):
        get("user/many", "zzz")
    hub.repositories["user/text"] = Repository(small={"README.md": b"#"})
    with pytest.raises(CorralError, match="user/text"):
        get("user/text")
    with pytest.raises(CorralError, match="user/text"):
        get("user/text", "m.gguf")


@pytest.mark.parametrize(
    "name", ["../../m-Q4_K_M.gguf", "/m-Q4_K_M.gguf", "a//m-Q4_K_M.gguf", "..\\m-Q4_K_M.gguf"]
)
def test_files_that_would_lie_elsewhere_are_not_seen(hub, get, name):
    hub.repositories["user/bad"] = Repository(large={name: Q4})
    with pytest.raises(CorralError, match="no GGUF files"):
        get("user/bad")


def test_without_network_the_cache_is_used(monkeypatch, get, progress):
    with FakeHub({"user/many": many()}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        found = get("user/many")
    assert get("user/many") == found
    assert "cannot reach 127.0.0.1" in progress.said
    assert "Using the cached copy of user/many" in progress.said
    with pytest.raises(CorralError, match=r"Q8_0.*Q4_K_M"):
        get("user/many:Q8_0")
    with pytest.raises(CorralError) as caught:
        get("user/other")
    assert "--hf-repo: cannot reach 127.0.0.1 (" in caught.value.message
    assert (
        "if there is no network, use a local model with -m FILE, or a cached one with --offline"
        in caught.value.message
    )


def test_a_repository_that_is_gone_is_used_from_the_cache(hub, get, progress):
    found = get("user/many")
    hub.repositories.clear()
    assert get("user/many") == found
    assert "the cached copy of" in progress.said


def test_offline_asks_nobody(hub, get):
    with pytest.raises(CorralError) as caught:
        get("user/many", offline=True)
    assert caught.value.message == "--hf-repo: user/many is not cached, and --offline forbids downloading it"
    assert not hub.seen
    found = get("user/many")
    hub.seen.clear()
    assert get("user/many", offline=True) == found
    assert get("user/many:q4_k_m", offline=True, to=None) == found
    assert not hub.seen


def test_offline_wants_all_parts(hub, get):
    names = [f"m-{i:05}-of-00002.gguf" for i in (1, 2)]
    hub.repositories["user/parts"] = Repository(large=dict(zip(names, split_gguf(2), strict=True)))
    path = get("user/parts").path
    path.with_name(names[1]).unlink()
    with pytest.raises(CorralError, match=r"'m-00002-of-00002\.gguf'"):
        get("user/parts", offline=True)


def test_the_library_is_not_imported_before_it_is_needed():
    code = (
        "import corral.models.files.hub, corral.cli.model_source, corral.cli.model_cache, sys; "
        "print('huggingface_hub' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


CHILD = """
import sys
from corral.models.files.hub import Hub
from corral.models.files.transfer import Transfer
print(Hub(sys.argv[1], Transfer(None)).get_model().path)
"""


def test_no_telemetry_and_no_bars_but_ours(hub, tmp_path):
    """In a process of its own, where nothing of the library has been imported yet."""
    found = subprocess.run([sys.executable, "-c", CHILD, "user/many"], capture_output=True, text=True)
    assert found.stdout.endswith("m-Q4_K_M.gguf\n"), found.stderr
    assert {seen.path.partition("?")[0] for seen in hub.seen} == {
        "/api/models/user/many",
        f"/user/many/resolve/{'c' * 40}/m-Q4_K_M.gguf",
        f"/user/many/resolve/{'c' * 40}/mmproj-m-F16.gguf",
    }
    assert [line for line in found.stderr.splitlines() if not line.startswith("corral: downloading ")] == []
    assert not (tmp_path / "home").exists()


def test_two_processes_at_once(hub, cache):
    with contextlib.ExitStack() as stack:
        command = [sys.executable, "-c", CHILD, "user/many"]
        children = [
            stack.enter_context(
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            )
            for _ in range(2)
        ]
        outputs = {child.communicate()[0] for child in children}
    assert len(outputs) == 1
    assert len(hub.storage.requests("GET")) == 2


@pytest.mark.parametrize(
    ("paths", "quant", "chosen"),
    [
        (["a-Q2_K.gguf", "a-Q4_K_M.gguf"], "", "a-Q4_K_M.gguf"),
        (["a-Q2_K.gguf", "a-Q4_0.gguf", "a-Q8_0.gguf"], "", "a-Q8_0.gguf"),
        (["a-Q2_K.gguf", "a-Q4_K_S.gguf"], "", "a-Q4_K_S.gguf"),
        (["a-F16.gguf", "b-F16.gguf"], "", "a-F16.gguf"),
        (["a.gguf"], "", "a.gguf"),
        (
            ["mmproj-a-Q4_K_M.gguf", "imatrix-Q4_K_M.gguf", "mtp-a-Q4_K_M.gguf", "a-F32.gguf"],
            "",
            "a-F32.gguf",
        ),
        (["README.md"], "", None),
        ([], "", None),
        (["a-IQ4_XS.gguf", "a-Q4_XS.gguf"], "q4_xs", "a-Q4_XS.gguf"),
        (["a-UD-Q4_K_XL.gguf", "a-Q4_K_M.gguf"], "UD-Q4_K_XL", "a-UD-Q4_K_XL.gguf"),
        (["a-IQ4_NL.gguf"], "Q4_NL", "a-IQ4_NL.gguf"),
        (["a-Q4_K_M.gguf"], "Q4_K", None),
        (["a.Q4_K_M.gguf"], "q4_k_m", "a.Q4_K_M.gguf"),
        (["a-Q8_0.gguf"], ".", None),
        (
            ["x/a-Q4_K_M-00002-of-00002.gguf", "x/a-Q4_K_M-00001-of-00002.gguf"],
            "",
            "x/a-Q4_K_M-00001-of-00002.gguf",
        ),
    ],
)
def test_which_model_is_chosen(paths, quant, chosen):
    assert choose_model(paths, quant) == chosen


@pytest.mark.parametrize(
    ("paths", "model", "chosen"),
    [
        (["a-Q4_K_M.gguf"], "a-Q4_K_M.gguf", None),
        (["mmproj-F16.gguf", "mmproj-Q8_0.gguf"], "a-Q4_K_M.gguf", "mmproj-Q8_0.gguf"),
        (["mmproj-F16.gguf", "mmproj-F32.gguf"], "a-BF16.gguf", "mmproj-F16.gguf"),
        (["mmproj-F16.gguf", "x/mmproj-F32.gguf"], "x/a-Q4_0.gguf", "x/mmproj-F32.gguf"),
        (["mmproj-F16.gguf", "y/mmproj-Q4_0.gguf"], "x/a-Q4_0.gguf", "mmproj-F16.gguf"),
        (["mmproj.txt"], "a.gguf", None),
    ],
)
def test_which_projector_is_chosen(paths, model, chosen):
    assert choose_projector(paths, model) == chosen


@pytest.mark.parametrize(
    ("path", "quant"),
    [
        ("a-Q4_K_M.gguf", "Q4_K_M"),
        ("x/a.q8_0.gguf", "Q8_0"),
        ("a-F16-00001-of-00002.gguf", "F16"),
        ("a.gguf", ""),
    ],
)
def test_the_quantization_in_a_name(path, quant):
    assert quant_of(path) == quant


@pytest.mark.parametrize(
    ("url", "is_sent"),
    [
        ("https://hub.test/user/m/resolve/main/m.gguf", True),
        ("https://hub.test:444/m.gguf", False),
        ("http://hub.test/m.gguf", False),
        ("https://hub.test.evil/m.gguf", False),
        ("https://evil/hub.test/m.gguf", False),
        ("https://hub.test@evil/m.gguf", False),
        ("https://huggingface.co/m.gguf", False),
    ],
)
def test_which_hosts_may_have_the_token(monkeypatch, url, is_sent):
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.test/")
    assert token_for(url, "t") == ("t" if is_sent else "")
