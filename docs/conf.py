# SPDX-License-Identifier: BSD-3-Clause
"""How Sphinx makes the site of these pages: `make docs`.

The pages are Markdown that reads well without Sphinx too. So what only the site needs stands here:
the order of the pages, and pages for the files of the repository's top folder.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

import meshfuse
from meshfuse import _C

sys.path.insert(0, str(Path(__file__).parent))
import message_list

project = "meshfuse"
author = "the authors of meshfuse"
copyright = author
release = str(meshfuse.__version__)

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
myst_heading_anchors = 4
highlight_language = "none"
html_theme = "furo"
html_title = f"meshfuse {release}"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]

autodoc_member_order = "groupwise"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
python_display_short_literal_types = True

CONTENTS = {
    "To begin": ["quickstart", "install", "alternatives"],
    "Ideas": [
        "concepts/mesh",
        "concepts/domains",
        "concepts/did_loop_split",
        "concepts/factors",
        "concepts/propagation",
        "concepts/schedules",
        "concepts/resharding",
        "concepts/explain",
        "concepts/random",
    ],
    "Tutorials": [
        "tutorial/parallel_linear",
        "tutorial/transformer",
        "tutorial/from_nvfuser",
        "tutorial/from_dtensor",
        "tutorial/from_jax",
        "tutorial/wrong_sharding",
        "tutorial/hang",
    ],
    "Use": [
        "cli",
        "check",
        "autograd",
        "dtensor",
        "torchrun",
        "compat",
        "testing",
        "profiling",
        "pictures",
        "planner",
    ],
    "To look up": ["api", "ops", "passes", "ir", "errors", "messages", "phrasebook", "benchmarks"],
    "To extend": ["add_an_op", "add_a_pass", "contributing", "changelog", "security"],
}
# Pages of the site for files of the top folder.
TOP_FILES = {"contributing": "CONTRIBUTING", "changelog": "CHANGELOG", "security": "SECURITY"}
PICTURE = """```{raw} html
<p><a href="picture.html">Open the page of this program</a></p>
```"""


def contents() -> str:
    """Return the tables of contents for the side of every page."""
    return "".join(
        f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(pages) + "\n```\n"
        for caption, pages in CONTENTS.items()
    )


def change_source(app: Sphinx, page: str, source: list[str]) -> None:
    """Add what only the site has, and lead links to files of the top folder to their pages."""
    text = source[0]
    if page == "index":
        text += contents()
    elif page == "messages":
        text += message_list.page()
    up = "../" * (page.count("/") + 1)
    for name, file in TOP_FILES.items():
        text = text.replace(f"]({up}{file}.md)", f"]({'../' * page.count('/')}{name}.md)")
    if page == "pictures":
        text = text.replace("![The page", f"{PICTURE}\n\n![The page", 1)
    source[0] = text


def draw_picture(app: Sphinx, error: Exception | None) -> None:
    """Draw the program that begins the page on pictures."""
    if error is None and app.builder.format == "html":
        page = (Path(app.srcdir) / "pictures.md").read_text()
        program = page.split("```python\n")[1].split("```")[0]
        names: dict[str, Any] = {}
        exec(compile(program, "pictures.md", "exec"), names)
        names["fd"].visualize(Path(app.outdir) / "picture.html")


def declarations() -> dict[str, ast.FunctionDef]:
    """Return the functions and methods that the extension's stub declares, by dotted name."""
    found: dict[str, ast.FunctionDef] = {}
    for statement in ast.parse(Path(_C.__file__).with_name("_C.pyi").read_text()).body:
        if isinstance(statement, ast.FunctionDef):
            found[statement.name] = statement
        elif isinstance(statement, ast.ClassDef):
            bases = {ast.unparse(base).split("[")[0] for base in statement.bases}
            for name, function in list(found.items()):
                if name.split(".")[0] in bases:
                    found[f"{statement.name}.{name.split('.')[1]}"] = function
            for member in statement.body:
                if isinstance(member, ast.FunctionDef):
                    found[f"{statement.name}.{member.name}"] = member
    return found


DECLARED = declarations()


def signature_of_stub(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str, result: str
) -> tuple[str, str] | None:
    """Return the signature that the stub has, in place of that with names of C++ types."""
    declared = DECLARED.get(name.removeprefix("meshfuse."))
    if what not in ("function", "method") or declared is None:
        return None
    declared.args.args = [a for a in declared.args.args if a.arg != "self"]
    returns = "" if declared.returns is None else ast.unparse(declared.returns)
    return f"({ast.unparse(declared.args)})", returns


def setup(app: Sphinx) -> None:
    """Register what changes sources and signatures."""
    app.connect("source-read", change_source)
    app.connect("build-finished", draw_picture)
    app.connect("autodoc-process-signature", signature_of_stub)
