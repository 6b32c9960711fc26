"""A small run to be killed: every step keeps messages, adds two rows and saves a checkpoint.

Started as a program it imports everything once and forks a worker for every line on its stdin, `FOLDER [CALL]`: it says
`started PID`, then `saved N` after every checkpoint, and `ended` when the worker is gone.  With CALL the worker kills
itself at its CALL-th call of a function that touches the disk; where there are fewer, it stops after a few steps.
"""

import hashlib
import os
import signal
import sys
from pathlib import Path

import torch

from bayesprune.runs import LayerMessages, Messages, RunFolder

DISK_CALLS = ("open", "write", "fsync", "ftruncate", "replace", "link", "pwrite", "mkdir", "unlink")


def value_after(value):
    """The next of a chain of values: a step that is lost, or done twice, shows in all that follow."""
    return hashlib.sha256(value.encode()).hexdigest()


def chain(steps):
    values = ["start"]
    for _ in range(steps):
        values.append(value_after(values[-1]))
    return values


def take_up(path):
    """Create or resume the run; return it with its state."""
    if Path(path, "config.json").exists():
        run = RunFolder.open(path)
        state = run.load_checkpoint()
        if state is not None:
            run.rewind(state["rows"])
            return run, state
        run.rewind(0)
    else:
        run = RunFolder.create(path, {"seed": 0})
    return run, {"count": 0, "rows": 0, "value": "start", "tensor": torch.zeros(2000)}


def messages_of(count):
    window = torch.full((2, 3), count % 256, dtype=torch.uint8)
    return Messages(count, {"fc": LayerMessages((2, 3), window, window.clone(), window.clone())})


def step(run, state):
    """Messages, two rows and one checkpoint per step."""
    count = state["count"] + 1
    value = value_after(state["value"])
    run.append({"count": count, "half": 1, "value": value})
    run.write_messages(messages_of(count))
    run.append({"count": count, "half": 2, "value": value, "message_change": 0.1, "filler": "x" * 500})
    state = {"count": count, "rows": run.rows, "value": value, "tensor": torch.full((2000,), float(count))}
    run.save_checkpoint(state)
    return state


def work(path, report, steps=None):
    run, state = take_up(path)
    while steps is None or steps > 0:
        state = step(run, state)
        report(f"saved {state['count']}")
        steps = None if steps is None else steps - 1
    run.close()


def kill_at(call):
    """Have this process killed at the `call`-th call that touches the disk; a write gets half of its bytes out."""
    left = call

    def deadly(name, original):
        def function(*arguments, **options):
            nonlocal left
            left -= 1
            if left == 0:
                if name == "write":
                    original(arguments[0], arguments[1][: len(arguments[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments, **options)

        return function

    for name in DISK_CALLS:
        setattr(os, name, deadly(name, getattr(os, name)))


def main():
    write = os.write

    def report(text):
        write(1, text.encode() + b"\n")

    for line in sys.stdin:
        path, *call = line.split()
        child = os.fork()
        if child == 0:
            report(f"started {os.getpid()}")
            if call:
                kill_at(int(call[0]))
            work(path, report, steps=2 if call else None)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        report("ended" if os.WIFSIGNALED(status) else f"ended with {os.WEXITSTATUS(status)}")


if __name__ == "__main__":
    main()
