"""Imports everything once and forks processes that run the command line, alone or as a world of several ranks.

Every line on its stdin is a JSON object {"action": ..., "arguments": [...], "world": 1, "output": FILE, ...}; it says
`started PID ...`, and `ended CODE ...` when all are gone.  A rank that ends before the others takes them with it, as
torchrun does.
"""

import json
import os
import signal
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from turbo_examples import QUICK, coloured_images, residual

from bayesprune import data
from bayesprune.cli import main as command_line
from bayesprune.data import DataSet
from bayesprune.likelihoods import GaussianRegression, LearnedNoise
from bayesprune.models import create
from bayesprune.turbo import compress
from bayesprune.turbo.parallel import RanksDisagreeError, join_world, leave_world

SHORT = replace(QUICK, warmup_epochs=1, prune_epochs=2, finetune_epochs=1, batch_size=48)


def cli(*arguments):
    sys.argv = ["bayesprune", *arguments]
    command_line()


def in_world(work):
    world = join_world(torch.device("cpu"))
    try:
        return work(world)
    finally:
        leave_world(world)


def batchnorm(path, optimiser="adam"):
    """Compress a network with BatchNorm; rank 0 leaves its weights in `path`."""
    network = residual()
    settings = replace(SHORT, optimiser=optimiser, learning_rate=6e-3 if optimiser == "adam" else 0.05)
    result = in_world(lambda world: compress(network, coloured_images(), settings=settings, world=world))
    assert not any("forward" in module.__dict__ for module in network.modules())
    if os.environ.get("RANK", "0") == "0":
        save_file({k: v.contiguous() for k, v in network.state_dict().items()}, path)
        Path(path + ".json").write_text(json.dumps(result.history))


def learned_noise(path):
    """Compress a regression whose noise is learned: a parameter that is not the network's."""
    x = torch.randn(300, 6, generator=torch.Generator().manual_seed(0))
    examples = DataSet.from_tensors(x, x[:, :1], test=0.2, validation=0.2)
    network = create("mlp", (6,), 1, generator=torch.Generator().manual_seed(0), widths=(8,))
    likelihood = GaussianRegression(LearnedNoise(0.5))
    in_world(lambda world: compress(network, examples, settings=SHORT, likelihood=likelihood, world=world))
    rank = os.environ.get("RANK", "0")
    save_file({"log_variance": likelihood.log_variance.detach(), "weight": network.fc1.weight.detach()}, path + rank)


def disagree(path):
    """Rank 1 changes the sign of two weights: their sum and their squares stay the same."""

    def work(world):
        weight = torch.arange(6.0)
        world.check_equal([weight, weight > 2, torch.tensor(3)], "at first")
        if world.rank == 1:
            weight[[1, 2]] = weight[[2, 1]]
        world.check_equal([weight], "in prune epoch 7")

    try:
        in_world(work)
    except RanksDisagreeError as error:
        Path(path + os.environ["RANK"]).write_text(str(error))


def kill_after_rows(folder, rows, *arguments):
    """The command line; the last rank kills itself when the history has so many rows."""
    if os.environ["RANK"] == os.environ["LAST"]:
        history = Path(folder, "history.jsonl")

        def look(number, frame):
            if history.exists() and history.read_bytes().count(b"\n") >= int(rows):
                os.kill(os.getpid(), signal.SIGKILL)

        signal.signal(signal.SIGALRM, look)
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    cli(*arguments)


ACTIONS = {f.__name__: f for f in (cli, batchnorm, learned_noise, disagree, kill_after_rows)}


def child(task, rank, world, port):
    """Do the task in a fresh process; never returns."""
    output = os.open(task["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(output, number)
    os.chdir(task["folder"])
    if world > 1:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LAST=str(world - 1))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    code = 1
    try:
        ACTIONS[task["action"]](*task["arguments"])
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(children, kill_after, victims):
    """Exit codes by rank, negative for signals; `victims` are killed after some seconds."""
    codes, deadline = {}, None
    moment = None if kill_after is None else time.monotonic() + kill_after
    while len(codes) < len(children):
        for rank, pid in enumerate(children):
            if rank not in codes:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    codes[rank] = os.waitstatus_to_exitcode(status)
                    if codes[rank] != 0 and deadline is None:
                        deadline = time.monotonic() + 5
        if deadline is not None and time.monotonic() > deadline:
            for rank, pid in enumerate(children):
                if rank not in codes:
                    os.kill(pid, signal.SIGKILL)
            deadline = None
        if moment is not None and time.monotonic() > moment:
            for rank in victims:
                if rank not in codes:
                    os.kill(children[rank], signal.SIGKILL)
            moment = None
        time.sleep(0.002)
    return [codes[rank] for rank in range(len(children))]


def serve():
    torch.set_num_threads(1)
    data.load("digits")  # scikit-learn takes its time
    for line in sys.stdin:
        task = json.loads(line)
        world, port, children = task["world"], free_port(), []
        for rank in range(world):
            pid = os.fork()
            if pid == 0:
                child(task, rank, world, port)
            children.append(pid)
        os.write(1, f"started {' '.join(map(str, children))}\n".encode())
        os.write(1, f"ended {' '.join(map(str, wait_for(children, task['kill_after'], task['victims'])))}\n".encode())


if __name__ == "__main__":
    serve()
