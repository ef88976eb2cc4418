"""What people call a model: from its metadata, or the name of its file. Pure text."""

from __future__ import annotations

import os
import re

_PART = re.compile(r"-\d{5}-of-\d{5}$")
_ENCODING = re.compile(r"[-._](?:UD-)?(?:I?Q\d\w*|T?Q\d_\d|[BF]F?(?:16|32)|MXFP4\w*|NVFP4)$", re.IGNORECASE)


def title_of(path: str, name: str = "", basename: str = "") -> str:
    """Return a title. `name` and `basename`: `general.name` and `general.basename` of the file.

    Files that are called as GGUF's convention says tell more than `general.name`, which is often that of
    a directory in which the model was trained.
    """
    stem = os.path.basename(path.replace("\\", "/")).removesuffix(".gguf")
    plain = _ENCODING.sub("", _PART.sub("", stem))
    is_telling = not name or (basename != "" and plain.lower().startswith(basename.lower()))
    return re.sub(r"[-_ ]+", " ", plain).strip() if is_telling else name.strip()
