"""Several fronts, as far as that needs no Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from corral.cli.cluster_address import check_cluster
from corral.cli.fronts import settings_of, storage_of
from corral.cluster.marker import marked, unseen
from corral.cluster.message import FrontOrder, decode_order, encode
from corral.core.errors import CorralError
from corral.core.settings import EngineSettings, ServerSettings, Settings

CLUSTER = "127.0.0.1:6379"


def settings(**server: Any) -> Settings:
    return Settings(engine=EngineSettings(model="m"), server=ServerSettings(**server))


@pytest.mark.parametrize(
    ("server", "flags"),
    [
        ({"n_fronts": 2}, ("--fronts", "--ray")),
        ({"n_fronts": 2, "ray": CLUSTER, "rpc_workers": 1}, ("--fronts", "--rpc-workers")),
        ({"n_fronts": 2, "ray": CLUSTER, "host": "/run/corral.sock"}, ("--fronts", "--host")),
    ],
)
def test_what_does_not_fit_together_is_refused(server, flags):
    with pytest.raises(CorralError) as refused:
        check_cluster(settings(**server))
    assert all(flag in refused.value.message for flag in flags)


def test_fronts_fit_a_cluster():
    check_cluster(settings(n_fronts=2, ray=CLUSTER))


def test_a_front_is_a_server_of_its_own_with_shared_engines():
    common = settings(n_fronts=3, ray=CLUSTER, log_file="corral.log", api_keys=("secret",))
    order = FrontOrder(settings_of(common, "group", 2, 8080), "/work")
    server = decode_order(encode(order)).settings.server
    assert (server.n_fronts, server.front_group, server.front_index) == (1, "group", 2)
    assert (server.port, server.reuse_port, server.log_file) == (8080, True, "corral-2")
    same = {"api_keys", "ray", "host", "timeout_s"}
    assert all(getattr(server, name) == getattr(common.server, name) for name in same)
    assert msgspec.structs.replace(order.settings, server=common.server) == common


def test_storage_is_that_of_all_options(tmp_path):
    server = ServerSettings(
        chats_path=str(tmp_path), journal="journal", ledger=str(tmp_path / "sub" / "file")
    )
    assert set(storage_of(server)) == {str(tmp_path), str(Path("journal").absolute()), str(tmp_path / "sub")}
    assert not storage_of(ServerSettings())


def test_a_directory_that_another_machine_does_not_see_is_found(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    for directory in (one, other):
        directory.mkdir()
    with marked([str(one), str(other), str(one)]) as markers:
        assert len(markers) == 2
        assert not unseen(markers)
        for path in other.iterdir():
            path.unlink()
        assert unseen(markers) == [str(other)]
        assert unseen([str(tmp_path / "none" / "marker")]) == [str(tmp_path / "none")]
    assert not list(one.iterdir())


def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(CorralError, match="missing"), marked([str(tmp_path), str(tmp_path / "missing")]):
        pass
    assert not list(tmp_path.iterdir())
