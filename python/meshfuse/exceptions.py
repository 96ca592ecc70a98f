# SPDX-License-Identifier: BSD-3-Clause
"""Exceptions that meshfuse raises."""

from __future__ import annotations

from ._C import Error, InternalError, PeerError, UnsupportedError

__all__ = ["Error", "InternalError", "PeerError", "UnsupportedError"]
