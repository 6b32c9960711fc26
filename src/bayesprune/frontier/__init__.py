"""Many settings at once, and of what they give the networks that no other one beats.

members = train(lambda settings: make_network(settings.seed), data, expand({"unit_strength": [3000, 5000]}))
best = [members[place] for place in front([member.record() for member in members])]
"""

from bayesprune.frontier.ensemble import check_settings, train
from bayesprune.frontier.folder import FrontierFolder, explore, read_frontier, resume_command
from bayesprune.frontier.grid import default_grid, expand
from bayesprune.frontier.members import Member
from bayesprune.frontier.one_by_one import train_one_by_one
from bayesprune.frontier.pareto import best_accuracy, front, pareto, pick

__all__ = [
    "FrontierFolder",
    "Member",
    "best_accuracy",
    "check_settings",
    "default_grid",
    "expand",
    "explore",
    "front",
    "pareto",
    "pick",
    "read_frontier",
    "resume_command",
    "train",
    "train_one_by_one",
]
