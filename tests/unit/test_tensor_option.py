"""How `--override-tensor` is read."""

from __future__ import annotations

import pytest

from corral.cli.options.tensor import tensor_places
from corral.core.modifier import TensorPlace


def test_patterns_are_followed_by_a_memory():
    assert tensor_places([r"\.ffn_.*_exps=CPU,output=CUDA0"]) == (
        TensorPlace(r"\.ffn_.*_exps", "CPU"),
        TensorPlace("output", "CUDA0"),
    )


@pytest.mark.parametrize("text", ["output", "=CPU", "output=", "a=CPU,b", "(=CPU", "*=CPU"])
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        tensor_places([text])
