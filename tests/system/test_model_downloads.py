"""Models that clients download and delete (`--models-cache`)."""

from __future__ import annotations

import json

import httpx

from tests.system.downloads import serve_downloads
from tests.system.process import START_S, wait_until

NAME = "user/m:Q4_K_M"


def test_a_model_is_downloaded_used_and_deleted(tiny, tmp_path):
    with serve_downloads(tiny, tmp_path) as server:
        assert server.get("/models").json()["data"] == []
        with httpx.stream("GET", f"{server.url}/models/sse", timeout=START_S) as stream:
            lines = (json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: "))
            assert server.post("/models", model=NAME).json() == {"success": True}
            seen = [next(lines)]
            while seen[-1]["event"] not in ("download_finished", "download_failed"):
                seen.append(next(lines))
        assert seen[0]["event"] == "download_progress"
        assert (seen[-1]["model"], seen[-1]["event"]) == (NAME, "download_finished")
        (row,) = server.get("/models").json()["data"]
        assert (row["id"], row["status"]["value"], row["can_remove"]) == (NAME, "unloaded", True)
        assert server.complete(model=NAME, prompt="Hello", n_predict=4, ignore_eos=True)["content"]
        assert server.post("/models", model=NAME).status_code == 400
        assert httpx.delete(f"{server.url}/models?model={NAME}", timeout=START_S).json() == {"success": True}
        assert server.engines == []
        assert server.get("/models").json()["data"] == []
        assert not [path for path in tmp_path.rglob("*.gguf") if path.exists()]
        assert httpx.delete(f"{server.url}/models?model={NAME}", timeout=START_S).status_code == 400


def test_an_unknown_model_is_an_error_before_the_stream(tiny, tmp_path):
    with serve_downloads(tiny, tmp_path) as server:
        for fields in ({}, {"return_progress": True}):
            question = {"messages": [{"role": "user", "content": "hello"}], "stream": True, **fields}
            answer = server.post("/chat/completions", model="non-existent/model", **question)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, 400)


def test_what_cannot_be_downloaded(tiny, tmp_path):
    with serve_downloads(tiny, tmp_path) as server:
        for name in ("../../etc/passwd", "m", "user/m:", "https://host/user/m", ""):
            assert server.post("/models", model=name).status_code == 400, name
        with httpx.stream("GET", f"{server.url}/models/sse", timeout=START_S) as stream:
            lines = (json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: "))
            assert server.post("/models", model="user/missing").status_code == 200
            last = next(event for event in lines if event["event"] == "download_failed")
        assert "user/missing" in last["data"]["reason"]
        wait_until(lambda: server.get("/models").json()["data"] == [])
