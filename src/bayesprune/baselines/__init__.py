"""Other methods behind one interface, to compare with: those of the paper's Table II and those a user tries first.

    result = run("variational-dropout", model, data, settings=recipe("variational-dropout", "best", "lenet5"))
    result.summary["accuracy"], result.summary["nonzero_fraction"], result.summary["macs_removed"]

`METHODS` lists the names, `RECIPES` what they differ in; the result has the fields of `turbo.Compression`.
"""

from bayesprune.baselines.methods import METHODS, run, train_dense
from bayesprune.baselines.recipes import RECIPES, recipe
from bayesprune.baselines.results import Baseline
from bayesprune.baselines.settings import STRENGTHS, BaselineSettings

__all__ = ["METHODS", "RECIPES", "STRENGTHS", "Baseline", "BaselineSettings", "recipe", "run", "train_dense"]
