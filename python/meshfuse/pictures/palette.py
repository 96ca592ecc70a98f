# SPDX-License-Identifier: BSD-3-Clause
"""The colours of devices; black text can be read on each of them, on light and dark pages."""

from __future__ import annotations

#: Of device after device; each new one is as far as it can be from those before it (in OKLab).
TINTS = (
    *("#7cc4f0", "#f6b45f", "#86d39a", "#f09ab5", "#b7a6f2", "#e5d45c", "#6fd6cf", "#d0a98a"),
    *("#be4cb2", "#dc4640", "#407cee", "#528e82", "#40a640", "#a67082", "#9a8240", "#ee82ee"),
    *("#9a70ee", "#e2d6e2", "#7682b8", "#a6f46a", "#f45e94", "#fa8258", "#a6b240", "#94a6ac"),
    *("#40fab2", "#fab8fa", "#40a0e2", "#b87cc4", "#d0e2b2", "#64d058", "#be6a40", "#40b28e"),
)
#: The same among the 256 colours of a terminal.
TERMINAL_TINTS = (
    *(81, 215, 115, 211, 147, 185, 80, 180, 133, 167, 33, 66, 35, 132, 101, 213),
    *(135, 188, 103, 155, 204, 209, 142, 109, 49, 219, 38, 140, 187, 77, 166, 72),
)
