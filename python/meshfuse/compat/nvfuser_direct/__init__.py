# SPDX-License-Identifier: BSD-3-Clause
"""The names of the package ``nvfuser_direct``: definitions whose tensors are scheduled in place."""

from __future__ import annotations

import sys
import warnings

from ... import idm, multidevice, nvf_cutlass, ops, pytorch_utils, schedule
from ..._C import (
    CacheOp,
    CommunicatorBackend,
    DataType,
    Expr,
    Fusion,
    FusionGuard,
    IdMappingMode,
    IterDomain,
    LoadStoreOpType,
    MemoryType,
    Merge,
    ParallelType,
    SchedulerType,
    Split,
    TensorDomain,
    TensorView,
)
from ..._C import Scalar as Val
from ...cuda_names import (
    CompileParams,
    HeuristicParams,
    KernelExecutor,
    LaunchParams,
    MatmulParams,
    PointwiseParams,
    ReductionParams,
    SchedulerHyperParameters,
)
from ...descriptor import compute_tensor_descriptor
from ...dtensor import execute_with_dtensors
from ...executor_cache import FusionExecutorCache
from ...expr_kinds import BroadcastOp, ReshapeOp, SqueezeOp
from ...input_definitions import define_scalar, define_tensor
from ...lru_cache import LRUCache, LruFusionCache
from ...package_version import __version__, version
from ...profile import (
    FusionProfile,
    KernelProfile,
    PythonProfiler,
    get_fusion_profile,
    reset_profiler,
)
from ...statement import Statement
from ...translation import translate_fusion
from ...validation import get_val_tolerances, validate_with_auto_inferred_outputs
from .. import is_ours
from ..script_definition import DirectStyleDefinition as FusionDefinition
from . import nvfuser_direct_version

if "nvfuser" in sys.modules and not is_ours("nvfuser"):
    warnings.warn(
        "nvfuser_direct is meshfuse's, but nvfuser is another package: their objects do not mix. "
        "Call meshfuse.compat.install() before nvfuser is imported.",
        UserWarning,
        stacklevel=2,
    )

__all__ = [
    "BroadcastOp",
    "CacheOp",
    "CommunicatorBackend",
    "CompileParams",
    "DataType",
    "Expr",
    "Fusion",
    "FusionDefinition",
    "FusionExecutorCache",
    "FusionGuard",
    "FusionProfile",
    "HeuristicParams",
    "IdMappingMode",
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
    "PointwiseParams",
    "PythonProfiler",
    "ReductionParams",
    "ReshapeOp",
    "SchedulerHyperParameters",
    "SchedulerType",
    "Split",
    "SqueezeOp",
    "Statement",
    "TensorDomain",
    "TensorView",
    "Val",
    "__version__",
    "compute_tensor_descriptor",
    "define_scalar",
    "define_tensor",
    "execute_with_dtensors",
    "get_fusion_profile",
    "get_val_tolerances",
    "idm",
    "multidevice",
    "nvf_cutlass",
    "nvfuser_direct_version",
    "ops",
    "pytorch_utils",
    "reset_profiler",
    "schedule",
    "translate_fusion",
    "validate_with_auto_inferred_outputs",
    "version",
]
