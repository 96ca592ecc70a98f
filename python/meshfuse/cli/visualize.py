# SPDX-License-Identifier: BSD-3-Clause
"""``meshfuse visualize``: a program as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .command import Failure, library, show_json
from .command import command as make_command
from .output import say
from .program_file import FILE, UNEVEN, load
from .sizes import SIZE_OPTION, read_sizes


@make_command()
@FILE
@UNEVEN
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="OUT.html",
    help="The page to write; without it the picture is printed as text.",
)
@SIZE_OPTION
def command(
    file: str, uneven: bool, output: Path | None, size: tuple[str, ...], as_json: bool
) -> None:
    """Draw FILE: tensors, how they are divided, and communications.

    Sizes that are open and not given are drawn as ones that all splits divide.
    """
    sizes = read_sizes(size)
    fd: Any = load(file, uneven)
    if output is None:
        from .screen import has_colours

        draw = library("visualize", "pictures", "terminal")
        text = draw(fd, sizes=sizes, colour=not as_json and has_colours())
        show_json({"text": text}) if as_json else say(text)
        return
    if not output.absolute().parent.is_dir():
        raise Failure(f"visualize: there is no folder {output.absolute().parent}. Make it first.")
    fd.visualize(output, sizes=sizes)
    count = output.stat().st_size
    if as_json:
        show_json({"path": str(output), "bytes": count})
    else:
        say(f"{output}: {count} bytes")
