# SPDX-License-Identifier: BSD-3-Clause
"""Runs scripts written for the packages ``nvfuser`` and ``nvfuser_direct`` without a change.

``install()`` makes both names importable; ``python -m meshfuse.compat script.py`` and pytest's
``-p meshfuse.compat.pytest_plugin`` call it first. See docs/compat.md.
"""

from __future__ import annotations

import importlib
import sys

from .cuda_to_cpu import redirect_cuda_to_cpu

__all__ = ["install", "redirect_cuda_to_cpu"]

# Package to its submodules: dotted names below it, and where they are below meshfuse.
_PACKAGES = {
    "nvfuser": {
        "pytorch_utils": "pytorch_utils",
        "nvfuser_version": "compat.nvfuser.nvfuser_version",
        "contrib": "contrib",
        "contrib.nn": "contrib.nn",
        "contrib.nn.normalization": "contrib.nn.normalization",
    },
    "nvfuser_direct": {
        "pytorch_utils": "pytorch_utils",
        "nvfuser_direct_version": "compat.nvfuser_direct.nvfuser_direct_version",
        "multidevice": "multidevice",
        "ops": "ops",
        "schedule": "schedule",
        "idm": "idm",
        "nvf_cutlass": "nvf_cutlass",
    },
}
_ROOT = __name__.rpartition(".")[0]


def install(overwrite: bool = False) -> None:
    """Make ``import nvfuser`` and ``import nvfuser_direct`` give meshfuse.

    Args:
        overwrite: Replace packages of these names that are loaded already.

    Raises:
        ImportError: another package of such a name is loaded, and is not to be replaced.

    Example:
        >>> from meshfuse import compat
        >>> compat.install()
        >>> from nvfuser_direct import FusionDefinition, DataType
        >>> FusionDefinition._api_name
        'nvfuser_direct'
    """
    for name in _PACKAGES:
        if name in sys.modules and not is_ours(name) and not overwrite:
            where = getattr(sys.modules[name], "__file__", None) or "an unknown place"
            raise ImportError(
                f"meshfuse.compat.install: another '{name}' is loaded already, from {where}. "
                "Call install() before it is imported, or pass overwrite=True.",
                name=name,
            )
    for name, submodules in _PACKAGES.items():
        if not is_ours(name):
            for loaded in [m for m in sys.modules if m == name or m.startswith(f"{name}.")]:
                del sys.modules[loaded]
        sys.modules[name] = importlib.import_module(f"{_ROOT}.compat.{name}")
        for below, source in submodules.items():
            sys.modules[f"{name}.{below}"] = importlib.import_module(f"{_ROOT}.{source}")


def is_ours(name: str) -> bool:
    """Return whether the loaded package of this name is meshfuse's."""
    module = sys.modules.get(name)
    return module is not None and module.__name__ == f"{_ROOT}.compat.{name}"
