"""Values of `--transcode` other than the name of an encoding."""

from __future__ import annotations

AUTO = "auto"  # the fastest according to `corral tune` on this machine, or to a shipped profile
OFF = "off"  # the encoding of the file
TUNED = "tuned"  # an older name of `auto`
