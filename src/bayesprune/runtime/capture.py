"""A computation on a GPU as one CUDA graph."""

import contextlib
import threading
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

WARM_UP = 3  # libraries allocate, choose and compile their kernels outside the graph

_CAPTURING = threading.RLock()  # what another thread captures must not be disturbed


@contextlib.contextmanager
def ordinary_tensors(device: torch.device) -> Iterator[None]:
    """What is made inside is on this device and can be written to later.

    Tensors that are made in inference mode could not be written to outside of it.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        if device.type == "cuda":
            stack.enter_context(torch.cuda.device(device))
        yield


class Captured:
    """`run` on tensors like x as a CUDA graph; call it without gradients.  Threads and streams take turns."""

    def __init__(self, run: Callable[[Tensor], Tensor], x: Tensor) -> None:
        self._run = run  # its tensors are read by the graph
        self._lock, self._done = threading.Lock(), torch.cuda.Event()
        with _CAPTURING, ordinary_tensors(x.device):
            self._x = torch.empty_like(x).copy_(x)
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UP):
                    run(self._x)
            torch.cuda.current_stream().wait_stream(side)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._result = run(self._x)

    def __call__(self, x: Tensor) -> Tensor:
        """The result for x, in memory of its own."""
        with self._lock:
            torch.cuda.current_stream(x.device).wait_event(self._done)  # another stream may be reading the last result
            self._x.copy_(x)
            self._graph.replay()
            result = self._result.clone()
            self._done.record(torch.cuda.current_stream(x.device))
            return result

    def again(self) -> Tensor:
        """The result for the same input as before, in memory that the next call writes to."""
        self._graph.replay()
        return self._result
