"""``compile="background"``: what is under way in threads, and graphs that are not even traced while somebody waits.

AOTAutograd takes a few seconds for a model, so the first call does not wait for it either: it runs Dynamo's graph, as
``backend="eager"`` does, and the graph is traced in a thread once the program has stopped compiling others. Nothing of
MAX is imported before that, but for its MLIR context.
"""

from __future__ import annotations

import atexit
import contextvars
import ctypes
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from max._mlir_context import in_default_mlir_context  # imported by the main thread, which leaves it at its end
from torch import fx
from torch._dynamo.convert_frame import compile_lock
from torch._functorch import aot_autograd
from torch._guards import CompileContext, TracingContext, compile_context, tracing
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import _get_current_dispatch_mode

from torch_max_backend.compile.pending import is_deferring, over, taking_over, under_way

log = logging.getLogger("torch_max_backend")

QUIET_S = 0.5
"""So long must no graph have come before one is traced: the two need the same lock, and the next one has a caller."""

TRACING_IS_OF_A_THREAD = hasattr(fx._symbolic_trace, "_is_fx_tracing_tls")
"""Whether torch notes for each thread that it traces. Older versions note it once, and refuse to run any compiled
function meanwhile, whichever thread calls it."""

Function = Callable[..., Any]
Compile = Callable[[fx.GraphModule, list[Any]], Function]


# -- graphs that are traced later ----------------------------------------------------------------------------------
class TracedLater:
    """A Dynamo graph as a function: in eager, until a thread has traced it and given it to the backend."""

    def __init__(self, gm: fx.GraphModule, compile: Compile) -> None:
        graph = fx.Graph()
        graph.output(graph.graph_copy(gm.graph, {}))
        # Tracing replaces parameters of its module for a while, so that the calls meanwhile need another.
        self.eager: Function = fx.GraphModule(gm, graph)
        self.gm, self.compile = gm, compile
        self.compile_context = CompileContext.try_get()  # reports say which of Dynamo's compiles a graph comes from
        self.compiled: Function | None = None
        self.first = threading.Lock()

    def __call__(self, *args: Any) -> Any:
        if self.compiled is not None:
            return self.compiled(*args)
        if self.first.acquire(blocking=False):  # and never released: the first call alone gets here
            job = self._job(args)
            try:
                return self.eager(*args)
            finally:
                if job is not None:
                    _enqueue(job)
        return self.eager(*args)

    def _job(self, args: Sequence[Any]) -> _Job | None:
        try:
            return _Job(self, args)
        except Exception as error:  # the call itself needs none of this
            _stays_in_eager(error)
            return None


class _Job:
    """What a thread needs in order to trace as the first call would have."""

    def __init__(self, function: TracedLater, args: Sequence[Any]) -> None:
        self.function = function
        self.context = contextvars.copy_context()  # settings of torch that are patched live there
        self.mode = FakeTensorMode(shape_env=ShapeEnv())
        self.inference, self.grad = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
        with torch.inference_mode(self.inference):
            self.inputs = [self.mode.from_tensor(x, static_shapes=True) for x in args]
        self.future = under_way()

    def run(self) -> None:
        try:
            with compile_lock:
                self.context.run(self._trace)
        except _Stopped:
            pass
        except Exception as error:  # nobody waits for this thread: whatever went wrong is said here
            _stays_in_eager(error)
        finally:
            over(self.future)

    @in_default_mlir_context
    def _trace(self) -> None:
        function, context = self.function, TracingContext(self.mode)
        with (
            torch.inference_mode(self.inference),
            torch.set_grad_enabled(self.grad),
            compile_context(function.compile_context),
            tracing(context),
            _random_numbers_left_alone(),
        ):
            compiled = function.compile(function.gm, self.inputs)
        if context.guards_context.aotautograd_guards:
            log.warning("the graph needs guards that it cannot get in the background, so it stays in eager")
            return
        function.compiled = compiled


@contextmanager
def _random_numbers_left_alone() -> Iterator[None]:
    """Keep AOTAutograd from putting the generators back to where they were when it began.

    The program has drawn from them meanwhile and would get the same numbers again; tracing on fake tensors draws none.
    Nor may it take ``torch.cuda.set_rng_state`` from the program. Only the holder of Dynamo's lock may call this.
    """
    with (
        patch.object(aot_autograd, "preserve_rng_state", nullcontext),
        patch.object(aot_autograd, "patch", lambda *replaced: nullcontext()),
    ):
        yield


def _stays_in_eager(error: Exception) -> None:
    log.warning("tracing in the background failed, the function stays in eager: %s", error)


def can_trace_later(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> bool:
    """Whether tracing ``gm`` later gives what tracing now does.

    Tracing may add guards, on symbolic sizes and on inputs that share memory, and Dynamo asks for them now. It sees
    the thread's modes and autocast, and the parameters of nested modules, which calls in eager share. Sizes that
    depend on values have symbols that Dynamo's own fake tensors know. The program must be able to go on meanwhile.
    """
    if not TRACING_IS_OF_A_THREAD:
        return False
    if torch._C._is_torch_function_mode_enabled() or _get_current_dispatch_mode() is not None:
        return False
    if any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda")):
        return False
    named = itertools.chain(gm.named_parameters(), gm.named_buffers())
    if any("." in name for name, _ in named):
        return False
    if any(node.meta.get("unbacked_bindings") for node in gm.graph.nodes):
        return False
    storages = set()
    for value in example_inputs:
        if type(value) not in (torch.Tensor, torch.nn.Parameter, FakeTensor) or value.layout is not torch.strided:
            return False
        if value._has_symbolic_sizes_strides:
            return False
        storages.add(value.untyped_storage()._cdata)
    return len(storages) == len(example_inputs) and not is_deferring()


# -- the thread ----------------------------------------------------------------------------------------------------
_jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
"""``None`` ends the thread."""
_last_graph = 0.0
_thread: threading.Thread | None = None
_starting = threading.Lock()


class _Stopped(BaseException):
    """Raised in the thread when the program ends."""


def _enqueue(job: _Job) -> None:
    global _last_graph, _thread
    _last_graph = time.monotonic()
    _jobs.put(job)
    with _starting:
        if _thread is None or not _thread.is_alive():  # in a forked child it is not
            _thread = threading.Thread(target=_work, name="max-tracing", daemon=True)
            _thread.start()


def _work() -> None:
    try:
        while (job := _jobs.get()) is not None:
            while (rest := _last_graph + QUIET_S - time.monotonic()) > 0:
                time.sleep(rest)
            job.run()
    except _Stopped:
        pass


@atexit.register
def _finish() -> None:
    """Stop tracing, let a thread that saves and loads come to its end, and no other begin."""
    if _thread is not None and _thread.is_alive() and _thread.ident is not None:
        # Python that runs while the interpreter ends would call a torch that is being taken down.
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(_thread.ident), ctypes.py_object(_Stopped))
        _jobs.put(None)  # the exception comes too late for a thread that waits for a job
        _thread.join(2 * QUIET_S)
    taking_over.acquire(timeout=30)
