"""What the servers have whose answers are compared."""

from __future__ import annotations

N_SLOTS = 6
OPTIONS = ["-c", 1024 * N_SLOTS, "-np", N_SLOTS, "-t", 1, "--batch-exact", "--slots"]
