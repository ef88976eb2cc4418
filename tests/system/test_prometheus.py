"""A real Prometheus with our configuration scrapes the real command; the dashboard and the alerts ask it."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.system.process import START_S, CorralProcess, wait_until

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES: dict[str, Any] = {"$__rate_interval": "5m", "$instance": ".*", "$key": ".*"}
NO_DATA = {"Drafts that came true"}  # without drafts
KEYS: dict[str, Any] = {"alice": "sk-a", "bob": "sk-b"}


def expressions() -> list[tuple[str, str]]:
    """What each panel asks for."""
    return [(panel["title"], fill_in(each["expr"])) for panel in PANELS for each in panel["targets"]]


def fill_in(expression: str) -> str:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


class Prometheus:
    """`patient`: alerts wait as long as the file says."""

    def __init__(self, directory: Path, target: str, key: str, patient: bool = True) -> None:
        (directory / "key").write_text(key)
        config = (DEPLOY / "prometheus.yml").read_text()
        for old, new in (
            ('"127.0.0.1:8080"', f'"{target}"'),
            ("# authorization:", "authorization:"),
            ("#   credentials_file: /etc/prometheus/corral.key", "  credentials_file: key"),
            ("scrape_interval: 15s", "scrape_interval: 1s"),
            ("evaluation_interval: 15s", "evaluation_interval: 1s"),
        ):
            assert config.count(old) == 1, old
            config = config.replace(old, new)
        (directory / "prometheus.yml").write_text(config)
        alerts = (DEPLOY / "alerts.yml").read_text()
        (directory / "alerts.yml").write_text(alerts if patient else re.sub(r"for: \d+m", "for: 1s", alerts))
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{sock.getsockname()[1]}"
        self._log = (directory / "log").open("w+")
        self.process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self._url = f"http://{address}"
        self._wait(self._is_ready)

    def ask(self, path: str, **parameters: str) -> Any:
        response = httpx.get(f"{self._url}/api/v1/{path}", params=parameters, timeout=START_S)
        assert response.status_code == 200, f"{parameters}: {response.text}"
        return response.json()["data"]

    def query(self, expression: str) -> list[dict]:
        return self.ask("query", query=expression)["result"]

    def values(self, expression: str) -> list[float]:
        return [float(each["value"][1]) for each in self.query(expression)]

    def wait_for_scrape(self) -> None:
        """Until it has seen what has happened so far."""
        now = time.time()
        seen_at = 'timestamp(up{job="corral"}) and up{job="corral"} == 1'
        self._wait(lambda: self.values(seen_at) > [now])

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(START_S)
        self._log.close()

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self._url}/-/ready", timeout=START_S).status_code == 200
        except httpx.TransportError:
            return False

    def _wait(self, condition) -> None:
        deadline = time.monotonic() + START_S
        while not condition():
            assert self.process.poll() is None, Path(self._log.name).read_text()
            assert time.monotonic() < deadline, Path(self._log.name).read_text()
            time.sleep(0.1)


@pytest.fixture(scope="module")
def server(tiny, tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text("".join(f"{name}:{key}\n" for name, key in KEYS.items()))
    with CorralProcess("-m", tiny, "-c", 2048, "-np", 2, "--metrics", "--api-key-file", path) as corral:
        yield corral


@pytest.fixture(scope="module")
def prometheus(server, tmp_path_factory):
    """It has seen some work of both clients, a lost engine, and more work."""
    found = Prometheus(tmp_path_factory.mktemp("prometheus"), server.url.removeprefix("http://"), KEYS["bob"])
    try:
        work(server)
        found.wait_for_scrape()
        server.engine.kill()
        server.wait_for("engine lost")
        work(server)
        found.wait_for_scrape()
        yield found
    finally:
        found.stop()


def work(server: CorralProcess) -> None:
    for key in KEYS.values():
        headers = {"authorization": f"Bearer {key}"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=START_S) as http:
            body = {"prompt": "hello there " * 20, "n_predict": 8, "ignore_eos": True}
            for _ in range(2):
                assert http.post("/completion", json=body).status_code == 200
            assert http.post("/v1/completions", json={**body, "stream": True}).status_code == 200
            assert http.post("/embedding", json={"content": "hello"}).status_code == 200
            assert http.get("/none").status_code == 404


def test_prometheus_is_let_in(prometheus):
    assert prometheus.values('up{job="corral"}') == [1]
    (target,) = prometheus.ask("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")


@pytest.mark.parametrize(("title", "expression"), expressions())
def test_every_panel_has_something_to_show(prometheus, title, expression):
    values = prometheus.values(expression)
    if title not in NO_DATA:
        assert values, expression
        assert any(value == value for value in values), f"{expression}: all are NaN"


def test_values_are_what_happened(prometheus):
    for name, count in (
        ('corral_request_seconds_count{key="alice"}', 8),
        ('corral_time_to_first_token_seconds_count{key="bob"}', 6),
        ('corral_time_between_tokens_seconds_count{key="bob"}', 42),
        ('corral_generated_tokens_sum{key="alice"}', 48),
        ('sum(corral_http_requests_total{route="/completion", status="200"})', 8),
        ('sum(corral_http_requests_total{route="other", status="404"})', 4),
        ("sum(corral_cache_hits_total)", 12),
        ("corral_engine_restarts_total", 1),
        ('corral_engine_state{state="ready"}', 1),
        ("sum(corral_slots)", 2),
        ("corral_queue_length", 0),
    ):
        assert prometheus.values(name) == [count], name
    assert prometheus.values("corral_connections")[0] >= 1  # its own
    assert prometheus.values('corral_cache_hits_total{tier="live"}')[0] >= 4


def test_what_one_can_choose_from(prometheus):
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"]).groups()
            found = prometheus.ask(f"label/{label}/values", **{"match[]": metric})
            assert found == (list(KEYS) if label == "key" else [prometheus.query("up")[0]["metric"][label]])


def test_alerts_are_evaluated_and_silent(prometheus):
    def found() -> dict[str, tuple[str, str]]:
        (group,) = prometheus.ask("rules")["groups"]
        return {rule["query"]: (rule["health"], rule["state"]) for rule in group["rules"]}

    assert len(found()) >= 7
    for query in found():
        prometheus.query(query)
    # One that was about to speak while the engine was away takes it back when it is asked next.
    wait_until(lambda: set(found().values()) == {("ok", "inactive")}, 0.1)


def test_a_lost_engine_of_several_is_an_alert_that_names_it(tiny, tmp_path):
    """It cannot be replaced, because the model file is gone; the other one serves."""
    model = tmp_path / "model.gguf"
    shutil.copy(tiny, model)
    shape = ("-c", 1024, "-np", 1, "-t", 1, "--engines", 2, "--engine-restarts", 1)
    with CorralProcess("-m", model, *shape, "--metrics") as server:
        lost, kept = (engine["pid"] for engine in server.get("/engines").json()["engines"])
        found = Prometheus(tmp_path, server.url.removeprefix("http://"), "", patient=False)
        try:
            found.wait_for_scrape()
            assert found.values("corral_engine_ready") == [1, 1]
            model.unlink()
            psutil.Process(lost).kill()
            firing = 'ALERTS{alertname="CorralEngineLost", alertstate="firing"}'
            wait_until(lambda: found.query(firing), 0.1)
            assert [each["metric"]["engine"] for each in found.query(firing)] == ["0"]
            (alert,) = [each for each in found.ask("alerts")["alerts"] if "engine" in each["labels"]]
            assert alert["annotations"]["summary"].endswith(
                "engine 0 does not run; the others serve with less room"
            )
            assert found.values("corral_engine_ready") == [0, 1]
            assert server.get("/health").status_code == 200
            assert psutil.pid_exists(kept)
        finally:
            found.stop()


def test_promtool_has_nothing_to_say_against_our_names(server):
    headers = {"authorization": f"Bearer {KEYS['alice']}"}
    text = httpx.get(server.url + "/metrics", headers=headers, timeout=START_S).text
    result = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    said = result.stderr.splitlines()
    # Names that others have chosen are not ours to change.
    assert [line for line in said if not line.startswith("llamacpp:")] == []
    names = {family.name for family in text_string_to_metric_families(text)}
    assert len(names) > 30


@pytest.mark.parametrize(("kind", "name"), [("config", "prometheus.yml"), ("rules", "alerts.yml")])
def test_promtool_accepts_the_files(kind, name):
    result = subprocess.run(["promtool", "check", kind, DEPLOY / name], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


ALERTS: dict[str, Any] = {  # what each of them hears of, a value each minute
    "CorralDown": ["up 0x20"],
    "CorralEngineNotReady": [
        'corral_engine_state{state="ready"} 0x20',
        'corral_engine_state{state="failed"} 1x20',
    ],
    "CorralEngineLost": ['corral_engine_ready{engine="0"} 1x20', 'corral_engine_ready{engine="1"} 0x20'],
    "CorralEngineRestarts": ["corral_engine_restarts_total 0+1x20"],
    "CorralErrors": [
        'corral_http_requests_total{status="200"} 0+60x20',
        'corral_http_requests_total{status="503"} 0+6x20',
    ],
    "CorralQueueLong": [
        "corral_queue_length 5x20",
        'corral_slots{state="busy"} 4x20',
        'corral_slots{state="idle"} 0x20',
    ],
    "CorralSlowFirstToken": [
        'corral_time_to_first_token_seconds_bucket{le="30"} 0+1x20',
        'corral_time_to_first_token_seconds_bucket{le="60"} 0+60x20',
        'corral_time_to_first_token_seconds_bucket{le="+Inf"} 0+60x20',
    ],
    "CorralFilesOpen": ["process_open_fds 900x20", "process_max_fds 1000x20"],
}


@pytest.mark.parametrize("alert", ALERTS)
def test_alerts_speak_up(alert, tmp_path):
    shutil.copy(DEPLOY / "alerts.yml", tmp_path)
    series = []
    for each in ALERTS[alert]:
        name, _, values = each.partition(" ")
        metric, brace, labels = name.partition("{")
        labels = (labels.removesuffix("}") + ", " if brace else "") + 'job="corral", instance="a"'
        series.append({"series": f"{metric}{{{labels}}}", "values": values})
    test = {
        "rule_files": ["alerts.yml"],
        "tests": [
            {
                "interval": "1m",
                "input_series": series,
                "promql_expr_test": [
                    {
                        "expr": f'count(ALERTS{{alertname="{alert}", alertstate="firing"}})',
                        "eval_time": "19m",
                        "exp_samples": [{"labels": "{}", "value": 1}],
                    }
                ],
            }
        ],
    }
    (tmp_path / "test.yml").write_text(json.dumps(test))
    result = subprocess.run(
        ["promtool", "test", "rules", tmp_path / "test.yml"], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_alert_has_a_test():
    assert set(re.findall(r"alert: (\w+)", (DEPLOY / "alerts.yml").read_text())) == set(ALERTS)


def test_the_dashboard_is_one():
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    cells = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in cells, panel["title"]
                cells.add((x, y))
    source = {"type": "prometheus", "uid": "${datasource}"}
    for panel in PANELS:
        assert panel["datasource"] == source
        assert all(target["datasource"] == source for target in panel["targets"])
    names = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = re.findall(r"\$\{?(\w+)", json.dumps(PANELS))
    assert set(used) - {"__rate_interval"} == names
