# SPDX-License-Identifier: BSD-3-Clause
"""Layers that came with the front ends whose scripts meshfuse runs."""
