# SPDX-License-Identifier: BSD-3-Clause
"""Time of one step on one device: a roofline for operations, the links for communications.

An operation takes what it takes to start, and then the longer of its arithmetic and its traffic
with memory (S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52(4), 2009).
"""

from __future__ import annotations

from .links import Device, Links
from .local_program import Step

__all__ = ["is_view", "operation_flops", "step_us"]

_VIEWS = frozenset(
    "broadcast broadcast_in_dim expand permute reshape segment_set select set slice squeeze "
    "stride_order".split()
)
_PRODUCTS = frozenset(("matmul", "linear"))
_FUNCTIONS = frozenset(
    "acos acosh asin asinh atan atan2 atanh cos cosh erf erfc erfcinv erfinv exp exp2 expm1 gelu "
    "lgamma log log10 log1p log2 pow sigmoid silu sin sinh softmax tan tanh normal".split()
)


def is_view(step: Step) -> bool:
    """Whether the result shares memory with the operand: nothing is computed or copied."""
    if len(step.ins) != 1:
        return False
    if step.op == "cast":
        return step.ins[0].dtype == step.outs[0].dtype
    if step.transfer is not None:  # a slice of the outermost axis lies together
        return (
            step.transfer.kind == "local-slice" and step.ins[0].sizes[1:] == step.outs[0].sizes[1:]
        )
    return step.op in _VIEWS


def operation_flops(step: Step) -> float:
    """Return the multiplications and additions of a local operation."""
    first = step.outs[0]
    if step.op in _PRODUCTS:
        return 2.0 * first.work
    if step.op in ("sdpfa_fwd", "sdpfa_bwd") and len(step.ins) >= 3:
        products = 2 if step.op == "sdpfa_fwd" else 5
        q, k, v = step.ins[:3] if step.op == "sdpfa_fwd" else step.ins[1:4]
        pairs = q.elements // q.sizes[-1] * k.sizes[-2]
        half = 0.5 if "is_causal=true" in step.call else 1.0
        return half * products * pairs * (q.sizes[-1] + v.sizes[-1])
    if step.op == "grouped_mm" and len(step.ins) >= 2:
        return 2.0 * first.elements * step.ins[0].sizes[-1]
    return float(max(first.work, *(tensor.elements for tensor in step.ins), 0))


def step_us(step: Step, links: Links) -> float:
    """Return the modelled microseconds of a step on one device."""
    device = links.device
    if is_view(step):
        return 0.0
    transfer = step.transfer
    if transfer is not None and transfer.kind != "local-slice":
        if not transfer.bytes:
            return 0.0
        link = links.link_of(transfer.teams[0])
        return link.time_us(transfer.kind, len(transfer.teams[0]), transfer.buffer)
    traffic = sum(tensor.bytes for tensor in (*step.ins, *step.outs))
    if transfer is not None:  # only the slice is read
        traffic = 2 * step.outs[0].bytes
    return device.step_us + max(_compute_us(step, device), device.traffic_us(traffic))


def _compute_us(step: Step, device: Device) -> float:
    if step.op in _FUNCTIONS:
        return step.outs[0].work * device.function_ns / 1e3
    if step.op in _PRODUCTS or step.op in ("sdpfa_fwd", "sdpfa_bwd", "grouped_mm"):
        first = step.outs[0]
        smallest = 0
        if step.op in _PRODUCTS and first.elements:
            rows = max(1, step.ins[0].elements // max(1, first.reduced))
            smallest = max(1, min(rows, first.elements // rows, first.reduced))
        return device.flops_us(operation_flops(step), step.ins[0].dtype, smallest)
    return 0.0  # element by element: memory decides
