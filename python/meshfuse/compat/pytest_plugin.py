# SPDX-License-Identifier: BSD-3-Clause
"""pytest plugin under which tests that import ``nvfuser`` or ``nvfuser_direct`` get meshfuse.

Usage: ``pytest -p meshfuse.compat.pytest_plugin``, with ``--mf-cpu`` for tests that hard-code CUDA.
"""

from __future__ import annotations

from . import install

install()  # when the plugin is loaded, which is before any conftest.py
