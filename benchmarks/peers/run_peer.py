"""Time one peer library on one Ising grid; runs inside the peers' environment, see `environment.py`.

    python run_peer.py {sumproduct,pgmax} problem.npz result.npz --iterations N --repeats R

`problem.npz` holds `evidence` (log-odds per site, K x M), `activity` and `coupling`.  `result.npz` receives
`marginals` (the probability of s = 1 per site) and `report`, a JSON string with the times and the versions.

One iteration is the same thing for both peers: every variable sends its cavity to every factor, then every
factor sends its message to every variable.  All factor-to-variable messages start uniform.
"""

import argparse
import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Site = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Problem:
    """A binary grid with `log_odds` per site and exp(J) or exp(-J) between equal or different neighbours."""

    log_odds: Array
    coupling: float

    @classmethod
    def load(cls, path: Path) -> "Problem":
        with np.load(path) as file:
            evidence = np.asarray(file["evidence"], dtype=np.float64)
            activity, coupling = float(file["activity"]), float(file["coupling"])
        return cls(evidence + math.log(activity / (1 - activity)), coupling)

    @property
    def log_table(self) -> Array:
        """Log potential of a pair of neighbours."""
        return self.coupling * np.array([[1.0, -1.0], [-1.0, 1.0]])

    def pairs(self) -> Iterator[tuple[Site, Site]]:
        """Horizontal and vertical neighbours, each pair once."""
        rows, columns = self.log_odds.shape
        for i in range(rows):
            for j in range(columns):
                if j + 1 < columns:
                    yield (i, j), (i, j + 1)
                if i + 1 < rows:
                    yield (i, j), (i + 1, j)


@dataclass(frozen=True)
class Report:
    """What is written beside the marginals.

    `sweeps` counts the library's own sweeps behind `iterations`; `cpu_seconds` is the time of all threads
    during `seconds`, so their ratio is the number of cores in use; `threads` is how many the library may use.
    """

    iterations: int
    sweeps: int
    build_seconds: float
    compile_seconds: float
    seconds: list[float]
    cpu_seconds: list[float]
    precision: str
    threads: int
    versions: dict[str, str]


def versions(*distributions: str) -> dict[str, str]:
    """Versions of Python, numpy and the named distributions."""
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in ("numpy", *distributions)}


def available_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_sumproduct(problem: Problem, iterations: int, repeats: int) -> tuple[Array, Report]:
    """Time `sumproduct`, pure Python.

    Its sweeps send factor-to-variable messages first, from uniform variable-to-factor ones, so its first
    sweep only delivers the evidence.  N iterations are therefore N + 1 of its sweeps; the first is not timed.
    The library reads all marginals after every sweep; that is part of its time.  The error function, which it
    calls after every sweep, serves as the clock and never lets it stop early.
    """
    import sumproduct  # type: ignore[import-not-found, unused-ignore]

    started = time.perf_counter()
    graph = sumproduct.FactorGraph(silent=True)
    for site, log_odds in np.ndenumerate(problem.log_odds):
        graph.add(sumproduct.Variable(site, 2))
        unary = np.exp(np.array([0.0, log_odds]) - max(0.0, log_odds))
        graph.add(sumproduct.Factor(("evidence", site), unary))
        graph.connect(("evidence", site), site)
    table = np.exp(problem.log_table)
    for pair in problem.pairs():
        graph.add(sumproduct.Factor(pair, table))
        graph.connect(pair, pair[0])
        graph.connect(pair, pair[1])
    build_seconds = time.perf_counter() - started

    clock: list[tuple[float, float]] = []

    def after_sweep(_current: dict[Any, Array], _previous: dict[Any, Array]) -> float:
        clock.append((time.perf_counter(), time.process_time()))
        return math.inf

    seconds, cpu_seconds = [], []
    for _ in range(repeats):
        clock.clear()
        graph.compute_marginals(max_iter=iterations + 1, tolerance=0.0, error_fun=after_sweep)
        if len(clock) != iterations + 1:
            raise RuntimeError(f"sumproduct ran {len(clock)} sweeps instead of {iterations + 1}")
        seconds.append(clock[-1][0] - clock[0][0])
        cpu_seconds.append(clock[-1][1] - clock[0][1])

    exported = graph.export_marginals()
    marginals = np.empty(problem.log_odds.shape)
    for site in np.ndindex(marginals.shape):
        marginals[site] = exported[site][1]
    return marginals, Report(
        iterations=iterations,
        sweeps=iterations + 1,
        build_seconds=build_seconds,
        compile_seconds=0.0,
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        precision=str(exported[0, 0].dtype),
        threads=1,
        versions=versions("sumproduct"),
    )


def run_pgmax(problem: Problem, iterations: int, repeats: int) -> tuple[Array, Report]:
    """Time PGMax on the CPU: undamped sum-product (temperature 1) and the marginals as one jitted call."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax  # type: ignore[import-not-found, unused-ignore]
    from pgmax import fgraph, fgroup, infer, vgroup  # type: ignore[import-not-found, unused-ignore]

    def build(problem: Problem) -> tuple[Any, Any, Any]:
        """The variables, the inference functions and the arrays they start from."""
        variables = vgroup.NDVarArray(num_states=2, shape=problem.log_odds.shape)
        graph = fgraph.FactorGraph(variable_groups=variables)
        graph.add_factors(
            fgroup.PairwiseFactorGroup(
                variables_for_factors=[[variables[a], variables[b]] for a, b in problem.pairs()],
                log_potential_matrix=problem.log_table,
            )
        )
        inference = infer.BP(graph.bp_state, temperature=1.0)
        unary = np.stack([np.zeros_like(problem.log_odds), problem.log_odds], axis=-1)
        start = inference.init(evidence_updates={variables: unary})
        return variables, inference, jax.device_put((start.log_potentials, start.ftov_msgs, start.evidence))

    # PGMax compiles its own wiring functions on their first use: keep that out of the build time.
    build(Problem(np.zeros((2, 2)), problem.coupling))
    started = time.perf_counter()
    variables, inference, arrays = build(problem)
    jax.block_until_ready(arrays)
    build_seconds = time.perf_counter() - started

    # Plain arrays go in and out: PGMax's own container copies all of them on every call.
    def infer_marginals(arrays: Any) -> Any:
        start = infer.BPArrays(*arrays)
        passed = inference.run(start, num_iters=iterations, damping=0.0, temperature=1.0)
        return infer.get_marginals(inference.get_beliefs(passed))[variables][..., 1]

    started = time.perf_counter()
    compiled: Callable[[Any], Any] = jax.jit(infer_marginals).lower(arrays).compile()
    compile_seconds = time.perf_counter() - started

    marginals = np.asarray(compiled(arrays))
    seconds, cpu_seconds = [], []
    for _ in range(repeats):
        started, cpu_started = time.perf_counter(), time.process_time()
        marginals = np.asarray(compiled(arrays))
        seconds.append(time.perf_counter() - started)
        cpu_seconds.append(time.process_time() - cpu_started)

    return marginals.astype(np.float64), Report(
        iterations=iterations,
        sweeps=iterations,
        build_seconds=build_seconds,
        compile_seconds=compile_seconds,
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        precision=str(marginals.dtype),
        threads=available_cores(),
        versions=versions("pgmax", "jax", "jaxlib"),
    )


PEERS: dict[str, Callable[[Problem, int, int], tuple[Array, Report]]] = {
    "sumproduct": run_sumproduct,
    "pgmax": run_pgmax,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Time one peer library on one Ising grid.")
    parser.add_argument("peer", choices=sorted(PEERS))
    parser.add_argument("problem", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--repeats", type=int, required=True)
    options = parser.parse_args()
    if options.iterations < 1 or options.repeats < 1:
        parser.error("--iterations and --repeats must be at least 1")
    problem = Problem.load(options.problem)
    marginals, report = PEERS[options.peer](problem, options.iterations, options.repeats)
    np.savez(options.result, marginals=marginals, report=np.array(json.dumps(asdict(report))))


if __name__ == "__main__":
    main()
