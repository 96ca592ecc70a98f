# SPDX-License-Identifier: BSD-3-Clause
"""What a definition says about itself: texts, scripts, records, checks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch

from . import explanation, repro, validation
from ._C import Error, Fusion, FusionExecutorCache, Scalar, TensorView
from .explanation import Explanation
from .lifecycle import Lifecycle, Phase
from .profile import FusionProfile
from .progress import busy
from .python_text import function_text
from .repro_on_failure import bundle_of_internal_error

if TYPE_CHECKING:
    from ._C import DeviceMesh
    from .check import CheckReport
    from .definition import FusionDefinition

NO_FUSION = (
    "Fusion does not exist! Use `with FusionDefinition() as fd: ...` to define a fusion. "
    "Or subclass FusionDefinition and write its definition() method."
)


class Inspection:
    """Methods of FusionDefinition that add nothing to the program."""

    _api_name: str
    _id: int | None
    _lifecycle: Lifecycle
    _cache: FusionExecutorCache | None
    _profile: FusionProfile | None
    _profile_key: str | None
    _kinds: list[Any] | None
    _debug_output: str | None
    segments: list[Any]
    segment_index_space_maps: dict[Any, dict[int, int]]
    map_value_to_last_used_segment: dict[int, int]

    if TYPE_CHECKING:  # written in FusionDefinition
        fusion: property
        execute: Callable[..., list[torch.Tensor]]
        _executor: Callable[..., FusionExecutorCache]

    def _defined(self) -> Fusion:
        if self._lifecycle.phase is Phase.UNDEFINED:
            self._executor()
        fusion: Fusion | None = self.fusion
        if fusion is None:
            raise NotImplementedError(NO_FUSION)
        return fusion

    def ir(self) -> str:
        """Return the program as text that ``meshfuse.parse_ir`` reads."""
        return self._defined().ir()

    def compiled_ir(self) -> str:
        """Return the program after the passes, communications inserted, as text."""
        cache = self._executor()
        with bundle_of_internal_error(cache.fusion()), busy("compiling"):
            return cache.compiled_ir()

    def plan(self) -> str:
        """Return the steps of the plan that ran last."""
        return self._executor().plan()

    def explain(
        self,
        suggest: bool = False,
        *,
        inputs: Iterable[Any] | None = None,
        sizes: Mapping[Any, int | Sequence[int]] | None = None,
    ) -> Explanation:
        """Say how every tensor is divided and why, and what is communicated, why, and how much.

        Needs no ranks: it works in one process for a mesh of any size.

        Args:
            suggest: Try every annotation of one tensor, in place of what it has or where it has
                none, and list those that are modelled to take less time, or as much with less
                memory (docs/planner.md).
            inputs: Global tensors, as ``sim.run`` takes them, for sizes that the program leaves
                open; values are not read, so ``torch.empty(..., device="meta")`` will do.
            sizes: Instead: name of an input (or the input) to its global sizes, or name of an open
                size (``"T0.0"``) to a number.

        Raises:
            meshfuse.Error: the passes refuse the program; or the bytes of a communication depend
                on a size that is not given; or sizes contradict each other or the program.
        """
        fusion = self._executor().fusion()
        with bundle_of_internal_error(fusion):
            return explanation.explain(fusion, inputs, sizes, suggest)

    def visualize(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        inputs: Iterable[Any] | None = None,
        sizes: Mapping[Any, int | Sequence[int]] | None = None,
        profile: FusionProfile | None = None,
    ) -> str:
        """Return a page that shows the program in a browser, and write it to ``path`` if given.

        It shows which device holds which elements of every tensor, the order in memory, the splits
        of the axes, the operations with the communications between them, and the time of each step
        if there is a profile. It is one HTML file that needs no network.

        Args:
            path: File to write.
            inputs: Global tensors for sizes that the program leaves open, as for ``explain``.
            sizes: Instead: their sizes. Without them a size is that of the profile, or one that
                all splits divide.
            profile: What ``PythonProfiler`` recorded. None: what the last
                ``execute(profile=True)`` did, if there was one.

        Raises:
            meshfuse.Error: the passes refuse the program, or sizes do not fit it.

        Example:
            >>> from meshfuse import FusionDefinition
            >>> with FusionDefinition() as fd:
            ...     fd.add_output(fd.ops.relu(fd.define_tensor([4, 6])))
            >>> fd.visualize().startswith("<!DOCTYPE html>")
            True
        """
        from .pictures import visualize

        definition = cast("FusionDefinition", self)
        return visualize(definition, path, inputs, sizes, profile or self._profile)

    def to_dot(
        self,
        *,
        inputs: Iterable[Any] | None = None,
        sizes: Mapping[Any, int | Sequence[int]] | None = None,
    ) -> str:
        """Return the compiled program as a graph for Graphviz, its communications filled boxes.

        Args:
            inputs: Global tensors for sizes that the program leaves open, as for ``explain``.
            sizes: Instead: their sizes.

        Example:
            >>> from meshfuse import FusionDefinition
            >>> with FusionDefinition() as fd:
            ...     fd.add_output(fd.ops.relu(fd.define_tensor([4, 6])))
            >>> "n0 -> n1;" in fd.to_dot()
            True
        """
        from .pictures import to_dot

        return to_dot(cast("FusionDefinition", self), inputs, sizes)

    def _repr_html_(self) -> str | None:
        """Return the page of ``visualize`` for notebooks; None where the program has none."""
        if self._lifecycle.phase is not Phase.CLOSED:
            return None
        from .pictures import notebook

        try:
            return notebook(cast("FusionDefinition", self), self._profile)
        except (Error, NotImplementedError):  # repr() is shown instead
            return None

    def fusion_ir(self) -> str:
        """Return the program as a listing of operations."""
        return self._defined().print_math(False)

    def last_scheduled_fusion_ir(self, tensor_transforms: bool = False, **_: Any) -> str:
        """Return the program after the passes; needs an execution."""
        if self._cache is None:
            raise Error("Invalid fusion definition! It was not executed yet. Call execute first.")
        return self._cache.get_most_recent_scheduled_ir()

    def scheduled_fusion_ir_for(
        self, inputs: Iterable[Any], tensor_transforms: bool = False, **_: Any
    ) -> str:
        """Return the program after the passes; needs an execution with inputs of this kind."""
        return self._executor().get_scheduled_ir(inputs)

    def validate_definition(self) -> tuple[bool, str | None]:
        """Return (True, None), or False and what is wrong."""
        try:
            self._executor().compiled_ir()
        except (Error, NotImplementedError) as error:
            return False, str(error)
        return True, None

    def profile(self) -> FusionProfile:
        """Return what the last ``execute(profile=True)`` recorded.

        Raises:
            ValueError: there was no such call.
        """
        if self._profile is None:
            raise ValueError(
                "The execute() method was not previously called with profiling enabled! "
                "Call execute(inputs, profile=True)."
            )
        return self._profile

    def check(
        self,
        mesh: int | Sequence[int] | DeviceMesh | None = None,
        rtol: float | None = None,
        examples: int = 20,
        seed: int = 0,
    ) -> CheckReport:
        """Compare the program on the simulated mesh with the program alone, on random inputs.

        Symbolic sizes, 0 and 1 among them, values and strides are drawn anew for each example.

        Args:
            mesh: The mesh to which the program's splits are carried over: a size, a shape or a
                DeviceMesh. None for the meshes that the program has.
            rtol: Allowed difference relative to an element, and to the root mean square of its
                tensor. None: what rounding does, from the types and the longest reduction.
            examples: Number of examples.
            seed: Start of the random numbers.

        Raises:
            AssertionError: a result differs. The message has the smallest failing program that was
                found and a script that shows it.
            meshfuse.Error: the splits cannot be carried over, or every example is refused.

        Example:
            >>> import meshfuse
            >>> with meshfuse.FusionDefinition() as fd:
            ...     x, w = fd.define_tensor([-1, -1]), fd.define_tensor([-1, 6])
            ...     fd.add_output(fd.ops.matmul(x, w))
            ...     w.set_device_mesh(meshfuse.DeviceMesh(range(2)))
            ...     _ = w.outer_split(-1, 2)
            ...     w.axis(-2).parallelize(meshfuse.ParallelType.mesh_x)
            >>> fd.check().examples, fd.check(mesh=3, examples=5).examples
            (20, 5)
        """
        from .check import check

        return check(cast("FusionDefinition", self), mesh, rtol, examples, seed)

    def inputs(self) -> list[int]:
        """Return the numbers of the inputs: tensors and scalars are counted together."""
        return self._numbers(self._defined().inputs())

    def outputs(self) -> list[int]:
        """Return the numbers of the outputs, behind those of the inputs."""
        return self._numbers(self._defined().outputs())

    def extents(self) -> list[int]:
        """Return one negative number for every size of the input tensors."""
        tensors = [v for v in self._defined().inputs() if isinstance(v, TensorView)]
        return [-1 - i for i in range(sum(tensor.ndim for tensor in tensors))]

    def id(self) -> int | None:
        """Return the number given to the constructor, or by the FusionCache."""
        return self._id

    def _numbers(self, values: Iterable[TensorView | Scalar]) -> list[int]:
        fusion = self._defined()
        records: list[Any] = [*fusion.inputs()]
        records += [tensor for tensor in fusion.tensors() if not tensor.is_fusion_input()]
        number = {record: k for k, record in enumerate(records)}
        return [number[value] for value in values if value in number]

    # ---- scripts

    def __repr__(self) -> str:
        """Return a Python function that adds the same program to a definition."""
        fusion: Fusion | None = self.fusion
        if fusion is None:
            return f"<{self._api_name}.FusionDefinition, not defined>"
        complete = self._lifecycle.phase is Phase.CLOSED
        name = repro.function_name(self._api_name, self._id, complete)
        return function_text(fusion, name, self._api_name == repro.CLASS_STYLE)

    def repro_script_for(self, inputs: Iterable[Any] | None = None) -> str:
        """Return a script that defines the program again and, with inputs, executes it."""
        kinds = None if inputs is None else repro.input_kinds(inputs)
        return repro.repro_script(self._defined(), self._api_name, self._id, kinds)

    def last_repro_script(self) -> str:
        """Return a script with inputs like those of ``execute(inputs, save_repro_inputs=True)``.

        Raises:
            AssertionError: there was no such call.
        """
        assert self._kinds is not None, (
            "fd.last_repro_script() cannot provide a repro because fd.execute(inputs, "
            "save_repro_inputs=True) was not executed!"
        )
        return repro.repro_script(self._defined(), self._api_name, self._id, self._kinds)

    def save_repro(
        self,
        path: str | os.PathLike[str],
        inputs: Iterable[Any] | None = None,
        *,
        values: bool = False,
        seed: int = 0,
    ) -> None:
        """Write a repro bundle: one file that ``meshfuse replay PATH`` runs elsewhere.

        It holds the program, its options, versions, MESHFUSE_* variables, and of the inputs
        shapes, strides and types (docs/cli.md). It holds no code.

        Args:
            path: The file.
            inputs: Global tensors and numbers, as ``sim.run`` takes them. Numbers are kept.
            values: Keep the elements of tensors, too.
            seed: Where they are not kept, of the random elements of a replay.

        Raises:
            meshfuse.Error: the file cannot be written.

        Example:
            >>> import tempfile, torch
            >>> from meshfuse import FusionDefinition
            >>> from meshfuse.repro_bundle import load_bundle
            >>> from meshfuse.repro_replay import replay
            >>> with FusionDefinition() as fd:
            ...     fd.add_output(fd.ops.relu(fd.define_tensor([-1])))
            >>> with tempfile.NamedTemporaryFile() as file:
            ...     fd.save_repro(file.name, [torch.randn(8)])
            ...     replay(load_bundle(file.name)).kind
            'equal'
        """
        from .repro_bundle import make_bundle, save_bundle

        self._executor()  # the hooks of a class run
        bundle = make_bundle(self._defined(), inputs, values=values, seed=seed)
        save_bundle(bundle, path)

    def debug_output(self) -> str | None:
        """Return what the last ``execute(capture_debug_output=True)`` kept; None without one."""
        return self._debug_output

    def _script_for(self, inputs: Iterable[Any]) -> str:
        """Return a script for the log of a failure; nothing where none can be made."""
        if self._lifecycle.phase is not Phase.CLOSED or not isinstance(inputs, list | tuple):
            return ""
        try:
            return self.repro_script_for(inputs)
        except Exception:  # the failure itself is what matters
            return ""

    # ---- comparison

    def validate(
        self,
        inputs: Iterable[Any],
        reference_outputs: Sequence[torch.Tensor] | None = None,
        device: int | str | torch.device | None = None,
        **kwargs: Any,
    ) -> list[torch.Tensor]:
        """Execute, compare the results with references, and return them.

        Args:
            inputs: As for ``execute``.
            reference_outputs: One tensor per result; None: what the program gives without its
                schedule.
            device: As for ``execute``.
            kwargs: Other options of ``execute``.

        Raises:
            AssertionError: a result differs by more than rounding explains.
        """
        inputs = list(inputs)
        copies = [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]
        outputs = self.execute(inputs, device=device, **kwargs)
        fusion = self._defined()
        if reference_outputs is None:
            validation.validate_with_auto_inferred_outputs(fusion, outputs, copies)
        else:
            validation.compare(fusion, outputs, reference_outputs, copies)
        return outputs

    def getValTolerances(self, inputs: Iterable[Any]) -> validation.Tolerances:
        """Return (atol, rtol) of every output; see ``meshfuse.get_val_tolerances``."""
        return validation.get_val_tolerances(self._defined(), inputs)

    def segment(self, inputs: Iterable[Any]) -> list[Any]:
        """Return the parts that the program is cut into: none, since it always runs as one."""
        self._executor()
        self.segments = []
        self.segment_index_space_maps = {}
        self.map_value_to_last_used_segment = {}
        return self.segments
