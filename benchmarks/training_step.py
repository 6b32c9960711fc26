"""Time a Turbo-VBI training step beside a plain one: same network, batch and optimiser, interleaved in one run.

    python -m benchmarks.training_step [--device cuda] [--threads 1] [--networks lenet5 vgg11] [--output FILE]

On the CPU LeNet-5 with Adam, the prior in the gradients; on CUDA VGG-11 with SGD in bfloat16, the prior as a proximal
step, each step one CUDA graph.  Plain and Turbo-VBI steps take turns, and so do
refreshes, Module B and evaluations; reported are medians and quartiles over the turns, and ratios of medians.
Everything is kept as JSON in benchmarks/results/.
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesprune import models
from bayesprune.data import Split
from bayesprune.likelihoods import Classification
from bayesprune.provenance import hardware, versions
from bayesprune.turbo import Compressor, Settings
from bayesprune.turbo.training import TrainStep, evaluate, masked
from benchmarks.report import RESULTS, keep

SEED = 0
GOAL = 1.10
BATCH = 128
ACTIVITY, COUPLING = 0.4, 0.3  # Module B as a grid, beside the default without coupling


@dataclass(frozen=True)
class Case:
    """A network in training, as large as on its data set: steps of an epoch, examples in the validation split."""

    model: str
    input_shape: tuple[int, int, int]
    steps: int
    validation: int
    settings: Settings


CASES = {
    "lenet5": Case("lenet5", (1, 28, 28), 422, 6000, Settings(optimiser="adam", learning_rate=3e-3)),
    "vgg11": Case("vgg11", (3, 32, 32), 391, 5000, Settings(optimiser="sgd", learning_rate=0.05, weight_decay=5e-4)),
}


def images(shape: tuple[int, ...], count: int, device: str) -> tuple[Tensor, Tensor]:
    """Ten noisy patterns and their numbers, so that there is something to learn."""
    generator = torch.Generator().manual_seed(SEED)
    patterns = torch.randn((10, *shape), generator=generator)
    y = torch.randint(10, (count,), generator=generator)
    x = patterns[y] + torch.randn((count, *shape), generator=generator)
    return x.to(device), y.to(device)


def step_for(case: Case, model: torch.nn.Module, compressor: Compressor | None) -> TrainStep:
    """The step that `compress` makes for these settings."""
    s, parameters = case.settings, list(model.parameters())
    optimiser: torch.optim.Optimizer
    if s.optimiser == "adam":
        optimiser = torch.optim.Adam(parameters, s.learning_rate, capturable=parameters[0].is_cuda)
    else:
        optimiser = torch.optim.SGD(
            parameters, s.learning_rate, momentum=s.momentum, nesterov=True, weight_decay=s.weight_decay
        )
    step = TrainStep(
        model,
        Classification(),
        optimiser,
        prior=compressor.prior if compressor else None,
        decoupled=s.decoupled,
        bfloat16=s.bfloat16,
    )
    step.set_learning_rate(s.learning_rate)
    return step


def take_turns(works: dict[str, Callable[[], Any]], turns: int, device: str) -> dict[str, list[float]]:
    """Seconds of every work in every turn, the device idle before and after; two rounds to warm up."""

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    seconds: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(-2, turns):
        order = list(works) if turn % 2 else list(reversed(works))
        for name in order:
            wait()
            start = time.perf_counter()
            works[name]()
            wait()
            if turn >= 0:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def milliseconds(seconds: list[float], calls: int = 1) -> dict[str, float]:
    """Median and quartiles of a single call."""
    low, middle, high = (1e3 * q / calls for q in statistics.quantiles(seconds, n=4))
    return {"ms": middle, "quartile_low": low, "quartile_high": high}


def time_case(case: Case, device: str, turns: int, block: int) -> dict[str, Any]:
    """Everything about one network: what each part costs, and what the parts make of a step.

    turns: how often plain and Turbo-VBI steps are timed, `block` steps at a time; the other parts a tenth as often.
    """
    torch.manual_seed(SEED)
    plain = models.create(case.model, case.input_shape, 10, generator=torch.Generator().manual_seed(SEED)).to(device)
    turbo = copy.deepcopy(plain)
    x, y = images(case.input_shape, BATCH, device)
    validation = Split(*images(case.input_shape, case.validation, device))
    # One epoch of pruning means that both ramps have ended: the prior acts with full strength.
    compressor = Compressor(turbo, x[:2], examples=case.steps * BATCH, epochs=1, settings=case.settings)
    on_grid = replace(case.settings, activity=ACTIVITY, coupling=COUPLING)
    grid = Compressor(copy.deepcopy(plain), x[:2], examples=case.steps * BATCH, epochs=1, settings=on_grid)
    plain_step, turbo_step = step_for(case, plain, None), step_for(case, turbo, compressor)
    control_step = step_for(case, copy.deepcopy(plain), None)  # plain as well: its ratio is the noise of the measure
    likelihood = Classification()

    def steps(step: TrainStep) -> Callable[[], None]:
        def work() -> None:
            for _ in range(block):
                step(x, y)

        return work

    def pull() -> None:
        if case.settings.decoupled:
            compressor.prior.decay(case.settings.learning_rate)
        else:
            compressor.prior.add_gradients()

    def masked_evaluation() -> None:
        with masked(turbo, compressor.masks()):
            evaluate(turbo, likelihood, validation)

    plain.train()
    turbo.train()
    # A graph is captured in the fourth step, outside the clock.
    in_turn = {"plain_step": plain_step, "turbo_step": turbo_step, "control_step": control_step}
    for step in in_turn.values():
        for _ in range(5):
            step(x, y)
    seconds = take_turns({name: steps(step) for name, step in in_turn.items()}, turns, device)
    seconds |= take_turns(
        {
            "pull": pull,
            "refresh": lambda: compressor.prior.refresh(*compressor.strengths),
            "module_b": compressor.update,
            "module_b_grid": grid.update,
            "evaluation": lambda: evaluate(plain, likelihood, validation),
            "masked_evaluation": masked_evaluation,
        },
        max(3, turns // 10),
        device,
    )
    assert bool(torch.isfinite(turbo_step(x, y))), "the loss is not finite; these times mean nothing"
    parts = {name: milliseconds(s, block if name.endswith("_step") else 1) for name, s in seconds.items()}
    pairs = sorted(t / p for p, t in zip(seconds["plain_step"], seconds["turbo_step"], strict=True))
    return {
        "model": case.model,
        "batch": BATCH,
        "optimiser": case.settings.optimiser,
        "pull": "decoupled" if case.settings.decoupled else "in the gradients",
        "bfloat16": case.settings.bfloat16,
        "cuda_graph": device == "cuda",
        "refresh_every": case.settings.refresh_every,
        "steps_per_epoch": case.steps,
        "validation_examples": case.validation,
        "turns": turns,
        "steps_per_turn": block,
        "parts": parts,
        "step_ratio_quartiles": statistics.quantiles(pairs, n=4),
        "ratios": ratios({name: part["ms"] for name, part in parts.items()}, case),
    }


def ratios(ms: dict[str, float], case: Case) -> dict[str, float]:
    """Turbo-VBI over plain, with more and more of what an epoch needs spread over its steps.

    `control` is a second plain network over the first.  Everything is charged to Turbo-VBI alone, but for
    `both_evaluate`, where the plain network is evaluated once an epoch as well, as it is in any training.
    """
    refreshed = ms["turbo_step"] + ms["refresh"] / case.settings.refresh_every
    updated = refreshed + ms["module_b"] / case.steps
    on_grid = refreshed + ms["module_b_grid"] / case.steps
    evaluation = ms["masked_evaluation"] / case.steps
    plain = ms["plain_step"]
    return {
        "control": ms["control_step"] / plain,
        "step": ms["turbo_step"] / plain,
        "with_refresh": refreshed / plain,
        "with_module_b": updated / plain,
        "with_module_b_grid": on_grid / plain,
        "with_module_b_and_masked_evaluation": (updated + evaluation) / plain,
        "both_evaluate": (updated + evaluation) / (plain + ms["evaluation"] / case.steps),
    }


def show(row: dict[str, Any]) -> None:
    """Print one network's figures."""
    print(f"{row['model']}, batch {row['batch']}, {row['optimiser']}, pull {row['pull']}")
    for name, part in row["parts"].items():
        spread = f"{part['quartile_low']:.3f} to {part['quartile_high']:.3f}"
        print(f"  {name:<38}{part['ms']:>9.3f} ms  (quartiles {spread})")
    for name, ratio in row["ratios"].items():
        print(f"  {name:<38}{ratio:>9.3f} times plain{'' if ratio <= GOAL else f', above the goal of {GOAL}'}")


def main() -> None:
    """Run everything, print it, keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, help="threads on the CPU; 1 where others use the cores as well")
    parser.add_argument("--networks", nargs="+", choices=list(CASES), help="VGG-11 on the CPU takes minutes")
    parser.add_argument("--output", type=Path, help="where to keep the JSON")
    options = parser.parse_args()
    device: str = options.device
    if options.threads:
        torch.set_num_threads(options.threads)
    output = options.output or RESULTS / f"training_step-{device}.json"
    report: dict[str, Any] = {
        "seed": SEED,
        "goal": GOAL,
        "versions": versions(),
        "hardware": hardware(device),
        "networks": [],
    }

    for name in options.networks or (["vgg11"] if device == "cuda" else ["lenet5"]):
        case = CASES[name]
        if device == "cuda":
            case = replace(case, settings=replace(case.settings, bfloat16=name == "vgg11"))
            row = time_case(case, device, turns=200, block=20)
        else:
            row = time_case(case, device, turns=400 if name == "lenet5" else 20, block=1)
        report["networks"].append(row)
        show(row)
    keep(report, output)


if __name__ == "__main__":
    main()
