# SPDX-License-Identifier: BSD-3-Clause
"""Names of options that ``execute`` and the environment accept."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable

from .exceptions import Error

ENABLE = frozenset(
    """host_ir_lowering insert_resharding_after wait_debugger cutlass_scheduler fuse_matmul
    fuse_multiple_matmuls id_model id_model_extra_validation io_to_lower_precision kernel_db
    kernel_debug kernel_lineinfo kernel_profile memory_promotion reuse_zeroed_memory
    resize_scheduler static_fusion_count warn_register_spill tma_pointwise tma_inner_persistent
    tma_reduction ws_normalization host_ir_jit fast_math p2p_protocol p2p_transport
    multicast_protocol""".split()
)
DISABLE = frozenset(
    """multidevice infer_contiguity matmul_expr_eval parallel_compile kernel_reuse
    python_inline_definitions compile_to_sass contig_indexing expr_simplify fallback fma
    greedy_scheduler grouped_grid_welford_outer_opt index_hoist magic_zero nvrtc_caching nvtx
    parallel_serde predicate_elimination var_name_remapping welford_vectorization resize_scheduler
    reuse_mismatched_type_registers""".split()
)
DUMP = frozenset(
    """fusion_ir fusion_ir_math fusion_ir_original fusion_ir_preseg segmented_fusion host_ir
    communication python_definition fusion_args""".split()
)


_PASSES = ("before:", "after:")


def check_options(enable: Iterable[str], disable: Iterable[str]) -> None:
    """Raise an Error that names an option which does not exist."""
    for kind, names, known in (("enable", enable, ENABLE), ("disable", disable, DISABLE)):
        for name in names:
            if _bare(name) not in known:
                raise Error(
                    f"Unrecognized {kind}_option: {name}. Known: {', '.join(sorted(known))}."
                )


def environment(kind: str) -> frozenset[str]:
    """Return the options that MESHFUSE_ENABLE, _DISABLE or _DUMP (or NVFUSER_*) name.

    Unknown names are left out with a warning. ``before:<pass>`` and ``after:<pass>`` of _DUMP are
    kept: the compiler prints these, and warns of unknown passes.
    """
    known = {"ENABLE": ENABLE, "DISABLE": DISABLE, "DUMP": DUMP}[kind]
    variable = f"MESHFUSE_{kind}"
    text = os.environ.get(variable) or os.environ.get(f"NVFUSER_{kind}", "")
    names = [name.strip() for name in text.split(",") if name.strip()]
    good = {name for name in names if _bare(name) in known or name.startswith(_PASSES)}
    for name in names:
        if name not in good:
            warnings.warn(
                f"{variable}: '{name}' is not an option. Known: {', '.join(sorted(known))}.",
                stacklevel=2,
            )
    return frozenset(_bare(name) for name in good)


def _bare(name: str) -> str:
    """Name without its argument: ``p2p_protocol(get)`` is ``p2p_protocol``."""
    return name.partition("(")[0]
