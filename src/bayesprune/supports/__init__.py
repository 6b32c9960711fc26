"""Module B: structured priors p(s) on which weights are alive, each with its own sum-product inference.

Give `support.extrinsic(evidence_logit)` the evidence of Module A and get back v_{h->s}, the prior that the structure
implies for every weight given all the *other* weights.  No model is needed.
"""

from bayesprune.layouts import Layout
from bayesprune.supports.base import Extrinsic, Support
from bayesprune.supports.bernoulli import Bernoulli
from bayesprune.supports.chain import HiddenMarkov, MarkovChain
from bayesprune.supports.grid import IsingGrid, PairwiseGrid, TransitionGrid
from bayesprune.supports.learning import learn
from bayesprune.supports.runs import RunLengths, run_lengths
from bayesprune.supports.tree import MarkovTree

__all__ = [
    "Bernoulli",
    "Extrinsic",
    "HiddenMarkov",
    "IsingGrid",
    "Layout",
    "MarkovChain",
    "MarkovTree",
    "PairwiseGrid",
    "RunLengths",
    "Support",
    "TransitionGrid",
    "learn",
    "run_lengths",
]
