"""Where media come from: which addresses are public, which files are read, which schemes there are."""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import socket
import threading
from ipaddress import ip_address
from typing import Any

import pytest

from corral.core.errors import CorralError
from corral.core.media_item import MediaKind
from corral.media import source as source_module
from corral.media.data_uri import parse_data_uri
from corral.media.decoded import MAX_BYTES, BadMedia
from corral.media.local import LocalMedia
from corral.media.remote import RemoteMedia, is_public
from corral.media.source import MAX_URL_CHARS, MediaSource

PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "93.184.216.34",
    "100.63.255.255",
    "100.128.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "192.0.1.0",
    "198.17.255.255",
    "198.20.0.0",
    "223.255.255.255",
    "2001:4860:4860::8888",
    "2606:4700:4700::1111",
    "2a00:1450:4001:830::200e",
    "2003::1",
    "64:ff9b::8.8.8.8",
]
NOT_PUBLIC = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "100.100.100.200",
    "100.127.255.255",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.0.1",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.8",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.0.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",
    "::127.0.0.1",
    "::8.8.8.8",
    "::ffff:0:127.0.0.1",
    "::ffff:8.8.8.8",
    "::ffff:10.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:7f00:1",
    "64:ff9b::",
    "64:ff9b::10.0.0.1",
    "64:ff9b::127.0.0.1",
    "64:ff9b::169.254.169.254",
    "64:ff9b::224.0.0.1",
    "64:ff9b:0:0:0:1:808:808",
    "64:ff9b:1::8.8.8.8",
    "64:ff9b:1:a00::1",
    "100::1",
    "100:0:0:1::1",
    "2001::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:2::1",
    "2001:10::1",
    "2001:20::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:808:808::1",
    "2002:a00:1::1",
    "3fff::1",
    "4000::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fdff::1",
    "fe80::1",
    "fe80::1%eth0",
    "febf::1",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
    "2606:4700:4700::1111%eth0",
    "2606:4700:4700::1111%1",
]


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses(address):
    assert is_public(ip_address(address))


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_addresses_that_are_not_public(address):
    assert not is_public(ip_address(address))


NUMBERS = [
    "127.0.0.1",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0x7f.1",
    "017700000001",
    "0X7F.0.1",
    "0",
    "0x0",
    "2852039166",
    "127。0。0。1",
    "[::1]",
    "[::]",
    "[0:0:0:0:0:0:0:1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[64:ff9b::7f00:1]",
    "[2002:7f00:1::]",
    "[::ffff:0a00:0001]:8080",
]


@pytest.fixture(scope="module")
def remote():
    return RemoteMedia()  # reads the certificates of the system


@pytest.mark.parametrize("host", NUMBERS)
async def test_an_address_is_known_however_it_is_spelled(remote, host):
    with pytest.raises(BadMedia, match="not public"):
        await remote.fetch(f"http://{host}/a.png")


INVALID = [
    "http:",
    "http:/a.png",
    "http:///a.png",
    "http://:80/",
    "http://a:0/",
    "http://a:00/",
    "http://a:65536/",
    "http://a:-1/",
    "http://a:b/",
    "http://a:80:90/",
    "http://a b/",
    "http://a\tb/",
    "http://a/\n",
    "http://a/\r\nHost: b",
    "http://a%00b/",
    "http://a%2eb/",
    "http://%31%32%37.0.0.1/",
    "http://a\\b/",
    "http://a..b/",
    "http://.a/",
    "http://*/",
    f"http://{'a' * 64}.com/",
    f"http://{'a.' * 127}com/",
    "http://0177.0.0.1/",
    "http://127.0.0.256/",
    "http://１２７.0.0.1/",
    "http://☃.net/",
    "http://[::1/",
    "http://[::1]x/",
    "http://[fe80::1%eth0]/",
    "http://[fe80::1%25eth0]/",
    "http://[2606:4700:4700::1111%25eth0]/",
    "http://[v1.x]/",
    "http://\ud800/",
    "http://a/\ud800",
]
WITH_CREDENTIALS = [
    "http://user@a/",
    "http://user:password@a/",
    "http://:password@a/",
    "http://:@a/",
    "https://a\\@b/",
    "https://good.com@127.0.0.1/",
]


@pytest.fixture
def no_resolver(monkeypatch):
    def resolve(*_, **__):
        raise AssertionError("a name was resolved")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


@pytest.mark.usefixtures("no_resolver")
class TestUrls:
    @pytest.mark.parametrize("url", INVALID)
    async def test_what_is_no_url_is_not_resolved(self, remote, url):
        with pytest.raises(BadMedia, match="URL"):
            await remote.fetch(url)

    @pytest.mark.parametrize("url", WITH_CREDENTIALS)
    async def test_credentials_are_refused(self, remote, url):
        with pytest.raises(BadMedia, match="password"):
            await remote.fetch(url)

    @pytest.mark.parametrize("url", ["ftp://a/", "file:///etc/passwd", "//a/", "a.png", "", "gopher://a/"])
    async def test_other_schemes_are_refused(self, remote, url):
        with pytest.raises(BadMedia, match=r"http.*https"):
            await remote.fetch(url)


@pytest.fixture
def directory(tmp_path):
    """The directory of media, and around it what nobody may read."""
    inside = tmp_path / "media"
    (inside / "sub" / "deep").mkdir(parents=True)
    (inside / "a.png").write_bytes(b"a picture")
    (inside / "sub" / "b c.png").write_bytes(b"another")
    (inside / "sub" / "deep" / "d").write_bytes(b"deep")
    (inside / "100%.png").write_bytes(b"percent")
    (inside / "q?x#y").write_bytes(b"odd")
    (inside / "Ä.png").write_bytes(b"umlaut")
    (inside / "empty").touch()
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "media-too").mkdir()
    (tmp_path / "media-too" / "a.png").write_bytes(b"secret")
    return inside


READABLE: dict[str, Any] = {
    "file:a.png": b"a picture",
    "file://a.png": b"a picture",
    "FILE://a.png": b"a picture",
    "file://./a.png": b"a picture",
    "file:sub//deep/./d": b"deep",
    "file://sub/b c.png": b"another",
    "file://sub/b%20c.png": b"another",
    "file://sub%2Fb%20c.png": b"another",
    "file://%61.png": b"a picture",
    "file://100%.png": b"percent",
    "file://100%25.png": b"percent",
    "file://q?x#y": b"odd",
    "file://Ä.png": b"umlaut",
    "file://%C3%84.png": b"umlaut",
    "file://empty": b"",
    "file://{directory}/a.png": b"a picture",
    "file:{directory}/sub/deep/d": b"deep",
    "file:////{directory}//a.png": b"a picture",
    "file:////sub//deep/d": b"deep",
    "file:///a.png": b"a picture",
}


@pytest.mark.parametrize("url", READABLE)
def test_files_are_read(directory, url):
    assert LocalMedia(str(directory)).read(url.format(directory=directory)) == READABLE[url]


MISSING = [
    "file:b.png",
    "file:sub/a.png",
    "file:a.png/b",
    "file:a.png%00",
    "file:a.png%00.jpg",
    "file:%00",
    "file:../secret",
    "file:../media/a.png",
    "file:sub/../a.png",
    "file:sub/..",
    "file:..",
    "file:%2e%2e/secret",
    "file:%2E./secret",
    "file:..%2fsecret",
    "file:%2e%2e%2fsecret",
    "file:sub%2f..%2f..%2fsecret",
    "file:%252e%252e/secret",
    "file:%252e%252e%252fsecret",
    "file:..\\secret",
    "file:///secret",
    "file:///etc/passwd",
    "file:////etc/passwd",
    "file:%2fetc%2fpasswd",
    "file://localhost/etc/passwd",
    "file:///proc/self/environ",
    "file:///dev/zero",
    "file://{outside}/secret",
    "file://{outside}/nothing",
    "file://{outside}/media-too/a.png",
    "file://{outside}/media/../secret",
    "file://{outside}/media/%2e%2e/secret",
    "file://{outside}/media%2f..%2fsecret",
    f"file:{'a' * 256}",
    "file:\ud800",
]


@pytest.mark.parametrize("url", MISSING)
def test_what_is_not_inside_is_not_there(directory, url):
    with pytest.raises(BadMedia) as caught:
        LocalMedia(str(directory)).read(url.format(outside=directory.parent))
    assert caught.value.message == "file not found under --media-path"


LINKS: dict[str, Any] = {
    "out": "../secret",
    "absolute": "/etc/passwd",
    "inside": "a.png",
    "nowhere": "nothing",
    "loop": "loop",
    "zero": "/dev/zero",
}


@pytest.mark.parametrize("name", LINKS)
def test_links_are_not_followed(directory, name):
    (directory / name).symlink_to(LINKS[name])
    with pytest.raises(BadMedia, match="regular file"):
        LocalMedia(str(directory)).read(f"file:{name}")


@pytest.mark.parametrize(("target", "file"), [("..", "secret"), ("/etc", "passwd"), ("sub", "b c.png")])
def test_links_on_the_way_are_not_followed(directory, target, file):
    (directory / "link").symlink_to(target)
    with pytest.raises(BadMedia, match="--media-path"):
        LocalMedia(str(directory)).read(f"file:link/{file}")


def test_the_directory_itself_may_be_a_link(directory, tmp_path):
    (tmp_path / "link").symlink_to(directory)
    local = LocalMedia(str(tmp_path / "link"))
    for url in ("file:a.png", f"file://{tmp_path}/link/a.png", f"file://{directory}/a.png"):
        assert local.read(url) == b"a picture"


def test_the_directory_may_be_relative_and_stays_the_same(directory, monkeypatch):
    monkeypatch.chdir(directory.parent)
    local = LocalMedia("media")
    monkeypatch.chdir("/")
    assert local.read("file:a.png") == b"a picture"
    assert local.read(f"file://{directory}/a.png") == b"a picture"


def test_the_root_can_be_the_directory(directory):
    assert LocalMedia("/").read(f"file://{directory}/a.png") == b"a picture"


def test_only_regular_files_are_read(directory):
    os.mkfifo(directory / "fifo")
    listener = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(directory)  # the path of a socket must be short
    try:
        listener.bind("socket")
    finally:
        os.chdir(here)
        listener.close()
    local = LocalMedia(str(directory))
    for url in (
        "file:fifo",
        "file:socket",
        "file:sub",
        "file:sub/",
        "file:",
        "file://",
        "file:.",
        f"file://{directory}",
    ):
        with pytest.raises(BadMedia, match="regular file"):
            local.read(url)


def test_files_up_to_the_cap_are_read(directory):
    local = LocalMedia(str(directory))
    with open(directory / "large", "wb") as file:
        file.truncate(MAX_BYTES)
        assert len(local.read("file:large")) == MAX_BYTES
        file.truncate(MAX_BYTES + 1)
        with pytest.raises(BadMedia, match="32 MiB"):
            local.read("file:large")


def test_a_file_that_grows_is_refused_too(directory, monkeypatch):
    with open(directory / "large", "wb") as file:
        file.truncate(MAX_BYTES + 1)
    small = os.stat(directory / "a.png")
    monkeypatch.setattr(os, "fstat", lambda _: small)
    with pytest.raises(BadMedia, match="32 MiB"):
        LocalMedia(str(directory)).read("file:large")


@pytest.mark.parametrize(
    ("code", "status", "message"),
    [
        (errno.EACCES, 400, "the server has no permission to read that file"),
        (errno.EIO, 500, "cannot read a file under --media-path: Input/output error"),
    ],
)
def test_what_the_system_says_comes_without_paths(directory, monkeypatch, code, status, message):
    def fail(*_, **__):
        raise OSError(code, os.strerror(code), str(directory))

    local = LocalMedia(str(directory))
    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(CorralError) as caught:
        local.read("file:a.png")
    assert (caught.value.status, caught.value.message) == (status, message)


def test_no_descriptor_stays_open(directory):
    local = LocalMedia(str(directory))
    (directory / "link").symlink_to("a.png")
    before = os.listdir("/proc/self/fd")
    for url in (
        "file:a.png",
        "file:sub/deep/d",
        "file:sub",
        "file:",
        "file:link",
        "file:sub/none",
        "file:none/a",
    ):
        with contextlib.suppress(BadMedia):
            local.read(url)
    assert os.listdir("/proc/self/fd") == before


def test_a_file_is_no_directory(directory):
    for path in ("a.png", "nothing"):
        with pytest.raises(CorralError, match=r"Not a directory|No such file"):
            LocalMedia(str(directory / path))


class FakePlace:
    """Remembers what it was asked for, and in which thread."""

    def __init__(self) -> None:
        self.urls = []
        self.threads = []

    async def fetch(self, url):
        return self.read(url)

    def read(self, url):
        self.urls.append(url)
        self.threads.append(threading.current_thread())
        return b"bytes"


def source_of(remote: Any, local: Any) -> MediaSource:
    return MediaSource(remote, local)


@pytest.mark.parametrize("kind", MediaKind)
async def test_each_scheme_has_its_place(kind):
    remote, local = FakePlace(), FakePlace()
    source = source_of(remote, local)
    for url in ("http://a/b", "https://a/b", "HTTPS://a/b"):
        assert await source.load(url, kind) == b"bytes"
        assert remote.urls.pop() == url
    for url in ("file:a", "file:///a", "File://a"):
        assert await source.load(url, kind) == b"bytes"
        assert local.urls.pop() == url
    assert threading.main_thread() not in local.threads


@pytest.mark.parametrize("url", ["http://a/b", "https://a/b"])
async def test_urls_need_a_flag(url):
    with pytest.raises(BadMedia, match="--allow-remote-media"):
        await source_of(None, FakePlace()).load(url, MediaKind.IMAGE)


async def test_files_need_a_flag():
    with pytest.raises(BadMedia, match="--media-path DIR"):
        await source_of(FakePlace(), None).load("file:///a", MediaKind.IMAGE)


@pytest.mark.parametrize(
    "url", ["", "a.png", "/a.png", "ftp://a/b", "blob:x", " http://a", "http", "data", "file", ":"]
)
async def test_there_are_no_other_schemes(url):
    with pytest.raises(BadMedia, match=r"data:.*http:.*https:.*file:"):
        await source_of(FakePlace(), FakePlace()).load(url, MediaKind.IMAGE)


@pytest.mark.parametrize("scheme", ["http", "https", "file"])
async def test_a_url_that_names_a_place_is_short(scheme):
    place = FakePlace()
    url = f"{scheme}://a/".ljust(MAX_URL_CHARS, "b")
    await source_of(place, place).load(url, MediaKind.IMAGE)
    with pytest.raises(BadMedia, match="8192"):
        await source_of(place, place).load(url + "b", MediaKind.IMAGE)
    assert place.urls == [url]


@pytest.mark.parametrize("n_bytes", [10, 3 << 20])
async def test_data_is_decoded_here_and_if_it_is_long_in_a_thread(monkeypatch, n_bytes):
    threads = []

    def parse(uri, kind):
        threads.append(threading.current_thread())
        return parse_data_uri(uri, kind)

    monkeypatch.setattr(source_module, "parse_data_uri", parse)
    data = bytes(range(10)) * (n_bytes // 10)
    uri = "data:image/png;base64," + base64.b64encode(data).decode()
    assert await MediaSource(None, None).load(uri, MediaKind.IMAGE) == data
    assert (threads == [threading.main_thread()]) == (n_bytes == 10)


async def test_the_real_places_together(remote, directory):
    source = MediaSource(remote, LocalMedia(str(directory)))
    assert await source.load("file:a.png", MediaKind.IMAGE) == b"a picture"
    with pytest.raises(BadMedia, match="not public"):
        await source.load("http://127.0.0.1:1/", MediaKind.IMAGE)
