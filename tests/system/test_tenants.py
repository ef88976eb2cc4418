"""Clients that share a server: what one may learn of another from what is evaluated, and who gets what."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import httpx
import pytest

from tests.system.process import START_S, CorralProcess
from tests.tools.wait import wait_until_async

ALICE, BOB, CAROL = "sk-alice", "sk-bob", "sk-carol"
N_ROUNDS = 3


@pytest.fixture
def keys(tmp_path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"alice=3:{ALICE}\nbob:{BOB}\ncarol:{CAROL}\n")
    return path


def letter(i: int) -> str:
    """A text of some hundred tokens that nobody would guess."""
    said = (f"the witness number {i * 1000 + j} said that it rained," for j in range(12))
    return f"Case {i}: " + " ".join(said)


def ask(server: CorralProcess, key: str, prompt: str, **body: object) -> dict:
    response = httpx.post(
        server.url + "/completion",
        json={"prompt": prompt, "n_predict": 1, "temperature": 0, **body},
        headers={"Authorization": f"Bearer {key}"},
        timeout=START_S,
    )
    assert response.status_code == 200, response.text
    return response.json()["timings"]


def guesses(server: CorralProcess) -> tuple[list[dict], list[dict], list[dict]]:
    """What Bob sees of texts that Alice has had, of texts that nobody has had, and what Alice sees again."""
    known, unknown, own = [], [], []
    for i in range(1, 1 + N_ROUNDS):
        ask(server, ALICE, letter(i))
        known.append(ask(server, BOB, letter(i)))
        unknown.append(ask(server, BOB, letter(N_ROUNDS + i)))
        own.append(ask(server, ALICE, letter(i)))
    return known, unknown, own


@pytest.mark.parametrize("tier", ["live", "ram", "disk"])
def test_a_second_tenant_learns_nothing_from_the_prompt_cache(keys, tier, tmp_path, tiny):
    options: list[object] = ["-m", tiny, "-c", 8192, "-np", 8, "--api-key-file", keys]
    if tier != "live":
        options = [
            "-m",
            tiny,
            "-c",
            1024,
            "-np",
            1,
            "--api-key-file",
            keys,
        ]  # each prompt drives the last one out
    if tier == "disk":
        options += ["--cache-ram", 0, "--cache-disk", tmp_path / "cache"]
    with CorralProcess(*options) as server:
        known, unknown, own = guesses(server)
    assert [timing["cache_n"] for timing in known] == [0] * N_ROUNDS
    assert {timing["prompt_n"] for timing in known} == {timing["prompt_n"] for timing in unknown}
    assert all(timing["cache_n"] > 100 for timing in own), "to Alice herself it is of use"


def test_where_sharing_is_wanted_it_saves_the_work(keys, tiny):
    with CorralProcess("-m", tiny, "-c", 8192, "-np", 8, "--api-key-file", keys, "--cache-share") as server:
        known, unknown, _ = guesses(server)
    assert all(timing["cache_n"] > 100 for timing in known)
    assert not any(timing["cache_n"] > 100 for timing in unknown)


def test_what_the_server_itself_says_to_all_is_evaluated_once(keys, tmp_path, tiny):
    (tmp_path / "system").write_text(letter(1))
    options = ["-m", tiny, "-c", 8192, "-np", 4, "--api-key-file", keys, "-spf", tmp_path / "system"]
    with CorralProcess(*options) as server:
        for key in (ALICE, BOB):
            assert ask(server, key, " And then?")["cache_n"] > 100


def tokens_of(server: CorralProcess, text: str) -> list[int]:
    answer = httpx.post(server.url + "/tokenize", json={"content": text}, headers={"x-api-key": BOB})
    return answer.json()["tokens"]


def act(server: CorralProcess, key: str, path: str, **body: object) -> int:
    answer = httpx.post(server.url + path, json=body, headers={"x-api-key": key}, timeout=START_S)
    return answer.status_code


def difference(server: CorralProcess, prompt: list[int], slot: int) -> tuple[int, int | None]:
    """What Bob is told about a prompt: where it leaves what is cached, and how that continues."""
    body = {"prompt": prompt, "n_predict": 0, "id_slot": slot, "cache_report": True}
    answer = httpx.post(server.url + "/completion", json=body, headers={"x-api-key": BOB}, timeout=START_S)
    report = answer.json()["cache_report"]
    return report["n_common"], (report["first_difference"] or {}).get("cached_token")


@pytest.mark.parametrize("engines", [1, 2])
def test_no_token_of_a_conversation_comes_out_of_slots_and_their_files(keys, tmp_path, tiny, engines):
    """Once Bob saved Alice's slot, restored the file, and read a token with every wrong guess."""
    (tmp_path / "slots").mkdir()
    options = ["-m", tiny, "-c", 2048, "-np", 2, "--api-key-file", keys, "--engines", engines]
    with CorralProcess(*options, "--slot-save-path", tmp_path / "slots") as server:
        ask(server, ALICE, letter(1), id_slot=0)
        assert act(server, ALICE, "/slots/0?action=save", filename="hers") == 200
        hers, mine, found = tokens_of(server, letter(1)), 2 * engines - 1, []
        ask(server, BOB, "nothing that begins like hers " * 9, id_slot=mine)
        assert act(server, BOB, f"/slots/{mine}?action=save", filename="mine") == 200
        for _ in range(20):
            assert act(server, BOB, "/slots/0?action=save", filename="loot") == 403
            assert act(server, BOB, "/slots/0?action=erase") == 403
            assert act(server, BOB, "/slots/0?action=restore", filename="mine") == 403
            for name in ("loot", "hers"):
                assert act(server, BOB, f"/slots/{mine}?action=restore", filename=name) == 400
            n_common, token = difference(server, [*found, *[hers[len(found)] + 1] * 9], mine)
            if n_common < len(found) or token != hers[len(found)]:
                break
            found.append(token)
        assert not found, "a token of hers"
        assert ask(server, ALICE, letter(1), id_slot=0)["cache_n"] > 100


def test_a_key_restores_its_own_after_a_restart_and_shares_it_with_itself(keys, tmp_path, tiny):
    saves = tmp_path / "slots"
    saves.mkdir()
    options = ["-m", tiny, "-c", 2048, "-np", 2, "--api-key-file", keys, "--slot-save-path", saves]
    with CorralProcess(*options) as server:
        ask(server, ALICE, letter(1), id_slot=0)
        assert act(server, ALICE, "/slots/0?action=save", filename="hers") == 200
        ask(server, BOB, letter(2), id_slot=1)
        assert act(server, BOB, "/slots/1?action=save", filename="hers") == 200
    assert not (saves / "hers").exists()
    (of_alice,), (of_bob,) = (list(saves.glob(f".keys/key-{name}-*/hers")) for name in ("alice", "bob"))
    of_alice.with_name("from_bob").write_bytes(of_bob.read_bytes())
    with CorralProcess(*options) as server:
        assert act(server, ALICE, "/slots/0?action=restore", filename="from_bob") == 403
        assert act(server, ALICE, "/slots/0?action=restore", filename="hers") == 200
        assert ask(server, ALICE, letter(1), id_slot=1)["cache_n"] > 100, "in another slot"
    (saves / ".secret").unlink()
    with CorralProcess(*options) as server:
        assert act(server, ALICE, "/slots/0?action=restore", filename="hers") == 403, "nobody can tell whose"


def counts(server: CorralProcess) -> tuple[int, int]:
    """Requests that have a slot, and that wait for one."""
    headers = {"x-api-key": CAROL}
    text = httpx.get(server.url + "/metrics", headers=headers, timeout=START_S, verify=False).text
    running, waiting = (
        re.search(rf"^llamacpp:requests_{name} (\d+)", text, re.M) for name in ("processing", "deferred")
    )
    return int(running[1]), int(waiting[1])


async def test_slots_are_shared_by_weight_and_not_by_who_asks_more_often(keys, tiny):
    """Bob floods the server, Alice has a weight of three: while both wait, she gets more."""
    done: list[str] = []

    async def work(http: httpx.AsyncClient, name: str, key: str, i: int) -> None:
        body = {"prompt": f"{name} {i}", "n_predict": 80, "ignore_eos": True, "cache_prompt": False}
        answer = await http.post("/completion", json=body, headers={"x-api-key": key})
        assert answer.status_code == 200, answer.text
        done.append(name)

    async def occupy(http: httpx.AsyncClient) -> None:
        body = {"prompt": "carol", "n_predict": -1, "ignore_eos": True}
        await http.post("/completion", json=body, headers={"x-api-key": CAROL})

    options = ("-c", 1024, "-np", 2, "--context-shift", "--metrics", "--api-key-file", keys)
    with CorralProcess("-m", tiny, *options) as server:
        async with httpx.AsyncClient(
            base_url=server.url, timeout=START_S, limits=httpx.Limits(max_connections=None)
        ) as http:
            carols = [asyncio.create_task(occupy(http)) for _ in range(3)]
            await wait_until_async(lambda: counts(server) == (2, 1))
            bobs = [asyncio.create_task(work(http, "bob", BOB, i)) for i in range(24)]
            alices = [asyncio.create_task(work(http, "alice", ALICE, i)) for i in range(12)]
            await wait_until_async(lambda: counts(server) == (2, 37))
            for carol in carols:
                carol.cancel()
            await asyncio.gather(*alices)
            n_bob = done.count("bob")
            await asyncio.gather(*bobs)
    # 12 of hers take the time of 4 of his, more or less on a busy machine; with equal weights it would be 12.
    assert n_bob < 11
    assert done.count("bob") == 24
