"""Asks for `/health` all the time, in a process of its own: `python -m tests.soak.probe HOST PORT`.

Ends with its input, and says then how long the answers took and what was wrong with them, as JSON.
"""

from __future__ import annotations

import collections
import http.client
import json
import select
import sys
import time

EVERY_S = 0.05
TIMEOUT_S = 60.0


def main() -> None:
    host, port = sys.argv[1:3]
    took_ms: list[float] = []
    problems: list[str] = []
    statuses: collections.Counter[int] = collections.Counter()
    connection = http.client.HTTPConnection(host, int(port), timeout=TIMEOUT_S)
    while not select.select([sys.stdin], [], [], EVERY_S)[0]:
        began = time.monotonic()
        try:
            connection.request("GET", "/health")
            response = connection.getresponse()
            status, body = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            problems.append(f"/health: {error!r}")
            connection.close()
            continue
        took_ms.append((time.monotonic() - began) * 1e3)
        statuses[status] += 1
        if fault := _fault(status, body):
            problems.append(fault)
        if len(took_ms) % 20 == 0:
            connection.close()  # a new one now and then
    sys.stdout.write(json.dumps({"took_ms": took_ms, "statuses": statuses, "problems": problems}))


def _fault(status: int, body: bytes) -> str:
    try:
        answer = json.loads(body)
        if status == 200:
            good = answer["status"] == "ok" and answer["slots_idle"] + answer["slots_processing"] > 0
        else:
            error = answer["error"]
            good = (
                status == error["code"] == 503 and error["type"] == "unavailable_error" and error["message"]
            )
    except (ValueError, KeyError, TypeError):
        good = False
    return "" if good else f"/health: {status} {body[:300]!r}"


if __name__ == "__main__":
    main()
