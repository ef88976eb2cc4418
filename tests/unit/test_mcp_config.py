"""The file of `--mcp-servers-config`: what is taken, and what is refused."""

from __future__ import annotations

import json

import pytest

from corral.cli.configuration import configure
from corral.cli.given import UsageError
from corral.core.client import Client
from corral.core.errors import CorralError
from corral.mcp.config import parse_config, read_config, read_servers


def parse(**servers):
    return parse_config(json.dumps({"mcpServers": servers}))


def test_both_kinds():
    process, web = parse(
        files={"command": "npx", "args": ["-y", "x"], "env": {"A": "1"}, "cwd": "/srv", "timeout_ms": 500},
        web={"url": "https://mcp.example.com/mcp", "headers": {"authorization": "Bearer x"}},
        off={"command": "false", "disabled": True},
    )
    assert process.command == ("npx", "-y", "x")
    assert (process.env, process.cwd, process.timeout_s) == ({"A": "1"}, "/srv", 0.5)
    assert (web.url, web.headers, web.command) == (
        "https://mcp.example.com/mcp",
        {"authorization": "Bearer x"},
        (),
    )


def test_keys():
    everyone, some = parse(a={"command": "x"}, b={"command": "x", "keys": ["alice"]})
    assert everyone.serves(Client("bob"))
    assert some.serves(Client("alice"))
    assert not some.serves(Client("bob"))
    assert not some.serves(Client())


@pytest.mark.parametrize("text", ["{", "[]", "null", "{}", '{"mcpServers": []}', '{"mcpServers": {"a": []}}'])
def test_what_is_no_table_of_servers(text):
    with pytest.raises(CorralError):
        parse_config(text)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"command": "x", "url": "http://x.test"},
        {"command": ""},
        {"command": "x\0y"},
        {"url": "file:///etc/passwd"},
        {"url": "http://"},
        {"command": "x", "args": "y"},
        {"command": "x", "args": [1]},
        {"command": "x", "env": {"a": 1}},
        {"command": "x", "timeout_ms": -1},
        {"command": "x", "timeout_ms": True},
        {"command": "x", "timeout_ms": 1e9},
        {"command": "x", "keys": "alice"},
    ],
)
def test_what_is_no_server(fields):
    with pytest.raises(CorralError):
        parse(a=fields)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ä", "x" * 65])
def test_what_is_no_name(name):
    with pytest.raises(CorralError):
        parse(**{name: {"command": "x"}})


def test_servers_of_the_option_replace_those_of_the_file(tmp_path):
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {"a": {"command": "x"}, "b": {"command": "y"}}}')
    found = read_servers(str(path), '{"mcpServers": {"b": {"command": "z"}}}')
    assert [(server.name, server.command) for server in found] == [("a", ("x",)), ("b", ("z",))]
    assert read_servers(str(path), "") == read_config(str(path))


def test_the_option_is_checked_at_the_start():
    assert configure(["--mcp-servers-json", '{"mcpServers": {}}'], {}).settings.server.mcp_servers_json
    with pytest.raises(UsageError, match="--mcp-servers-json"):
        configure(["--mcp-servers-json", "no JSON"], {})
