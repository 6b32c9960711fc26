"""torch.fx for one thread: the others run their networks meanwhile as if nothing were traced."""

import threading
from collections.abc import Callable
from typing import Any

from torch import fx, nn

_TRACING = threading.RLock()


class OneThread(fx.Tracer):
    """A tracer that leaves other threads alone.

    While torch.fx traces, calls and attributes of all modules go through the tracer, whoever's they are.
    """

    _thread: int | None = None

    def trace(self, root: nn.Module | Callable[..., Any], concrete_args: dict[str, Any] | None = None) -> fx.Graph:
        """As fx.Tracer; several threads take turns."""
        with _TRACING:
            self._thread = threading.get_ident()
            return super().trace(root, concrete_args)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """As fx.Tracer in the thread that traces; in others the module itself."""
        if threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, fx.Proxy]) -> Any:
        """As fx.Tracer in the thread that traces; in others the value itself."""
        if threading.get_ident() != self._thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)


def traced_module(network: nn.Module) -> fx.GraphModule:
    """As fx.symbolic_trace, but other threads may run networks meanwhile."""
    tracer = OneThread()
    graph = tracer.trace(network)
    return fx.GraphModule(tracer.root, graph, type(network).__name__)
