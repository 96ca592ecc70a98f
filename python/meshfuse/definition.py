# SPDX-License-Identifier: BSD-3-Clause
"""FusionDefinition: a tensor program, written as a ``with`` block or as a class."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from . import execution, explanation, failure
from ._C import (
    DataType,
    Error,
    Fusion,
    FusionExecutorCache,
    FusionGuard,
    Scalar,
    TensorView,
    UnsupportedError,
)
from .explanation import Explanation
from .lifecycle import Lifecycle, Phase
from .operators import Operators
from .outputs import add_output
from .profile import FusionProfile, PythonProfiler
from .pytorch_utils import python_scalar_to_nvfuser_dtype, torch_dtype_to_nvfuser_dtype
from .scalar_arguments import scalar_arguments, vector_arguments
from .schedule import SchedOperators
from .tensor_arguments import parse_tensor_arguments
from .unsupported import add_unsupported
from .vector import Vector

if TYPE_CHECKING:
    from ._C import DeviceMesh
    from .check import CheckReport

_NO_FUSION = (
    "Fusion does not exist! Use `with FusionDefinition() as fd: ...` to define a fusion. "
    "Or subclass FusionDefinition and write its definition() method."
)


class FusionDefinition:
    """A tensor program: define it, place its tensors on a mesh of devices, execute it.

    Example:
        >>> import torch
        >>> from meshfuse import FusionDefinition
        >>> with FusionDefinition() as fd:
        ...     a, b = fd.define_tensor([-1, 4]), fd.define_tensor([4, 6])
        ...     fd.add_output(fd.ops.matmul(a, b))
        >>> (out,) = fd.execute([torch.ones(2, 4), torch.ones(4, 6)])
        >>> out.shape
        torch.Size([2, 6])
    """

    Operators = Operators
    SchedOperators = SchedOperators
    _api_name = "meshfuse"

    fec: FusionExecutorCache  # set by the first execute()

    def __init__(
        self,
        id: int | None = None,
        max_length: int | None = None,
        *,
        strict: bool = False,
        uneven: bool = False,
        reduce_dtype: DataType | None = None,
    ) -> None:
        """Begin an empty definition.

        Args:
            id: A number of the caller's, returned by ``id()``.
            max_length: Greatest number of inputs, constants and ops; None for any.
            strict: Make communication that the program does not write down an error; the variable
                MESHFUSE_STRICT=1 does so for all programs.
            uneven: Allow axes that the devices do not divide evenly: each device has a chunk of
                ceil(size / devices), the last ones less, or nothing. Such sizes must be declared
                as numbers, and one outer split must divide the axis.
            reduce_dtype: Floating type of partial results and of their sums across devices, where
                it is wider than the result's, which is rounded once. None: the result's.
        """
        self._id = id
        self._lifecycle = Lifecycle(
            max_length, strict=strict, uneven=uneven, reduce_dtype=reduce_dtype
        )
        self._cache: FusionExecutorCache | None = None
        self._first_use = threading.RLock()
        self._profile: FusionProfile | None = None
        self._run: Any = None  # runs the compiled program; set by the first execute()
        self.ops = Operators(self._lifecycle)
        self.sched = SchedOperators(self._lifecycle)

    # ---- definition

    def __enter__(self) -> FusionDefinition:
        """Open the definition and make it the active one of this thread."""
        self._lifecycle.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the definition; one that raised is forgotten."""
        if error is None:
            self._lifecycle.close()
            return
        self._lifecycle.discard()
        if isinstance(error, Exception):
            failure.log_once(error, "defining a fusion")

    @property
    def fusion(self) -> Fusion | None:
        """The program; None before it is defined."""
        return self._lifecycle.fusion

    @property
    def _fusion(self) -> Fusion | None:
        return self._lifecycle.fusion

    @_fusion.deleter
    def _fusion(self) -> None:
        self._lifecycle.fusion = None

    def define_tensor(self, *args: Any, **kwargs: Any) -> TensorView:
        """Add a tensor input of a global shape.

        Takes ``(shape, contiguity=False, dtype=DataType.Float, is_cpu=False, stride_order=())``,
        where contiguity is a bool or one flag per dim in memory order, or
        ``(sizes, strides, dtype=DataType.Float, static_sizes=False, is_cpu=False)``. A size of -1
        is symbolic, 1 is broadcast.
        """
        fusion = self._lifecycle.for_definition("define_tensor")
        tensor = fusion.define_tensor(*parse_tensor_arguments(args, kwargs))
        fusion.add_input(tensor)
        return tensor

    def from_pytorch(self, tensor: torch.Tensor, static_sizes: bool = False) -> TensorView:
        """Add a tensor input like ``tensor``; its sizes other than 1 are symbolic unless static."""
        if tensor.device.type == "cpu" and tensor.dim() > 0:
            _reject_cpu_if_asked(self._api_name)
        return self.define_tensor(
            sizes=list(tensor.size()),
            strides=list(tensor.stride()),
            dtype=torch_dtype_to_nvfuser_dtype(tensor.dtype),
            static_sizes=static_sizes,
            is_cpu=tensor.device.type == "cpu" and tensor.dim() == 0,
        )

    def define_scalar(self, *args: Any, **kwargs: Any) -> Scalar:
        """Add a scalar input ``(dtype=DataType.Double)``, or a constant ``(value, dtype=None)``."""
        fusion = self._lifecycle.for_definition("define_scalar")
        scalar = _make_scalar(fusion, *scalar_arguments(args, kwargs))
        if scalar.is_symbolic():
            fusion.add_input(scalar)
        return scalar

    def define_constant(self, value: complex, dtype: DataType | None = None) -> Scalar:
        """Add a constant; the same as ``define_scalar(value, dtype)``."""
        return self.define_scalar(value, dtype)

    def define_vector(self, *args: Any, **kwargs: Any) -> Vector:
        """Add ``size`` Int inputs, or hold ``(values, dtype=DataType.Int)`` as constants."""
        self._lifecycle.for_definition("define_vector")
        values, dtype = vector_arguments(args, kwargs)
        if isinstance(values, int):
            return Vector([self.define_scalar(None, dtype) for _ in range(values)])
        scalars = [v if isinstance(v, Scalar) else self.define_scalar(v, dtype) for v in values]
        return Vector(scalars)

    def add_output(
        self,
        output: TensorView | Scalar,
        alias_input: TensorView | Sequence[int] | None = None,
        *,
        stride_order: Sequence[int] | None = None,
    ) -> None:
        """Add a result.

        Args:
            output: A tensor or scalar of this definition.
            alias_input: An input whose memory takes the result, which is then not returned; or a
                sequence, which is a stride order.
            stride_order: Place of each dim in memory, 0 innermost.
        """
        fusion = self._lifecycle.for_definition("add_output")
        add_output(fusion, output, alias_input, stride_order)

    # ---- execution

    def execute(
        self,
        inputs: Iterable[Any],
        *,
        device: int | str | torch.device | None = None,
        override_user_schedule: bool = False,
        capture_debug_output: bool = False,
        print_repro: bool = False,
        profile: bool = False,
        save_repro_inputs: bool = False,
        contiguous_outputs: bool = False,
        _enable_options: Sequence[str] = (),
        _disable_options: Sequence[str] = (),
    ) -> list[torch.Tensor]:
        """Run the program on local tensors; return one local tensor per output.

        Args:
            inputs: Tensors and numbers in order of definition; lists inside are flattened.
            device: Where the tensors must be; where results go when there are none.
            override_user_schedule: Ignore a ``schedule()`` method.
            capture_debug_output: Not available in this version.
            print_repro: Not available in this version.
            profile: Record the steps for ``profile()``.
            save_repro_inputs: Not available in this version.
            contiguous_outputs: Make results row-major where the program fixes no layout.

        Raises:
            meshfuse.Error: inputs do not fit the program, or the program cannot be run.
            meshfuse.PeerError: another rank failed.
        """
        try:
            if self._run is not None and not (
                device is not None
                or override_user_schedule
                or capture_debug_output
                or print_repro
                or profile
                or save_repro_inputs
                or contiguous_outputs
                or _enable_options
                or _disable_options
            ):
                try:
                    return self._run(inputs)  # type: ignore[no-any-return]
                except Exception as error:
                    failure.mark_told(error)
                    raise
            settings = execution.Settings(
                device=device,
                contiguous_outputs=contiguous_outputs,
                ignore_user_schedule=override_user_schedule,
                enable=_enable_options,
                disable=_disable_options,
                later={
                    "capture_debug_output": capture_debug_output,
                    "print_repro": print_repro,
                    "save_repro_inputs": save_repro_inputs,
                },
            )
            if not profile:
                return execution.execute(self, inputs, settings)
            with PythonProfiler() as profiler:
                results = execution.execute(self, inputs, settings)
            self._profile = profiler.profile
            return results
        except Exception as error:
            failure.report(error, "executing a fusion", self._cache)
            raise

    def _executor(self, ignore_user_schedule: bool = False) -> FusionExecutorCache:
        """Return the program's cache of plans, after the hooks of a class have run."""
        if self._cache is not None:
            return self._cache
        with self._first_use:  # a second thread waits until the hooks have run
            if self._cache is None:
                if self._lifecycle.phase is Phase.OPEN:
                    raise RuntimeError(
                        "execute: the definition is still open. Leave its `with` block first."
                    )
                if self._lifecycle.phase is not Phase.CLOSED:
                    self._run_hooks(ignore_user_schedule)
                fusion = self._lifecycle.fusion
                if fusion is None:
                    raise NotImplementedError(_NO_FUSION)
                if not fusion.outputs():
                    raise NotImplementedError(
                        "Fusion is empty! Add an output with add_output before executing."
                    )
                self._cache = FusionExecutorCache(fusion, max(0, self._id or 0))
        return self._cache

    def _run_hooks(self, ignore_user_schedule: bool) -> None:
        """Run definition() and multidevice_schedule(), once; nothing stays of a failed run."""
        hook = getattr(self, "definition", None)
        if hook is None:
            raise NotImplementedError(_NO_FUSION)
        execution.check_user_schedule(self, ignore_user_schedule)
        self._lifecycle.open()
        self._lifecycle.in_hook = True
        try:
            hook()
            self._lifecycle.in_hook = False
            self._lifecycle.close()
            multidevice_schedule = getattr(self, "multidevice_schedule", None)
            if multidevice_schedule is not None:
                multidevice_schedule()
        except BaseException:
            self._lifecycle.discard()
            raise
        finally:
            self._lifecycle.in_hook = False

    # ---- inspection

    def _defined(self) -> Fusion:
        if self._lifecycle.phase is Phase.UNDEFINED:
            self._executor()
        if self._lifecycle.fusion is None:
            raise NotImplementedError(_NO_FUSION)
        return self._lifecycle.fusion

    def ir(self) -> str:
        """Return the program as text that ``meshfuse.parse_ir`` reads."""
        return self._defined().ir()

    def compiled_ir(self) -> str:
        """Return the program after the passes, communications inserted, as text."""
        return self._executor().compiled_ir()

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
            suggest: Propose changes. Not available in this version.
            inputs: Global tensors, as ``sim.run`` takes them, for sizes that the program leaves
                open; values are not read, so ``torch.empty(..., device="meta")`` will do.
            sizes: Instead: name of an input (or the input) to its global sizes, or name of an open
                size (``"T0.0"``) to a number.

        Raises:
            meshfuse.Error: the passes refuse the program; or the bytes of a communication depend
                on a size that is not given; or sizes contradict each other or the program.
        """
        if suggest:
            raise UnsupportedError(
                "explain: suggest=True is not available in this version of meshfuse. Leave it out."
            )
        return explanation.explain(self._executor().fusion(), inputs, sizes)

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

        return check(self, mesh, rtol, examples, seed)

    def inputs(self) -> list[int]:
        """Return the numbers of the inputs among all records."""
        return execution.record_numbers(self._defined().inputs())

    def outputs(self) -> list[int]:
        """Return the numbers of the outputs among all records."""
        return execution.record_numbers(self._defined().outputs())

    def id(self) -> int | None:
        """Return the number given to the constructor."""
        return self._id


def parse_ir(text: str) -> FusionDefinition:
    """Return the definition that a text form describes, such as ``fd.ir()`` returns.

    Example:
        >>> from meshfuse import FusionDefinition, parse_ir
        >>> with FusionDefinition() as fd:
        ...     fd.add_output(fd.ops.relu(fd.define_tensor([4])))
        >>> parse_ir(fd.ir()).ir() == fd.ir()
        True
    """
    from ._C import parse_fusion

    definition = FusionDefinition()
    definition._lifecycle.adopt(parse_fusion(text))
    return definition


def define_tensor(*args: Any, **kwargs: Any) -> TensorView:
    """Make a tensor in the active definition that is not yet an input; see Fusion.add_input."""
    return _active_fusion("define_tensor").define_tensor(*parse_tensor_arguments(args, kwargs))


def define_scalar(*args: Any, **kwargs: Any) -> Scalar:
    """Make a scalar in the active definition that is not yet an input; see Fusion.add_input."""
    return _make_scalar(_active_fusion("define_scalar"), *scalar_arguments(args, kwargs))


def _active_fusion(name: str) -> Fusion:
    fusion = FusionGuard.get_cur_fusion()
    if fusion is None:
        raise Error(
            f"{name} must be called from an initialized definition. Make a FusionGuard first."
        )
    return fusion


def _make_scalar(fusion: Fusion, value: complex | None, dtype: DataType | None) -> Scalar:
    if value is None:
        return fusion.symbol(dtype or DataType.Double)
    return fusion.constant(value, dtype or python_scalar_to_nvfuser_dtype(value))


def _reject_cpu_if_asked(api_name: str) -> None:
    """Refuse CPU tensors where the environment or an alias package on a CUDA machine says so."""
    alias = api_name != "meshfuse" and torch.cuda.is_available()
    if not alias and os.environ.get("MESHFUSE_REJECT_CPU_INPUTS") != "1":
        return
    if api_name == "nvfuser":
        raise ValueError("CPU non-scalar tensor is not supported!")
    raise ValueError("Found unsupported device cpu, only scalar CPU or CUDA tensors are supported")


add_unsupported(FusionDefinition, "last_cuda_code cuda_code_for", "code")
add_unsupported(FusionDefinition, "manual_execute manual_validate", "cuda")
