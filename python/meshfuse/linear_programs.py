# SPDX-License-Identifier: BSD-3-Clause
"""The programs of a linear layer whose weight is divided over a mesh: forward, and gradients.

Rows of the input are left open, all features are declared. Each communication is written down (a
``set``, or an annotated sum over devices), so that strict mode finds none beside these.
"""

from __future__ import annotations

from dataclasses import dataclass

from ._C import DataType, DeviceMesh, ParallelType, TensorView
from .definition import FusionDefinition

# Tensors and the loop axis by which each is divided; None: whole. The last entry of one holds.
_Placed = list[tuple[TensorView, int | None]]


@dataclass(frozen=True)
class LinearLayout:
    """Where the tensors of ``y = x @ weight.T + bias`` are.

    Attributes:
        in_features: Global size of an input row.
        out_features: Global size of a result row.
        mesh: The devices, or None for one device.
        columns: Whether the weight ``[out, in]`` is divided by its axis 0; else by axis 1.
        whole: Whether every device holds the whole of what goes along the divided features: of
            results where ``columns``, else of inputs.
    """

    in_features: int
    out_features: int
    mesh: DeviceMesh | None
    columns: bool
    whole: bool

    @property
    def x_axis(self) -> int | None:
        """Axis by which inputs are divided in the product."""
        return None if self.columns else 1

    @property
    def w_axis(self) -> int:
        """Axis by which the weight is divided."""
        return 0 if self.columns else 1

    @property
    def y_axis(self) -> int | None:
        """Axis by which the product is divided; for the bias and its gradient, where it is."""
        return 1 if self.columns else None

    @property
    def local_in_features(self) -> int:
        """Size of an input row on one device."""
        divided = not self.columns and not self.whole
        return self.in_features // (self.mesh.size if self.mesh and divided else 1)

    @property
    def local_out_features(self) -> int:
        """Size of a result row on one device."""
        divided = self.columns and not self.whole
        return self.out_features // (self.mesh.size if self.mesh and divided else 1)


def define_forward(layout: LinearLayout, dtype: DataType, bias: bool) -> FusionDefinition:
    """Return the program ``(x, weight[, bias]) -> y``, with x of two dims."""
    with FusionDefinition(strict=True) as fd:
        x = _define(fd, dtype, -1, layout.in_features)
        w = _define(fd, dtype, layout.out_features, layout.in_features)
        b = _define(fd, dtype, layout.out_features) if bias else None
        part = fd.ops.set(x) if layout.whole and not layout.columns else x
        y = fd.ops.linear(part, w) if b is None else fd.ops.linear(part, w, b)
        result = fd.ops.set(y) if layout.whole and layout.columns else y
        fd.add_output(result)
        placed: _Placed = [(x, None), (result, None)]
        placed += [(part, layout.x_axis), (w, layout.w_axis), (y, layout.y_axis)]
        if b is not None:
            placed.append((b, 0 if layout.columns else None))
        _place(layout, placed)
    return fd


def define_backward(
    layout: LinearLayout, dtype: DataType, x_grad: bool, w_grad: bool, b_grad: bool
) -> FusionDefinition:
    """Return the program ``(grad[, x if w_grad][, weight if x_grad])`` to the gradients asked for.

    They are those of x, weight and bias, in this order, each divided as its tensor is.
    """
    with FusionDefinition(strict=True) as fd:
        grad = _define(fd, dtype, -1, layout.out_features)
        part = fd.ops.set(grad) if layout.whole and layout.columns else grad
        placed: _Placed = [(grad, None), (part, layout.y_axis)]
        x = _define(fd, dtype, -1, layout.in_features) if w_grad else None
        w = _define(fd, dtype, layout.out_features, layout.in_features) if x_grad else None
        if w is not None:
            of_x = fd.ops.matmul(part, w)  # where columns, a sum over the devices
            result = fd.ops.set(of_x) if layout.whole and not layout.columns else of_x
            fd.add_output(result)
            placed += [(w, layout.w_axis), (result, None), (of_x, layout.x_axis)]
        if x is not None:
            operand = fd.ops.set(x) if layout.whole and not layout.columns else x
            of_w = fd.ops.matmul(fd.ops.permute(part, [1, 0]), operand)
            fd.add_output(of_w)
            placed += [(x, None), (operand, layout.x_axis), (of_w, layout.w_axis)]
        if b_grad:
            of_b = fd.ops.sum(part, [0])
            fd.add_output(of_b)
            placed.append((of_b, layout.y_axis))
        _place(layout, placed)
    return fd


def _define(fd: FusionDefinition, dtype: DataType, *sizes: int) -> TensorView:
    # A size declared as 1 would broadcast, and so could not be one of two equal sizes.
    return fd.define_tensor([-1 if size == 1 else size for size in sizes], dtype=dtype)


def _place(layout: LinearLayout, placed: _Placed) -> None:
    """Divide tensors over the mesh by an axis, or not at all."""
    if layout.mesh is None:
        return
    for tensor, axis in dict(placed).items():
        tensor.set_device_mesh(layout.mesh)
        if axis is not None:
            tensor.outer_split(axis, layout.mesh.size)
            tensor.axis(axis).parallelize(ParallelType.mesh_x)
