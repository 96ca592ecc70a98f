# SPDX-License-Identifier: BSD-3-Clause
"""Programs as text for terminals, graphs for Graphviz, and frames for notebooks."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
import sys

import pytest
import torch
from op_examples import REGISTERED, examples_of
from programs import X, lay, mlp, place, shard

import meshfuse
from meshfuse import DataType, DeviceMesh, FusionDefinition, pictures

SHAPES_4_6 = """\
T0 = input  [4@x, 6]
T1 = relu(T0)  [4@x, 6]

T0: f32[4@x, 6] mesh(x=2)
      0   1   2   3   4   5
  0   0   0   0   0   0   0
  1   0   0   0   0   0   0
  2   1   1   1   1   1   1
  3   1   1   1   1   1   1
"""


def relu() -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6])
        fd.add_output(fd.ops.relu(x))
        place(DeviceMesh(range(2)), x)
        shard(x, 0, 2)
    return fd


def test_terminal_without_colours():
    text = pictures.terminal(relu(), colour=False)
    assert text.startswith(SHAPES_4_6)


def test_terminal_marks_communications_and_partial_sums():
    text = pictures.terminal(mlp(DeviceMesh(range(4)), out_seq=True), colour=False)
    assert "<- reduce-scatter over mesh_x, 576 B per device" in text
    assert "T11: f32[4, 8, 6] partial over x mesh(x=4)" in text and "+0 1 2 3" in text
    assert "\x1b" not in text


def test_axes_of_the_largest_size():
    """Only what is drawn is counted through."""
    largest = (1 << 63) - 1
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.relu(fd.define_tensor([largest, largest])))
    assert f"0:{largest}" in pictures.terminal(fd)
    assert str(largest) in fd.visualize()


def test_only_the_slices_that_are_shown_are_made():
    with FusionDefinition() as fd:
        x = fd.define_tensor([16] * 20)
        fd.add_output(fd.ops.relu(x))
        place(DeviceMesh(range(2)), x)
        shard(x, 2, 2)
    text = pictures.terminal(fd, colour=False)
    assert f"  [0, 0, :{', 0' * 16}, :]\n" in text
    assert f"  and {16**18 - 6} more slices\n" in text


def test_terminal_of_a_program_of_scalars():
    with FusionDefinition() as fd:
        s = fd.define_scalar(dtype=DataType.Double)
        fd.add_output(fd.ops.mul(s, s))
        fd.add_output(s)
    assert pictures.terminal(fd, colour=False) == (
        "s0 = input  scalar\nresult 0 = mul(s0, s0)  scalar\n\nno tensors\n"
    )
    assert "n0 -> n1;" in fd.to_dot() and '"summary"' in fd.visualize()


STRANGE = [
    "\\",
    'a"b',
    'a\\"b',
    "a\u2028b",
    "a\x85b",
    "a\x0bb",
    "a\nb",
    "\x1b[31m",
    "</script><!--",
]


@pytest.mark.parametrize("name", STRANGE, ids=ascii)
def test_names_of_mesh_axes_may_have_any_characters(name):
    """They neither end the text of a program early, nor a line of the picture."""
    mesh = DeviceMesh(torch.arange(4).view(2, 2), names=(name, "rows"))
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6])
        fd.add_output(fd.ops.relu(x))
        lay(x, mesh, [(0, X)])
    text = pictures.terminal(fd, colour=False)
    (line,) = [line for line in text.splitlines() if line.startswith("T1: f32[4@x, 6]")]
    assert line.endswith('", x=2 "rows")') and line.isprintable()
    page = fd.visualize()
    assert page.count("</script>") == 2 and "<!--" not in page and fd.to_dot()


def test_terminal_with_colours(monkeypatch):
    pytest.importorskip("rich")
    text = pictures.terminal(relu(), colour=True)
    assert "\x1b[" in text
    assert re.sub(r"\x1b\[[\d;]*m| +$", "", text, flags=re.MULTILINE).startswith("T0 = input")
    for name in ("rich", "rich.console", "rich.text"):
        monkeypatch.setitem(sys.modules, name, None)
    assert pictures.terminal(relu(), colour=True) == pictures.terminal(relu(), colour=False)


def test_dot_has_nodes_edges_and_communications():
    text = mlp(DeviceMesh(range(4)), out_seq=True).to_dot()
    assert text.count("[label=") == 12
    label = "T8 = sum\\n[4, 8@x, 6]\\nreduce-scatter over mesh_x, 576 B per device"
    assert f'"{label}\\n[4, 8, 6] -> [4, 2, 6] on each device"' in text


@pytest.mark.skipif(not shutil.which("dot"), reason="no Graphviz")
def test_graphviz_reads_dot():
    fd = mlp(DeviceMesh(range(4)), in_seq=True, out_seq=True)
    done = subprocess.run(["dot", "-Tplain"], input=fd.to_dot(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "reduce-scatter over mesh_x" in done.stdout


def test_notebook_has_the_page_in_a_frame():
    fd = relu()
    frame = fd._repr_html_()
    assert html.unescape(re.search(r'srcdoc="([^"]*)"', frame)[1]) == fd.visualize()


def test_notebook_shows_a_tensor():
    """As it is compiled, its division taken from a neighbour; the page is that of one tensor."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, -1])
        y = fd.ops.relu(x)
        fd.add_output(y)
        place(DeviceMesh(range(2)), x)
        shard(x, 0, 2)
        open_one = page_of(x)  # not complete yet
    assert y._repr_html_().startswith('<iframe title="meshfuse tensor T1" srcdoc="')
    page = page_of(y)
    assert '"on_mesh":{"x":0}' in page and "from T0 along" in page
    assert '"name":"T0"' not in page and '"nodes":[]' in page and "http" not in strip_svg(page)
    assert '"on_mesh":{"x":0}' in open_one and '"assumed":{"T0.1":4}' in open_one


def page_of(tv):
    return html.unescape(re.search(r'srcdoc="([^"]*)"', tv._repr_html_())[1])


def strip_svg(page):
    return page.replace("http://www.w3.org/2000/svg", "")


def test_notebook_shows_a_tensor_of_a_program_that_is_refused():
    with FusionDefinition(strict=True) as fd:
        x, w = fd.define_tensor([4, 8]), fd.define_tensor([8, 6])
        y = fd.ops.matmul(x, w)
        fd.add_output(y)
        place(DeviceMesh(range(2)), x, w)
        shard(x, 1, 2)
        shard(w, 0, 2)
        unused = fd.ops.relu(x)
    assert '"on_mesh":{"x":1}' in page_of(x)
    assert unused._repr_html_() is None


def test_notebook_has_nothing_where_there_is_no_program():
    assert FusionDefinition()._repr_html_() is None
    with FusionDefinition(strict=True) as fd:
        x, w = fd.define_tensor([4, 8]), fd.define_tensor([8, 6])
        fd.add_output(fd.ops.matmul(x, w))
        place(DeviceMesh(range(2)), x, w)
        shard(x, 1, 2)
        shard(w, 0, 2)
    assert fd._repr_html_() is None


@pytest.mark.parametrize("op", REGISTERED)
def test_every_op_has_pictures(op):
    """Also those of several results or of scalars; the first axis is divided where it may be."""
    for example in examples_of(op):
        with FusionDefinition() as fd:
            operands = [fd.from_pytorch(t) for t in example.tensors]
            for result in example.call(fd.ops, operands):
                fd.add_output(result)
            for tv in operands:
                place(DeviceMesh(range(2)), tv)
                if tv.ndim and not tv.axis(0).is_broadcast():
                    shard(tv, 0, 2)
        try:
            fd.compiled_ir()
        except (meshfuse.Error, meshfuse.UnsupportedError):
            continue  # the op refuses the division
        assert fd.visualize() and fd.to_dot() and pictures.terminal(fd)
