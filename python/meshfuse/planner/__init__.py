# SPDX-License-Identifier: BSD-3-Clause
"""What a program costs on a mesh, before it runs there, and which annotations make it cheap."""

from __future__ import annotations

from .links import Device, Link, Links, Rate
from .measure import measure_links
from .plan_cost import CommunicationCost, PlanCost, plan_costs
from .sharded import autoshard

__all__ = [
    "CommunicationCost",
    "Device",
    "Link",
    "Links",
    "PlanCost",
    "Rate",
    "autoshard",
    "measure_links",
    "plan_costs",
]
