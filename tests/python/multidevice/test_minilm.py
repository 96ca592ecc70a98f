# SPDX-License-Identifier: BSD-3-Clause
"""The example of a sentence encoder: its vectors are those of torch on one device."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from meshfuse import Communicator

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))

import minilm
from embeddings import model_folder

for package in ("safetensors", "tokenizers"):
    pytest.importorskip(package)
pytestmark = pytest.mark.skipif(model_folder() is None, reason="the model is not installed")

RANKS = Communicator.instance().size()


@pytest.mark.skipif(12 % RANKS != 0, reason="12 heads")
@pytest.mark.parametrize("devices", [RANKS] if RANKS > 1 else [1, 2, 4])
def test_vectors_and_ranking(devices):
    sentences = minilm.SENTENCES
    if devices == RANKS:
        vectors = minilm.embed(sentences)
    else:
        vectors = minilm.embed_simulated(sentences, devices)
    expected = minilm.embed_by_torch(sentences)
    torch.testing.assert_close(vectors, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(sentences)))
    assert minilm.ranking(vectors) == minilm.ranking(expected)


@pytest.mark.skipif(12 % RANKS != 0, reason="12 heads")
def test_batches_of_other_sizes_and_none():
    for sentences in (["One."], ["Two sentences.", "The second one is a good deal longer."], []):
        vectors = minilm.embed(sentences)
        assert vectors.shape == (len(sentences), 384)
        if sentences:
            expected = minilm.embed_by_torch(sentences)
            torch.testing.assert_close(vectors, expected, rtol=0, atol=1e-5)


def test_layers_add_up_twice():
    fd = minilm.Encoder(minilm.DeviceMesh(range(4))).fd
    whole = [minilm.weights()[name] for name in minilm.encoder(4).names]
    report = fd.explain(inputs=[*minilm.batch(["A sentence."]), *whole])
    assert [c.kind for c in report.communications] == ["all-reduce"] * 12
