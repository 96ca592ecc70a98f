# SPDX-License-Identifier: BSD-3-Clause
"""What defining a program refuses, in which words."""

from __future__ import annotations

import importlib
import re

import pytest
import torch

import meshfuse
from meshfuse import _C, DataType, FusionDefinition, ParallelType


def untrained_batch_norm(fd):
    fd.ops.batch_norm(fd.define_tensor([2, 3, 4]), None, None, None, None, 0.1, 1e-5, False)


def linear_with_a_wide_bias(fd):
    fd.ops.linear(
        fd.define_tensor([4, 8]), fd.define_tensor([2, 3, 8]), fd.define_tensor([2, 2, 3])
    )


def scaled_grouped_mm(fd):
    mat1, mat2 = fd.define_tensor([8, 4]), fd.define_tensor([2, 4, 4])
    offsets = fd.define_tensor([2], dtype=DataType.Int32)
    scale = fd.define_tensor([8, 1])
    fd.ops.grouped_mm(mat1, mat2, offsets, scale, fd.define_tensor([2, 1, 4]))


def alias_of_a_result(fd):
    t = fd.define_tensor([4])
    y = fd.ops.relu(t)
    fd.add_output(fd.ops.neg(y), alias_input=y)


PROGRAMS = [
    (lambda fd: fd.ops.cast(fd.define_tensor([2]), DataType.Null),
     meshfuse.Error, "cast: dtype is Null. Name a data type."),
    (lambda fd: fd.define_tensor([2], dtype=DataType.Null), meshfuse.Error,
     "define_tensor: dtype is Null. Name a data type."),
    (lambda fd: fd.define_scalar(DataType.Null), meshfuse.Error,
     "define_scalar: dtype is Null. Name a data type."),
    (lambda fd: fd.define_scalar(2.0, DataType.Null), meshfuse.Error,
     "define_scalar: dtype is Null. Name a data type."),
    (untrained_batch_norm, meshfuse.Error,
     "batch_norm: T0 is normalised with running statistics that are not both given. Give "
     "running_mean and running_var, or leave out both and train."),
    (lambda fd: fd.ops.erf(fd.define_scalar(DataType.Double)), meshfuse.Error,
     "erf: all operands are scalars, and erf is not defined on scalars alone. Give at least one "
     "tensor."),
    (linear_with_a_wide_bias, meshfuse.Error,
     "linear: T2 has 3 axes for a weight of 3. Give a bias of shape [N], or with the same device "
     "axes as the weight."),
    (scaled_grouped_mm, meshfuse.UnsupportedError,
     "grouped_mm: products of scaled operands, here of T0, run in a CUDA kernel of their own."),
    (lambda fd: fd.define_tensor([4, 1], contiguity=[True, True]), meshfuse.Error,
     "define_tensor: the contiguity flag of axis 1 (size 1, a broadcast) must be None. Use None "
     "for broadcast axes."),
    (alias_of_a_result, meshfuse.Error,
     "add_output: T1, the alias of T2, is not an input of the definition. Alias an input."),
    (lambda fd: fd.add_output(fd.define_scalar(DataType.Double), fd.define_tensor([2])),
     meshfuse.Error, "add_output: a scalar cannot be aliased to an input. Leave alias_input out."),
    (lambda fd: fd.add_output(torch.ones(2)), TypeError,
     "add_output(): incompatible function arguments"),
    (lambda fd: fd.ops.relu(torch.ones(2)), TypeError, "relu(): incompatible function arguments"),
    (lambda fd: fd.ops.reshape(fd.define_tensor([2**40, 2**40]), [2**40, 2**40]), meshfuse.Error,
     "the product of the sizes exceeds 64 bits. Give smaller sizes."),
]  # fmt: skip


@pytest.mark.parametrize(("define", "kind", "message"), PROGRAMS)
def test_program_is_refused(define, kind, message):
    with pytest.raises(kind, match=re.escape(message)), FusionDefinition() as fd:
        define(fd)


@pytest.mark.parametrize("value", ["x", [1], object()], ids=lambda v: type(v).__name__)
def test_constant_that_is_no_number(value):
    with FusionDefinition() as fd, pytest.raises(TypeError, match="define_scalar"):
        fd.define_scalar(value)


@pytest.mark.parametrize("option", ["strict", "uneven"])
@pytest.mark.parametrize("value", ["yes", 1, None])
def test_option_that_is_no_bool(option, value):
    with pytest.raises(TypeError) as caught:
        FusionDefinition(**{option: value})
    assert str(caught.value) == f"FusionDefinition: {option} is {value!r}. Give True or False."


def test_arguments_of_parse_ir():
    with pytest.raises(TypeError, match=r"^parse_ir: uneven is 'yes'\. Give True or False\.$"):
        meshfuse.parse_ir("", uneven="yes")
    with pytest.raises(TypeError, match=r"^parse_ir: text is a list\. Give the text of a program"):
        meshfuse.parse_ir([])


def test_reduce_dtype_that_is_no_float():
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.sum(fd.define_tensor([4]), [0]))
    message = (
        "reduce_dtype: int64_t is not a floating type. Give DataType.Float or DataType.Double."
    )
    with pytest.raises(meshfuse.Error, match=re.escape(message)):
        fd._defined().reduce_dtype = DataType.Int


def test_scalar_of_another_kind():
    with FusionDefinition() as fd:
        t = fd.define_tensor([4])
        with pytest.raises(TypeError, match="TensorView"):
            fd.ops.add(t, object())


@pytest.mark.parametrize("module", ["meshfuse", "meshfuse.pytorch_utils", "nvf_cutlass"])
def test_unknown_attribute(module):
    name = "meshfuse.nvf_cutlass" if module == "nvf_cutlass" else module
    loaded = importlib.import_module(name)
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute '__nothing__'"):
        getattr(loaded, "__nothing__")  # noqa: B009  a plain expression is thought to be useless


@pytest.mark.parametrize("name", ["LaunchParams", "CompileParams", "MatmulParams"])
def test_class_that_controls_kernels(name):
    message = f"{name} controls a generated CUDA kernel. meshfuse evaluates every operation"
    with pytest.raises(meshfuse.UnsupportedError, match=message):
        getattr(meshfuse, name)()


def test_copy_by_a_kernel():
    with FusionDefinition() as fd:
        t = fd.define_tensor([4])
        fd.add_output(fd.ops.relu(t))
    message = (
        "cache_after: cache_op=all_levels for T0 controls how a generated CUDA kernel copies. "
        "meshfuse evaluates every operation through ATen; leave the argument out."
    )
    with pytest.raises(meshfuse.UnsupportedError, match=re.escape(message)):
        t.cache_after(cache_op=meshfuse.CacheOp.all_levels)


def test_tensors_beside_a_reference():
    with FusionDefinition() as fd:
        t = fd.define_tensor([4])
        fd.add_output(fd.ops.relu(t))
    message = "one of the tensors listed beside T0 is None. List tensors of the definition."
    with pytest.raises((meshfuse.Error, TypeError), match=message):
        meshfuse.schedule.transform_like(t, [None])


def test_swizzle_of_a_reduction():
    with FusionDefinition() as fd:
        s = fd.ops.sum(fd.define_tensor([4, 4]), [1])
        fd.add_output(s)
    message = "swizzle1d: axis 1 of T1 is a reduction, which has no order. Name another axis."
    with pytest.raises(meshfuse.Error, match=re.escape(message)):
        s.swizzle1d(1, ParallelType.mesh_x)


def test_pass_that_does_not_exist():
    message = "there is no pass named 'hoist'. Known passes: check-local, "
    with pytest.raises(meshfuse.Error, match=re.escape(message)):
        _C.run_pass("a: f32[i0{4}]\nreturn a", "hoist")


def test_values_below_the_functions_of_a_definition():
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.relu(fd.define_tensor([4])))
    fusion = fd._defined()
    with pytest.raises(TypeError, match="define_scalar: the value is not a bool, int, float or co"):
        fusion.constant("x", DataType.Int)
    with pytest.raises(TypeError, match="expected a TensorView or a Scalar, but got <class 'str'>"):
        fusion.add_output("x")
