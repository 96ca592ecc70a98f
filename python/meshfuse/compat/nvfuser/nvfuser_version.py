# SPDX-License-Identifier: BSD-3-Clause
"""The version as a class, as scripts import it."""

from __future__ import annotations

from ...package_version import Version

__all__ = ["Version"]
