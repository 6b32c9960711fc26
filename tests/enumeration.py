"""Independent answers by brute force: every state of a small binary model, straight from the definition of p(s)."""

import itertools
from collections.abc import Callable, Sequence

import numpy as np

LogPrior = Callable[[np.ndarray], np.ndarray]


def all_states(shape: tuple[int, ...]) -> np.ndarray:
    """Every binary array of a shape: (2^n, *shape)."""
    n = int(np.prod(shape))
    return ((np.arange(2**n)[:, None] >> np.arange(n)) & 1).reshape(-1, *shape)


def extrinsic(log_prior: LogPrior, evidence: np.ndarray) -> np.ndarray:
    """ln sum_{s: s_n=1} / sum_{s: s_n=0} of p(s) exp(evidence of all sites but n)."""
    states = all_states(evidence.shape).reshape(-1, evidence.size)
    flat = evidence.reshape(-1)
    log_joint = log_prior(states.reshape(-1, *evidence.shape)) + states @ flat
    result = np.empty_like(flat)
    for n, own in enumerate(flat):
        without = log_joint - states[:, n] * own
        result[n] = log_sum(without[states[:, n] == 1]) - log_sum(without[states[:, n] == 0])
    return result.reshape(evidence.shape)


def log_evidence(log_prior: LogPrior, evidence: np.ndarray) -> float:
    """ln sum_s p(s) exp(sum s e) / sum_s p(s)."""
    states = all_states(evidence.shape)
    prior = log_prior(states)
    axes = tuple(range(1, states.ndim))
    return float(log_sum(prior + (states * evidence).sum(axes)) - log_sum(prior))


def log_sum(values: np.ndarray) -> np.ndarray:
    top = values.max()
    return top + np.log(np.exp(values - top).sum())


def chain_prior(p01: float, p10: float, axis: int = -1) -> LogPrior:
    """Independent stationary chains along an axis of the sites, paper (2)."""
    step = np.log([[1 - p01, p01], [p10, 1 - p10]])
    first = np.log([p10 / (p01 + p10), p01 / (p01 + p10)])

    def log_prior(states: np.ndarray) -> np.ndarray:
        line = np.moveaxis(states, axis % (states.ndim - 1) + 1, -1)
        terms = first[line[..., 0]] + step[line[..., :-1], line[..., 1:]].sum(-1)
        return terms.reshape(len(states), -1).sum(1)

    return log_prior


def hidden_prior(p01: float, p10: float, off: float, on: float, axis: int = -1) -> LogPrior:
    """A stationary hidden chain along an axis of the sites, summed over all its states."""
    emission = np.log([[1 - off, off], [1 - on, on]])

    def log_prior(states: np.ndarray) -> np.ndarray:
        states = np.moveaxis(states, axis % (states.ndim - 1) + 1, -1)
        total = np.zeros(len(states))
        hidden = all_states((states.shape[-1],))
        hidden_log = chain_prior(p01, p10)(hidden)
        for line in np.moveaxis(states.reshape(len(states), -1, states.shape[-1]), 1, 0):
            joint = hidden_log + emission[hidden[None], line[:, None]].sum(-1)
            total += np.logaddexp.reduce(joint, axis=1)
        return total

    return log_prior


def tree_prior(activity: float, p01: float, p10: float, levels: Sequence[int]) -> LogPrior:
    """Trees with nodes indexed by leading dimensions; inner nodes summed over by recursion on single trees."""
    step = np.log([[1 - p01, p01], [p10, 1 - p10]])

    def log_prior(states: np.ndarray) -> np.ndarray:
        def below(node: np.ndarray, depth: int) -> np.ndarray:
            """(samples, *rest of the dimensions below this node) -> ln p(leaves below | node = 0, 1)."""
            deeper = levels[depth + 1] if depth + 1 < len(levels) else states.ndim - 1
            here = levels[depth]
            result = np.zeros((len(node), 2))
            for index in itertools.product(*(range(k) for k in node.shape[1 : 1 + deeper - here])):
                child = node[(slice(None), *index)]
                if depth + 1 == len(levels):
                    result += step[:, child].T
                else:
                    lower = below(child, depth + 1)
                    result += np.logaddexp(step[:, 0] + lower[:, :1], step[:, 1] + lower[:, 1:])
            return result

        total = np.zeros(len(states))
        for index in itertools.product(*(range(k) for k in states.shape[1 : 1 + levels[0]])):
            lower = below(states[(slice(None), *index)], 0)
            total += np.logaddexp(np.log(1 - activity) + lower[:, 0], np.log(activity) + lower[:, 1])
        return total

    return log_prior


def grid_prior(unary: float, log_tables: Sequence[np.ndarray]) -> LogPrior:
    """A lattice with one unary logit and a table of log potentials T[from][to] per axis, not normalised."""

    def log_prior(states: np.ndarray) -> np.ndarray:
        total = unary * states.reshape(len(states), -1).sum(1).astype(float)
        for axis, table in enumerate(log_tables, start=1):
            ahead = np.moveaxis(states, axis, -1)
            total += table[ahead[..., :-1], ahead[..., 1:]].reshape(len(states), -1).sum(1)
        return total

    return log_prior


def dictionary_sum_product(
    evidence: np.ndarray, unary: float, log_tables: Sequence[np.ndarray], iterations: int
) -> np.ndarray:
    """Textbook sum-product on a factor graph kept in dictionaries, two probabilities per message (paper (36), (37)).

    Returns ln v(1)/v(0) of all messages into a site but its evidence.
    """
    sites = list(np.ndindex(evidence.shape))
    edges = []
    for axis, log_table in enumerate(log_tables):
        for site in sites:
            other = list(site)
            other[axis] += 1
            if other[axis] < evidence.shape[axis]:
                edges.append((site, tuple(other), np.exp(log_table)))
    around: dict[tuple[int, ...], list[int]] = {site: [] for site in sites}
    for number, (i, j, _) in enumerate(edges):
        around[i].append(number)
        around[j].append(number)
    to_site = {(number, end): np.full(2, 0.5) for number, edge in enumerate(edges) for end in edge[:2]}

    def normalised(v: np.ndarray) -> np.ndarray:
        return v / v.sum()

    def unary_factor(site: tuple[int, ...]) -> np.ndarray:
        logit = evidence[site] + unary
        return normalised(np.exp(np.array([0, logit]) - max(0, logit)))

    for _ in range(iterations):
        new = {}
        for number, (i, j, table) in enumerate(edges):
            for sender, receiver, factor in ((i, j, table), (j, i, table.T)):
                cavity = unary_factor(sender)
                for other in around[sender]:
                    if other != number:
                        cavity = normalised(cavity * to_site[other, sender])
                new[number, receiver] = normalised(cavity @ factor)  # the sum over the sender's states
        to_site = new
    result = np.empty(evidence.shape)
    for site in sites:
        result[site] = unary + sum(np.log(m[1] / m[0]) for m in (to_site[k, site] for k in around[site]))
    return result
