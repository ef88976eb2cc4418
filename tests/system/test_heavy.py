"""Requests that ask for much, on a real server: nobody else waits for them, and their memory comes back."""

from __future__ import annotations

import statistics

import pytest

from tests.system.heavy import ROWS, measure, measure_slow
from tests.system.process import CorralProcess
from tests.tools.tiny_models import llama_bpe

MAX_PAUSE_S = 0.05  # of the loop's own computing, in most repeats: a stolen core looks like computing too
MAX_KEPT_MIB = 30
N_REPEATS = 10
N_SLOW, N_SLOW_REPEATS = 8, 3
MAX_BUFFERED_MIB = 100  # of eight answers, each of which is 7 MiB and made of a million tokens

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    model = llama_bpe(tmp_path_factory.mktemp("models"))
    with CorralProcess("-m", model, "-c", 4096, "-np", 4, "--metrics", "--send-timeout", 2) as server:
        server.complete(prompt="a", n_predict=1)  # what is imported and allocated once
        yield server


@pytest.mark.parametrize("name", ROWS)
def test_the_loop_goes_on_and_memory_comes_back(server, name):
    row = ROWS[name]
    measure(server, row, 1)  # what is imported and allocated once
    seen = measure(server, row, N_REPEATS)
    assert set(seen.statuses) == {row.status}
    assert statistics.median(seen.pauses_cpu_s) < MAX_PAUSE_S, str(seen)
    assert seen.kept_mib < MAX_KEPT_MIB, str(seen)


def test_slow_readers_are_cut_off_and_cost_others_nothing(server):
    measure_slow(server, N_SLOW)  # what is allocated once
    seen = [measure_slow(server, N_SLOW) for _ in range(N_SLOW_REPEATS)]
    assert any("did not read" in line for line in server.lines)
    assert statistics.median(each.pauses_cpu_s[0] for each in seen) < MAX_PAUSE_S, str(seen)
    assert seen[-1].rss_after_mib - seen[0].rss_before_mib < MAX_KEPT_MIB, str(seen)
    assert all(each.rss_peak_mib - each.rss_before_mib < MAX_BUFFERED_MIB for each in seen), str(seen)
