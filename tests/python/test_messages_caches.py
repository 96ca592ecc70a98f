# SPDX-License-Identifier: BSD-3-Clause
"""What execution, caches and traces refuse, in which words."""

from __future__ import annotations

import re

import pytest
import torch

import meshfuse
from meshfuse import FusionDefinition


def relu():
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.relu(fd.define_tensor([-1])))
    return fd


def test_tensor_in_place_of_a_list():
    with pytest.raises(TypeError) as caught:
        relu().execute(torch.ones(2))
    assert str(caught.value) == "execute: expected a list of inputs, but got a tensor. Write [x]."


class Wrapped(torch.Tensor):
    """A tensor that dispatches to Python, as a DTensor does."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError("not called")


def test_tensor_of_a_subclass():
    message = (
        "execute: input 0 is a Wrapped, not a plain tensor. Pass its local tensor, for a DTensor "
        "x.to_local()."
    )
    with pytest.raises(TypeError, match=re.escape(message)):
        relu().execute([Wrapped(torch.ones(2))])


def test_tensor_of_a_type_that_meshfuse_lacks():
    message = (
        "tensors of torch type Short are not supported. Convert the tensor to one of the types of "
        "DataType first."
    )
    with pytest.raises((meshfuse.Error, TypeError), match=message):
        relu().execute([torch.ones(2, dtype=torch.int16)])


def test_ir_of_sizes_that_were_not_run():
    cache = meshfuse.FusionExecutorCache(relu().fusion)
    with pytest.raises(meshfuse.Error) as caught:
        cache.get_scheduled_ir([torch.ones(2)])
    assert str(caught.value) == (
        "Fusion is not compiled! Execute it with inputs of these sizes first."
    )


def test_lru_cache_of_nothing():
    with pytest.raises(meshfuse.Error) as caught:
        meshfuse.LRUCache(0)
    assert str(caught.value) == "LRUCache: max_fusions is 0. Allow at least one fusion."


def test_file_that_is_no_trace(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text("[]")
    with pytest.raises(meshfuse.Error) as caught:
        meshfuse.merge_traces([path], tmp_path / "merged.json")
    assert str(caught.value) == (
        f"merge_traces: {path} is no trace. Give files that save_trace wrote."
    )
