"""Structured Bayesian compression of neural networks with Turbo-VBI.

The data flow, from left to right, is the order of the folders:
data, models, likelihoods -> priors (what a weight may be), supports (which weights live together)
-> variational (Module A), messages (the engine of Module B) -> turbo (the loop)
-> surgery (the smaller network and its proof) -> artefact (its file) -> export, latency,
with structure and runs beside it.
"""

from bayesprune import data, models, priors, supports, turbo, variational
from bayesprune.artefact import load, save
from bayesprune.layouts import Layout
from bayesprune.likelihoods import Classification, GaussianRegression
from bayesprune.priors import PatternCoupled, SharedPrecision, SpikeSlab, prunable_weights
from bayesprune.supports import Bernoulli, HiddenMarkov, IsingGrid, MarkovChain, MarkovTree
from bayesprune.surgery import shrink
from bayesprune.turbo import Compression, Compressor, Settings, compress
from bayesprune.variational import Collapsed, MeanField

__all__ = [
    "Bernoulli",
    "Classification",
    "Collapsed",
    "Compression",
    "Compressor",
    "GaussianRegression",
    "HiddenMarkov",
    "IsingGrid",
    "Layout",
    "MarkovChain",
    "MarkovTree",
    "MeanField",
    "PatternCoupled",
    "Settings",
    "SharedPrecision",
    "SpikeSlab",
    "compress",
    "data",
    "load",
    "models",
    "priors",
    "prunable_weights",
    "save",
    "shrink",
    "supports",
    "turbo",
    "variational",
]
