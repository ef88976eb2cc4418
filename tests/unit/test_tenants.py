"""Slots, files and caches of several tenants in one engine, and states that were computed elsewhere."""

from __future__ import annotations

import contextlib
import os
import struct

import msgspec
import numpy as np
import pytest
import xxhash

from corral.core.errors import InvalidRequest
from corral.core.result import Admitted, Tier
from corral.core.task import Busy, Stop, Task, Verb
from corral.engine.grouping import Grouping
from corral.engine.saved import SavedState
from corral.engine.ses1 import Ses1, seal_tenant
from tests.unit.action_harness import LONG, OTHER, ActionHarness, content, refused
from tests.unit.engine_harness import alone, task
from tests.unit.fake import FakeBackend
from tests.unit.ses1_files import TOKENS, Port, file_of, sealed_again

ALICE, BOB = b"alice" * 3, b"bob" * 5
SECRET = b"s" * 32
SIGNED = {"secret": SECRET}


def of(tenant: bytes, one: Task) -> Task:
    return msgspec.structs.replace(one, tenant=tenant)


@pytest.fixture
def file():
    fd = os.memfd_create("state")
    yield fd
    os.close(fd)


# --- slots


@pytest.mark.parametrize("is_source", [False, True])
@pytest.mark.parametrize("verb", Verb)
def test_a_slot_of_another_tenant_is_refused_and_stays_as_it_is(file, verb, is_source):
    lab = ActionHarness()
    lab.run(of(ALICE, task(0, LONG, id_slot=0)), of(BOB, task(1, OTHER, id_slot=1)))
    before = [content(lab, slot) for slot in range(2)]
    if verb is not Verb.FORK:
        fields = {"slot": 0}
    else:
        fields = {"slot": 1, "source": 0} if is_source else {"slot": 0, "source": 1}
    with refused(403, "slot 0 holds the state of another API key"):
        lab.do(verb, fd=file, tenant=BOB, n_discard=1, **fields)
    assert [content(lab, slot) for slot in range(2)] == before
    assert os.fstat(file).st_size == 0
    if verb is Verb.RESTORE:
        lab.do(Verb.SAVE, 1, file, tenant=BOB)
    lab.do(verb, fd=file, tenant=BOB, n_discard=1, sees_all=True, **fields)


@pytest.mark.parametrize("busy", Busy)
def test_a_busy_slot_of_another_tenant_does_not_tell_when_it_is_free(busy):
    lab = ActionHarness()
    lab.engine.handle(of(ALICE, task(0, LONG, id_slot=0, n_predict=30)))
    lab.engine.step()
    action = lab.order(Verb.TOKENS, 0, tenant=BOB, busy=busy)
    lab.engine.handle(action)
    with refused(403, "slot 0"):
        lab.answer(action)
    lab.run()
    assert lab.tokens(0) == alone(task(0, LONG, n_predict=30))


def test_a_slot_that_another_tenant_takes_meanwhile_is_refused():
    lab = ActionHarness(FakeBackend(n_seq=1))
    lab.engine.handle(of(BOB, task(0, OTHER, n_predict=5)))
    lab.engine.step()
    lab.engine.handle(of(ALICE, task(1, LONG, n_predict=5)))
    action = lab.order(Verb.TOKENS, 0, tenant=BOB)
    lab.run(action)
    with refused(403, "slot 0"):
        lab.answer(action)


def test_an_empty_slot_and_that_of_the_server_belong_to_nobody(file):
    lab = ActionHarness()
    lab.run(task(0, LONG, id_slot=0))
    lab.do(Verb.SAVE, 1, file, tenant=BOB)
    lab.do(Verb.RESTORE, 0, file, tenant=BOB)
    assert content(lab, 0) == []


@pytest.mark.parametrize("sees_all", [False, True])
def test_erasing_forgets_the_copies_of_ones_own(tmp_path, sees_all):
    lab = ActionHarness(FakeBackend(n_seq=2), cache_disk=str(tmp_path))
    for id, prompt in enumerate((LONG, OTHER)):
        lab.run(of(ALICE, task(id, prompt, n_predict=1, id_slot=0)))
    lab.run(of(BOB, task(2, LONG, n_predict=1, id_slot=1)))
    assert lab.do(Verb.ERASE, 1, tenant=BOB, sees_all=sees_all).n_tokens == 100
    assert lab.cached(of(ALICE, task(3, LONG, n_predict=1, id_slot=0))) == (0 if sees_all else 92)


def test_states_on_disk_of_a_server_without_keys_are_not_for_every_key(tmp_path):
    lab = ActionHarness(FakeBackend(n_seq=1), cache_disk=str(tmp_path))
    lab.run(task(0, LONG, n_predict=1))
    lab.engine.handle(Stop())
    again = ActionHarness(FakeBackend(n_seq=1), cache_disk=str(tmp_path))
    report = again.report(of(BOB, task(0, LONG)))
    assert (report.tier, report.n_common) == (Tier.NONE, 0)
    with_none = ActionHarness(FakeBackend(n_seq=1), cache_disk=str(tmp_path))
    assert with_none.report(task(0, LONG)).tier is Tier.DISK


def test_tokens_of_the_server_are_not_told():
    lab = ActionHarness()
    lab.run(task(0, LONG, id_slot=0))
    report = lab.report(of(BOB, task(1, [*LONG[:50], *OTHER[:50]], id_slot=1)))
    assert (report.n_common, report.n_cached, report.cached_token) == (50, 48, None)


# --- saved states


def saved(file: int, tenant: bytes, **options: object) -> bytes:
    """A state that another engine has saved, whose tokens are LONG and some more."""
    lab = ActionHarness()
    lab.run(of(tenant, task(0, LONG, id_slot=0)))
    lab.do(Verb.SAVE, 0, file, tenant=tenant, **SIGNED, **options)
    return os.pread(file, 1 << 20, 0)


@pytest.mark.parametrize("sees_all", [False, True])
def test_a_saved_state_belongs_to_its_tenant(file, sees_all):
    data = saved(file, ALICE)
    assert ALICE not in data
    lab = ActionHarness()
    lab.run(of(BOB, task(0, OTHER, id_slot=0)))
    before = content(lab)
    if sees_all:
        lab.do(Verb.RESTORE, 0, file, is_ours=True, tenant=BOB, sees_all=True, **SIGNED)
        assert content(lab)[:100] == LONG
        return
    with refused(403, "saved for another API key"):
        lab.do(Verb.RESTORE, 0, file, is_ours=True, tenant=BOB, **SIGNED)
    assert content(lab) == before
    lab.do(Verb.RESTORE, 1, file, is_ours=True, tenant=ALICE, **SIGNED)
    assert lab.report(of(ALICE, task(1, [*LONG, 3], id_slot=3))).tier is Tier.LIVE, "it may be shared"


def unsigned(data: bytes) -> bytes:
    """The same as version 0.12 wrote it."""
    body, (fingerprint, shifted_from, version) = data[:-80], struct.unpack("<16sII", data[-44:-20])
    sealed = body + struct.pack("<16sII", fingerprint, shifted_from, version - 16)
    return sealed + xxhash.xxh3_128_digest(sealed) + b"/SES"


SOURCES = {
    "unsigned": lambda data: (unsigned(data), SECRET),
    "another secret": lambda data: (data, b"t" * 32),
    "stripped": lambda data: (data[:-80], SECRET),
}


def imported(file: int, source: str, **options) -> ActionHarness:
    """An engine whose slot 1 has the tokens LONG, from elsewhere."""
    data, secret = SOURCES[source](saved(file, b""))
    if source == "stripped":
        data = data.replace(b"CRL1", b"\0\0\0\0", 1)
    os.ftruncate(file, 0)
    os.pwrite(file, data, 0)
    lab = ActionHarness(**options)
    lab.do(Verb.RESTORE, 1, file, secret=secret, tenant=BOB)
    assert content(lab, 1)[:100] == LONG
    return lab


@pytest.mark.parametrize("source", SOURCES)
def test_an_imported_state_serves_those_who_name_its_slot_and_nobody_else(file, source):
    lab = imported(file, source)
    own = of(BOB, task(0, [*LONG[:60], *[5] * 20], id_slot=1))
    assert lab.cached(own) == 60
    again = of(BOB, task(1, [*LONG[:60], *[5] * 30], id_slot=1))
    assert lab.cached(again) == 80, "what follows was evaluated upon it"
    for id, tenant in enumerate((BOB, ALICE, b""), 2):
        assert lab.cached(of(tenant, task(id, own.prompt, id_slot=id % 4))) == 0
        lab.do(Verb.ERASE, id % 4, sees_all=True)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("similarity", [0.0, 0.1])
def test_an_imported_state_is_no_prefix_of_a_request_that_names_no_slot(file, source, similarity):
    lab = imported(file, source, slot_prompt_similarity=similarity)
    for id in range(6):  # each slot has its turn
        lab.run(of(BOB, task(id, [*LONG[:80], 40 + id], n_predict=1)))
        (admitted,) = lab.of(id, Admitted)
        assert (admitted.n_cached > 0) == (id > 0), "what another one of them has evaluated itself"
        assert lab.tokens(id) == alone(task(id, [*LONG[:80], 40 + id], n_predict=1))


@pytest.mark.parametrize("source", SOURCES)
def test_an_imported_state_is_kept_nowhere(file, tmp_path, source):
    lab = imported(file, source, backend=FakeBackend(n_seq=2), cache_disk=str(tmp_path))
    lab.run(of(BOB, task(0, OTHER, id_slot=1, n_predict=1)))
    assert lab.report(of(BOB, task(1, LONG, id_slot=1, n_predict=1))).tier is Tier.NONE
    lab = imported(file, source, backend=FakeBackend(n_seq=2), cache_disk=str(tmp_path))
    lab.engine.handle(Stop())
    assert not [*tmp_path.glob("*.ses1")]


@pytest.mark.parametrize("source", SOURCES)
def test_an_imported_state_stays_one_in_forks_and_files(file, source):
    lab = imported(file, source)
    lab.do(Verb.FORK, 2, source=1, tenant=BOB)
    os.ftruncate(file, 0)
    lab.do(Verb.SAVE, 2, file, tenant=BOB, **SIGNED)
    lab.do(Verb.RESTORE, 3, file, tenant=BOB, is_ours=True, **SIGNED)
    assert lab.cached(of(BOB, task(0, LONG, id_slot=0, n_predict=1))) == 0
    lab.do(Verb.ERASE, 0, tenant=BOB)
    for slot in (2, 3):
        assert lab.cached(of(BOB, task(slot, LONG, id_slot=slot, n_predict=1))) == 92


def test_a_system_prompt_in_an_imported_state_serves_nobody_else(file):
    """All tenants share the server's system prompt, but not one that a client brought."""
    lab = imported(file, "unsigned")
    assert lab.cached(of(BOB, task(0, LONG, id_slot=1, n_system=80))) == 92
    for id, tenant in ((1, ALICE), (2, BOB)):
        assert lab.cached(of(tenant, task(id, LONG, id_slot=3, n_system=80, cache_prompt=id > 0))) == 0
        lab.do(Verb.ERASE, 3, tenant=tenant)
    assert lab.cached(of(ALICE, task(3, LONG, id_slot=1, n_system=80))) == 0, "its new owner did not bring it"


@pytest.mark.parametrize("tenant", [b"", ALICE])
def test_no_byte_of_a_signed_state_can_be_changed(tenant):
    """Not even with a checksum that fits: then it is refused, or an imported one."""
    port, ses1 = Port(), Ses1(Port(), Grouping())
    state = SavedState(np.array(TOKENS, np.int32), port.state(TOKENS), tenant=seal_tenant(tenant, SECRET))
    with file_of() as fd:
        n_bytes = ses1.write(fd, state, SECRET)
        data = os.pread(fd, n_bytes, 0)
        again = ses1.read(fd, False, SECRET)
        assert (again.is_imported, again.tenant) == (False, state.tenant)
    n_accepted = 0
    for i in range(n_bytes - 20):
        changed = sealed_again(data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :])
        with contextlib.suppress(InvalidRequest), file_of(changed) as fd:
            assert ses1.read(fd, False, SECRET).is_imported
            n_accepted += 1
    assert n_accepted > 50, "values, the tenant and the signature have no form"


def test_a_state_that_was_saved_for_all_is_imported_where_tenants_are_separate(file):
    saved(file, ALICE, sees_all=True)
    lab = ActionHarness()
    lab.do(Verb.RESTORE, 1, file, tenant=BOB, is_ours=True, **SIGNED)
    assert lab.slots[1].reuse_key.is_imported
    report = lab.report(of(BOB, task(0, [*LONG[:50], 9, 9, 9], id_slot=1)))
    assert (report.n_common, report.cached_token) == (50, None), "nobody knows whose tokens they are"
    lab.do(Verb.RESTORE, 2, file, tenant=BOB, is_ours=True, sees_all=True, **SIGNED)
    assert not lab.slots[2].reuse_key.is_imported


class GgsqPort(Port):
    def unpack_body(self, body, positions) -> bytes:
        return body.tobytes()


@pytest.mark.parametrize("secret", [b"", SECRET])
def test_a_slot_file_of_llama_cpp_is_an_imported_state(secret):
    port = GgsqPort()
    saved = SavedState(np.array(TOKENS, np.int32), port.state(TOKENS))
    with file_of() as fd:
        Ses1(port, Grouping()).write_ggsq(fd, saved)
        again = Ses1(port, Grouping()).read(fd, is_ours=True, secret=secret)
    assert (again.tokens.tolist(), again.is_imported) == (TOKENS, bool(secret))
