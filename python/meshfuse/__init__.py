# SPDX-License-Identifier: BSD-3-Clause
"""Tensor programs on a mesh of devices: define, shard, execute."""

from __future__ import annotations

import torch  # loads the libraries that the extension needs

_REBUILD = "Rebuild it: pip install --no-build-isolation --force-reinstall --no-deps meshfuse"

try:
    from . import _C
except ImportError as error:
    # Another torch often lacks symbols of the one that the extension was built with.
    raise ImportError(
        f"meshfuse's extension does not load with torch {torch.__version__}: {error}. {_REBUILD}"
    ) from error


def _check_torch() -> None:
    built, running = _C.torch_version, torch.__version__
    if built.split(".")[:2] != running.split(".")[:2]:
        raise ImportError(
            f"meshfuse was built against torch {built}, but torch {running} is installed. "
            f"{_REBUILD}"
        )


_check_torch()

from . import multidevice, ops, pytorch_utils, schedule  # noqa: E402
from ._C import (  # noqa: E402
    CacheOp,
    Communicator,
    CommunicatorBackend,
    DataType,
    DeviceMesh,
    Expr,
    Fusion,
    FusionGuard,
    IdMappingMode,
    IterDomain,
    LoadStoreOpType,
    MemoryType,
    ParallelType,
    Scalar,
    SchedulerType,
    Sharding,
    TensorDomain,
    TensorView,
)
from .definition import FusionDefinition, define_scalar, define_tensor, parse_ir  # noqa: E402
from .descriptor import compute_contiguity, compute_tensor_descriptor  # noqa: E402
from .exceptions import Error, InternalError, PeerError, UnsupportedError  # noqa: E402
from .executor_cache import FusionExecutorCache  # noqa: E402
from .package_version import __version__, version  # noqa: E402
from .profile import (  # noqa: E402
    FusionProfile,
    KernelProfile,
    PythonProfiler,
    get_fusion_profile,
    reset_profiler,
)
from .simulation import simulate  # noqa: E402
from .statement import Statement  # noqa: E402
from .vector import Vector  # noqa: E402

Tensor = TensorView
Val = Scalar

__all__ = [
    "CacheOp",
    "Communicator",
    "CommunicatorBackend",
    "DataType",
    "DeviceMesh",
    "Error",
    "Expr",
    "Fusion",
    "FusionDefinition",
    "FusionExecutorCache",
    "FusionGuard",
    "FusionProfile",
    "IdMappingMode",
    "InternalError",
    "IterDomain",
    "KernelProfile",
    "LoadStoreOpType",
    "MemoryType",
    "ParallelType",
    "PeerError",
    "PythonProfiler",
    "Scalar",
    "SchedulerType",
    "Sharding",
    "Statement",
    "Tensor",
    "TensorDomain",
    "TensorView",
    "UnsupportedError",
    "Val",
    "Vector",
    "__version__",
    "compute_contiguity",
    "compute_tensor_descriptor",
    "define_scalar",
    "define_tensor",
    "get_fusion_profile",
    "multidevice",
    "ops",
    "parse_ir",
    "pytorch_utils",
    "reset_profiler",
    "schedule",
    "simulate",
    "version",
]
