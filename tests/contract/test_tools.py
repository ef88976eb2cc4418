"""`--tools`, as in llama-server."""

from __future__ import annotations

from corral.cli.configuration import configure
from tests.contract.inline import Server, post


async def test_tools_without_mcp_servers_are_an_empty_list_with_a_warning():
    configuration = configure(["-m", "fake.gguf", "--tools", "all"], {})
    (warning,) = [note for note in configuration.notes if note.startswith("--tools")]
    assert "built-in" in warning
    server = Server(settings=configuration.settings)
    assert (await server.http.get("/tools")).json() == []
    await post(server, "/tools", 404, json={"tool": "read_file", "params": {"path": "a"}})
    assert (await Server().http.get("/tools")).status_code == 403
