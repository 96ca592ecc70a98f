# SPDX-License-Identifier: BSD-3-Clause
"""The names of the package ``nvfuser``: class-style definitions."""

from __future__ import annotations

from ... import contrib, pytorch_utils
from ..._C import (
    CacheOp,
    Communicator,
    DataType,
    DeviceMesh,
    IdMappingMode,
    LoadStoreOpType,
    MemoryType,
    ParallelType,
    Scalar,
    SchedulerType,
)
from ..._C import TensorView as Tensor
from ...cuda_names import (
    CompileParams,
    HeuristicParams,
    LaunchParams,
    MatmulParams,
    PointwiseParams,
    ReductionParams,
    SchedulerHyperParameters,
)
from ...descriptor import compute_contiguity, compute_tensor_descriptor
from ...fusion_cache import (
    FusionCache,
    disable_automatic_serialization,
    enable_automatic_serialization,
    serialize,
)
from ...package_version import __version__, version
from ...profile import FusionProfile, KernelProfile
from ...translation import clone
from ...vector import Vector
from ..script_definition import ClassStyleDefinition as FusionDefinition
from . import nvfuser_version

__all__ = [
    "CacheOp",
    "Communicator",
    "CompileParams",
    "DataType",
    "DeviceMesh",
    "FusionCache",
    "FusionDefinition",
    "FusionProfile",
    "HeuristicParams",
    "IdMappingMode",
    "KernelProfile",
    "LaunchParams",
    "LoadStoreOpType",
    "MatmulParams",
    "MemoryType",
    "ParallelType",
    "PointwiseParams",
    "ReductionParams",
    "Scalar",
    "SchedulerHyperParameters",
    "SchedulerType",
    "Tensor",
    "Vector",
    "__version__",
    "clone",
    "compute_contiguity",
    "compute_tensor_descriptor",
    "contrib",
    "disable_automatic_serialization",
    "enable_automatic_serialization",
    "nvfuser_version",
    "pytorch_utils",
    "serialize",
    "version",
]
