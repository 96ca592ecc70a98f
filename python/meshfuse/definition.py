# SPDX-License-Identifier: BSD-3-Clause
"""FusionDefinition: a tensor program, written as a ``with`` block or as a class."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, TypeVar, cast

import torch

from . import execution, failure
from ._C import (
    DataType,
    Fusion,
    FusionExecutorCache,
    InternalError,
    Scalar,
    TensorView,
    communicator,
    parse_fusion,
)
from .fusion_cache import FusionCache
from .input_definitions import InputDefinitions
from .inspection import NO_FUSION, Inspection
from .lifecycle import Lifecycle, Phase, check_flag
from .operators import Operators
from .outputs import add_output
from .profile import FusionProfile, PythonProfiler
from .profiled_run import is_recording, noted
from .repro_on_failure import write_bundle_of_failure
from .schedule import SchedOperators
from .unsupported import add_unsupported, unsupported

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _without_options(execute: _Method) -> _Method:
    """Go a short way where a call has no options and the program ran before."""

    @functools.wraps(execute)
    def method(self: FusionDefinition, inputs: Iterable[Any], **options: Any) -> Any:
        if options or self._run is None or is_recording():
            return execute(self, inputs, **options)
        try:
            return self._run(inputs)
        except Exception as error:
            failure.mark_told(error, self._cache)
            script = self._script_for(inputs)
            failure.report(error, "executing a fusion", self._cache, script, inputs)
            raise

    return cast("_Method", method)


class FusionDefinition(InputDefinitions, Inspection):
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
        check_flag("FusionDefinition", "strict", strict)
        check_flag("FusionDefinition", "uneven", uneven)
        self._id = id
        self._lifecycle = Lifecycle(
            max_length, strict=strict, uneven=uneven, reduce_dtype=reduce_dtype
        )
        self._cache: FusionExecutorCache | None = None
        self._first_use = threading.RLock()
        self._profile: FusionProfile | None = None
        self._profile_key: str | None = None  # by which profiles know it
        self._kinds: list[Any] | None = None  # of the inputs that were saved for a script
        self._debug_output: str | None = None
        self._run: Any = None  # runs the compiled program; set by the first execute()
        self.ops = Operators(self._lifecycle)
        self.sched = SchedOperators(self._lifecycle)

    # ---- definition

    def __enter__(self) -> FusionDefinition:
        """Open the definition and make it the active one of this thread."""
        self._open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the definition; one that raised is forgotten."""
        if error is None:
            self._close()
            return
        if isinstance(error, InternalError):
            write_bundle_of_failure(error, self._lifecycle.fusion, None)
        self._lifecycle.discard()
        if isinstance(error, Exception):
            failure.log_once(error, "defining a fusion")

    def _open(self) -> None:
        self._lifecycle.open()

    def _close(self) -> None:
        self._lifecycle.close()
        if self._lifecycle.fusion is not None:
            number = FusionCache.note(self._lifecycle.fusion)
            self._id = number if self._id is None else self._id

    @property
    def fusion(self) -> Fusion | None:
        """The program; None before it is defined."""
        if self._lifecycle.fusion is None and "fec" in self.__dict__:
            return self.fec.fusion()
        return self._lifecycle.fusion

    @property
    def _fusion(self) -> Fusion | None:
        return self._lifecycle.fusion

    @_fusion.deleter
    def _fusion(self) -> None:
        self._lifecycle.fusion = None

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

    @_without_options
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
            capture_debug_output: Keep what MESHFUSE_DUMP asks for, for ``debug_output()``.
            print_repro: Print ``repro_script_for(inputs)`` first.
            profile: Record the steps for ``profile()``.
            save_repro_inputs: Keep sizes, strides and types, for ``last_repro_script()``.
            contiguous_outputs: Make results row-major where the program fixes no layout.

        Raises:
            meshfuse.Error: inputs do not fit the program, or the program cannot be run.
            meshfuse.PeerError: another rank failed.
        """
        communicator()  # started, so that the other ranks can be told of whatever fails
        try:
            settings = execution.Settings(
                device=device,
                contiguous_outputs=contiguous_outputs,
                ignore_user_schedule=override_user_schedule,
                enable=_enable_options,
                disable=_disable_options,
                capture_debug_output=capture_debug_output,
                print_repro=print_repro,
                save_repro_inputs=save_repro_inputs,
            )
            if settings.reads_inputs or profile or is_recording():
                inputs = list(inputs)
            if not profile:
                with noted(self, inputs, is_local=True):
                    return execution.execute(self, inputs, settings)
            with PythonProfiler() as profiler, noted(self, inputs, is_local=True):
                results = execution.execute(self, inputs, settings)
            self._profile = profiler.profile
            return results
        except Exception as error:
            script = self._script_for(inputs)
            failure.report(error, "executing a fusion", self._cache, script, inputs)
            raise

    def manual_execute(
        self, inputs: Iterable[Any], heuristic_params: Any = None
    ) -> list[torch.Tensor]:
        """Raise: a kernel scheduled by hand exists on CUDA only.

        Raises:
            AssertionError: ``execute`` ran before.
            meshfuse.UnsupportedError: otherwise.
        """
        assert "fec" not in self.__dict__, (
            "FusionExecutorCache already exists! Use execute() to execute the fusion."
        )
        return unsupported("manual_execute", "cuda")()  # type: ignore[no-any-return]

    def _executor(self, ignore_user_schedule: bool = False) -> FusionExecutorCache:
        """Return the program's cache of plans, after the hooks of a class have run."""
        if self._cache is not None:
            return self._cache
        with self._first_use:  # a second thread waits until the hooks have run
            if self._cache is None and "fec" in self.__dict__:  # from a cache of the caller's
                self._cache = self.fec
            if self._cache is None:
                if self._lifecycle.phase is Phase.OPEN:
                    raise RuntimeError(
                        "execute: the definition is still open. Leave its `with` block first."
                    )
                if self._lifecycle.phase is not Phase.CLOSED:
                    self._run_hooks(ignore_user_schedule)
                fusion = self._lifecycle.fusion
                if fusion is None:
                    raise NotImplementedError(NO_FUSION)
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
            raise NotImplementedError(NO_FUSION)
        execution.check_user_schedule(self, ignore_user_schedule)
        self._open()
        self._lifecycle.in_hook = True
        try:
            hook()
            self._lifecycle.in_hook = False
            self._close()
            multidevice_schedule = getattr(self, "multidevice_schedule", None)
            if multidevice_schedule is not None:
                multidevice_schedule()
        except BaseException:
            self._lifecycle.discard()
            raise
        finally:
            self._lifecycle.in_hook = False


def parse_ir(text: str, *, uneven: bool = False) -> FusionDefinition:
    """Return the definition that a text form describes, such as ``fd.ir()`` returns.

    Args:
        text: The program.
        uneven: Whether it is one of ``FusionDefinition(uneven=True)``, which its text does not say.

    Raises:
        meshfuse.Error: it is no program; it says line and column.
        TypeError: an argument is of the wrong type.

    Example:
        >>> from meshfuse import FusionDefinition, parse_ir
        >>> with FusionDefinition() as fd:
        ...     fd.add_output(fd.ops.relu(fd.define_tensor([4])))
        >>> parse_ir(fd.ir()).ir() == fd.ir()
        True
    """
    if not isinstance(text, str):
        raise TypeError(
            f"parse_ir: text is a {type(text).__name__}. Give the text of a program, as fd.ir() "
            "returns it."
        )
    check_flag("parse_ir", "uneven", uneven)
    definition = FusionDefinition(uneven=uneven)
    definition._lifecycle.adopt(parse_fusion(text, uneven))
    return definition


add_unsupported(FusionDefinition, "last_cuda_code cuda_code_for", "code")
add_unsupported(FusionDefinition, "manual_validate", "cuda")
