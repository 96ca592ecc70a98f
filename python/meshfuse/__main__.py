# SPDX-License-Identifier: BSD-3-Clause
"""``python -m meshfuse``: the command line."""

from __future__ import annotations

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
