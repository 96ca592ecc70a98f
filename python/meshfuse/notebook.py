# SPDX-License-Identifier: BSD-3-Clause
"""What notebooks show of a tensor that is the value of a cell."""

from __future__ import annotations

from ._C import Error, TensorView


def _repr_html_(tv: TensorView) -> str | None:
    """Return a page that shows who holds what of the tensor; None where its program lacks it."""
    from .pictures import notebook_of_tensor

    try:
        return notebook_of_tensor(tv)
    except (Error, NotImplementedError):  # repr() is shown instead
        return None


TensorView._repr_html_ = _repr_html_  # type: ignore[method-assign,assignment]
