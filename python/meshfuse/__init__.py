# SPDX-License-Identifier: BSD-3-Clause
"""Tensor programs on a mesh of devices: define, shard, execute."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import torch  # loads the libraries that the extension needs

_REBUILD = "Rebuild it: pip install --no-build-isolation --force-reinstall --no-deps meshfuse"


def _refuse(reason: str, error: ImportError | None = None) -> NoReturn:
    """Raise an ImportError; the command line ends with one line instead."""
    words = sys.orig_argv
    module = words[words.index("-m") + 1] if "-m" in words[:-1] and sys.argv[:1] == ["-m"] else ""
    if "meshfuse" in (module, os.path.basename(sys.argv[0]) if sys.argv else ""):
        print(f"meshfuse: {reason}", file=sys.stderr)
        sys.exit(1)
    raise ImportError(reason) from error


try:
    from . import _C
except ImportError as error:
    # Another torch often lacks symbols of the one that the extension was built with.
    _refuse(
        f"meshfuse's extension does not load with torch {torch.__version__}: {error}. {_REBUILD}",
        error,
    )


def _check_torch() -> None:
    built, running = _C.torch_version, torch.__version__
    if built.split(".")[:2] != running.split(".")[:2]:
        _refuse(
            f"meshfuse was built against torch {built}, but torch {running} is installed. "
            f"{_REBUILD}"
        )


_check_torch()

from . import multidevice, ops, pytorch_utils, schedule  # noqa: E402
from . import notebook as _notebook  # noqa: E402, F401 - tensors get _repr_html_
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
    Merge,
    ParallelType,
    Scalar,
    SchedulerType,
    Split,
    TensorDomain,
    TensorView,
)
from .cuda_names import (  # noqa: E402
    CompileParams,
    HeuristicParams,
    KernelExecutor,
    LaunchParams,
    MatmulParams,
    PointwiseParams,
    ReductionParams,
    SchedulerHyperParameters,
)
from .definition import FusionDefinition, parse_ir  # noqa: E402
from .descriptor import compute_contiguity, compute_tensor_descriptor  # noqa: E402
from .dtensor import execute_with_dtensors  # noqa: E402
from .exceptions import Error, InternalError, PeerError, UnsupportedError  # noqa: E402
from .executor_cache import FusionExecutorCache  # noqa: E402
from .expr_kinds import BroadcastOp, ReshapeOp, SqueezeOp  # noqa: E402
from .fusion_cache import (  # noqa: E402
    FusionCache,
    disable_automatic_serialization,
    enable_automatic_serialization,
    serialize,
)
from .input_definitions import define_scalar, define_tensor  # noqa: E402
from .lru_cache import LRUCache, LruFusionCache  # noqa: E402
from .package_version import __version__, version  # noqa: E402
from .process_group import set_process_group  # noqa: E402
from .profile import (  # noqa: E402
    FusionProfile,
    KernelProfile,
    PythonProfiler,
    get_fusion_profile,
    reset_profiler,
)
from .sharding import (  # noqa: E402
    Sharding,
    from_partition_spec,
    from_placements,
    from_shardy,
)
from .simulation import simulate  # noqa: E402
from .statement import Statement  # noqa: E402
from .trace import merge_traces  # noqa: E402
from .translation import clone, translate_fusion  # noqa: E402
from .unsupported_ops import add_unsupported_ops  # noqa: E402
from .validation import (  # noqa: E402
    get_val_tolerances,
    validate_with_auto_inferred_outputs,
)
from .vector import Vector  # noqa: E402

if TYPE_CHECKING:
    from . import autograd, nn, planner
    from .planner import autoshard, measure_links, plan_costs

add_unsupported_ops()
Tensor = TensorView
Val = Scalar

__all__ = [
    "BroadcastOp",
    "CacheOp",
    "Communicator",
    "CommunicatorBackend",
    "CompileParams",
    "DataType",
    "DeviceMesh",
    "Error",
    "Expr",
    "Fusion",
    "FusionCache",
    "FusionDefinition",
    "FusionExecutorCache",
    "FusionGuard",
    "FusionProfile",
    "HeuristicParams",
    "IdMappingMode",
    "InternalError",
    "IterDomain",
    "KernelExecutor",
    "KernelProfile",
    "LRUCache",
    "LaunchParams",
    "LoadStoreOpType",
    "LruFusionCache",
    "MatmulParams",
    "MemoryType",
    "Merge",
    "ParallelType",
    "PeerError",
    "PointwiseParams",
    "PythonProfiler",
    "ReductionParams",
    "ReshapeOp",
    "Scalar",
    "SchedulerHyperParameters",
    "SchedulerType",
    "Sharding",
    "Split",
    "SqueezeOp",
    "Statement",
    "Tensor",
    "TensorDomain",
    "TensorView",
    "UnsupportedError",
    "Val",
    "Vector",
    "__version__",
    "autograd",
    "autoshard",
    "clone",
    "compute_contiguity",
    "compute_tensor_descriptor",
    "define_scalar",
    "define_tensor",
    "disable_automatic_serialization",
    "enable_automatic_serialization",
    "execute_with_dtensors",
    "from_partition_spec",
    "from_placements",
    "from_shardy",
    "get_fusion_profile",
    "get_val_tolerances",
    "measure_links",
    "merge_traces",
    "multidevice",
    "nn",
    "ops",
    "parse_ir",
    "plan_costs",
    "planner",
    "pytorch_utils",
    "reset_profiler",
    "schedule",
    "serialize",
    "set_process_group",
    "simulate",
    "translate_fusion",
    "validate_with_auto_inferred_outputs",
    "version",
]


_MODULES = ("autograd", "nn", "planner")
_PLANNER = ("autoshard", "measure_links", "plan_costs")


def __getattr__(name: str) -> Any:
    """Import the modules for torch's autograd and the planner when they are first asked for."""
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name in _PLANNER:
        return getattr(importlib.import_module(".planner", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
