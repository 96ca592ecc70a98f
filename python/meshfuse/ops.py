# SPDX-License-Identifier: BSD-3-Clause
"""Every op as a free function on the active definition.

Example:
    >>> import meshfuse
    >>> with meshfuse.FusionDefinition() as fd:
    ...     x = fd.define_tensor([4, 8])
    ...     fd.add_output(meshfuse.ops.relu(x))
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from . import _C
from .lifecycle import Lifecycle
from .operators import SCALED, Operators, dress

_unbound = Operators(Lifecycle(None))
size = _unbound.size
shape = _unbound.shape
tensor_sizes = _unbound.tensor_sizes
at = _unbound.at

__all__ = ["at", "shape", "size", "tensor_sizes"]


def _function(info: dict[str, Any]) -> Callable[..., Any]:
    call = partial(info["call"], None)  # None: the active definition

    def function(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    function.__module__ = __name__
    return dress(function, info, "")


for _info in _C.registered_ops():
    globals()[_info["name"]] = _function(_info)
    __all__ += [_info["name"]]

for _name in SCALED:
    globals()[_name] = getattr(_unbound, _name)
    __all__ += [_name]
