"""Packed probabilities are the list that they were made of."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from corral.core.top_probs import TokenProb, TopProbs, decode_hook, encode_hook

PROBS = st.lists(st.builds(TokenProb, st.integers(0, 2**31 - 1), st.floats(0, 1)))
encode = msgspec.msgpack.Encoder(enc_hook=encode_hook).encode
decode = msgspec.msgpack.Decoder(TopProbs, dec_hook=decode_hook).decode


@given(PROBS, st.slices(20))
def test_it_is_a_list(probs, part):
    packed = TopProbs.of(probs)
    assert len(packed) == len(probs)
    assert list(packed) == probs
    assert packed == probs
    assert [packed[i] for i in range(len(probs))] == probs
    assert packed[part] == probs[part]
    assert isinstance(packed[part], TopProbs)
    assert packed != [*probs, TokenProb(1, 0.5)]


@given(PROBS)
def test_it_survives_a_frame_whether_it_was_packed_or_not(probs):
    assert decode(encode(TopProbs.of(probs))) == decode(encode(probs)) == probs
