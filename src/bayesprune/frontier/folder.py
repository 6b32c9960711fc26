"""A frontier on disk: frontier.json, the networks on the front, a picture; complete at any moment.

with FrontierFolder.create(path, plan) as folder:
    explore(folder, network, data)
"""

import contextlib
import copy
import shlex
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn

from bayesprune import artefact
from bayesprune.data import DataSet
from bayesprune.frontier.ensemble import NetworkSource, train
from bayesprune.frontier.figure import draw
from bayesprune.frontier.members import Member
from bayesprune.frontier.one_by_one import train_one_by_one
from bayesprune.frontier.pareto import front
from bayesprune.provenance import hardware, versions
from bayesprune.runs import DamagedCheckpointError, RunError, checkpoint
from bayesprune.runs.atomic import remove_temporary_files, write_atomically
from bayesprune.runs.disk_errors import FULL, reading, starting
from bayesprune.runs.lock import FolderLock
from bayesprune.runs.plain_json import read_json, to_json
from bayesprune.structure import macs, trace, widths
from bayesprune.surgery import ProofError, operate, prove
from bayesprune.turbo import Recorder, Settings

FRONTIER, FIGURE, MEMBERS, CHECKPOINT, LOCK = (
    *("frontier.json", "frontier.png", "members", "checkpoint.safetensors", "lock"),
)
PROOF_EXAMPLES = 256  # of the validation split, and as many random ones

RecorderOf = Callable[[Callable[[dict[str, Any]], None] | None, int], Recorder]
"""Makes the recorder of a chunk from what saves a state (None: nothing can be saved) and the epochs done before."""


class FrontierFolder:
    """What a frontier leaves on disk; locked until `close`.

    content: what frontier.json holds.  plan: model, data, order_seed, validation, chunk, one_by_one, settings.
    members: a record for each that is done, in the order of the plan's settings.
    """

    def __init__(self, path: Path, lock: FolderLock, content: dict[str, Any]) -> None:
        self.path, self._lock, self.content = path, lock, content

    @classmethod
    def create(cls, path: Path, plan: Mapping[str, Any]) -> Self:
        """Start a frontier in the folder `path`, made where needed."""
        with starting(path):
            try:
                path.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError):
                raise RunError(f"{path} is not a folder, and cannot become one; choose another --name") from None
            if any((path / name).exists() for name in (FRONTIER, "config.json")):
                raise RunError(f"{path} already holds a frontier or a run; choose another --name, or --resume it")
            content = {"plan": dict(plan), "members": [], "finished": False, "seconds": 0.0}
            folder = cls(path, FolderLock(path / LOCK), content)
        try:
            (path / MEMBERS).mkdir(exist_ok=True)
            folder.write()
        except BaseException:
            folder.close()
            raise
        return folder

    @classmethod
    def open(cls, path: Path) -> Self:
        """Take over the frontier in the folder `path` to continue it."""
        content = read_frontier(path)
        with starting(path):
            return cls(path, FolderLock(path / LOCK), content)

    @property
    def plan(self) -> dict[str, Any]:
        return dict(self.content["plan"])

    @property
    def members(self) -> list[dict[str, Any]]:
        return self.content["members"]  # type: ignore[no-any-return]

    @property
    def settings(self) -> list[Settings]:
        """Of all members, done or not."""
        return [Settings.from_dict(one) for one in self.content["plan"]["settings"]]

    def write(self) -> None:
        """Put frontier.json on disk."""
        with self._writing(FRONTIER) as path:
            remove_temporary_files(path)
            write_atomically(path, [to_json(self.content, path, indent=2).encode() + b"\n"])

    def save_state(self, state: dict[str, Any]) -> None:
        """Write the state of the chunk that is being trained."""
        with self._writing(CHECKPOINT) as path:
            checkpoint.save(path, {"members": len(self.members), "state": state})

    def load_state(self) -> dict[str, Any] | None:
        """The state of the next chunk, None where it has not begun or cannot be read."""
        path = self.path / CHECKPOINT
        if not path.exists():
            return None
        try:
            saved = checkpoint.load(path)
        except DamagedCheckpointError:
            return None
        return saved["state"] if saved["members"] == len(self.members) else None

    def add(self, members: Sequence[Member], data: DataSet, seconds: float) -> None:
        """Record members, and write the networks of those on the front so far."""
        first = len(self.members)
        records = self.members + [member.record() for member in members]
        written: dict[int, dict[str, Any]] = {}
        # One that cannot be proven leaves the front, which may bring another one in.
        while fresh := [place for place in front(records) if place >= first and place not in written]:
            for place in fresh:
                try:
                    written[place] = self._write_member(place, members[place - first], records[place], data)
                except ProofError as error:
                    records[place]["status"] = f"not proven: {error}"
        on_front = set(front(records))
        for place, record in enumerate(records):
            record.update(written.get(place, {}))
            record["number"], record["front"] = place, place in on_front
            record["file"] = str(self._member_path(place).relative_to(self.path)) if place in on_front else None
        self.content["members"] = records
        self.content["seconds"] = round(self.content["seconds"] + seconds, 2)
        self.content |= {"versions": versions(), "hardware": hardware(data.train.x.device)}
        self.content["finished"] = len(records) == len(self.content["plan"]["settings"])
        self.write()
        for file in (self.path / MEMBERS).glob("*.safetensors"):
            if file.stem not in {f"{place:03d}" for place in on_front}:
                file.unlink()
        (self.path / CHECKPOINT).unlink(missing_ok=True)

    def write_figure(self) -> None:
        """Draw what is done so far; ImportError without matplotlib."""
        title = f"{self.plan['model']} on {self.plan['data']}, {len(self.members)} settings"
        with self._writing(FIGURE) as path:
            write_atomically(path, [draw(self.members, title)])

    def close(self) -> None:
        """Let the next process have the folder."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _member_path(self, place: int) -> Path:
        return self.path / MEMBERS / f"{place:03d}.safetensors"

    def _write_member(self, place: int, member: Member, record: dict[str, Any], data: DataSet) -> dict[str, Any]:
        """Write the smaller network of a member, proven and read back; returns its figures."""
        shrunk, figures = shrink_member(member, data)
        plan = self.plan
        config = {"model": plan["model"], "data": plan["data"], "weights": None, "settings": record["settings"]}
        with self._writing(f"{MEMBERS}/{place:03d}.safetensors") as path:
            artefact.save(
                path,
                shrunk,
                example_shape=data.input_shape,
                config=config,
                metrics={key: value for key, value in record.items() if key != "settings"} | figures,
                classes=data.classes,
            )
        x = data.train.x[:PROOF_EXAMPLES].cpu()
        with torch.no_grad():
            if not torch.equal(artefact.load(path)(x), shrunk.cpu()(x)):
                raise RunError(f"the network read back from {path} gives other outputs than the one written; try again")
        return figures | {"bytes": path.stat().st_size}

    @contextlib.contextmanager
    def _writing(self, name: str) -> Iterator[Path]:
        try:
            yield self.path / name
        except OSError as error:
            reason = FULL.get(error.errno or 0, error.strerror or str(error))
            raise RunError(
                f"cannot write {self.path / name}: {reason}; the members in {FRONTIER} are safe, continue with: "
                f"{resume_command(self.path)}"
            ) from error


def resume_command(path: Path) -> str:
    """What to type to continue the frontier in `path`."""
    return f"bayesprune frontier run --resume {shlex.quote(str(path))}"


def read_frontier(path: Path) -> dict[str, Any]:
    """What frontier.json in the folder `path` holds; needs no lock."""
    with reading(path / FRONTIER):
        try:
            content = read_json(path / FRONTIER)
        except (FileNotFoundError, NotADirectoryError):
            raise RunError(
                f"there is no frontier in {path}: it has no {FRONTIER}; make one with: bayesprune frontier run"
            ) from None
    if not isinstance(content.get("plan"), dict) or not isinstance(content.get("members"), list):
        raise RunError(f"{path / FRONTIER} is not what a frontier wrote: it needs plan and members; put it back")
    return content


def shrink_member(member: Member, data: DataSet) -> tuple[nn.Module, dict[str, Any]]:
    """The smaller network of a member, and its figures; ProofError unless it computes the same."""
    assert data.validation is not None
    masked = copy.deepcopy(member.network).cpu().eval()
    example = data.train.x[:2].cpu()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the surgery's notes say it
        surgery = operate(masked, {name: mask.cpu() for name, mask in member.masks.items()}, example)
        shrunk = surgery.network.eval()
        traced = trace(shrunk, example)
    x = data.validation.x[:PROOF_EXAMPLES].cpu()
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)
    return shrunk, {
        "parameters_shrunk": sum(p.numel() for p in shrunk.parameters()),
        "macs_shrunk": macs(traced),
        "structure_shrunk": widths(traced),
        "surgery_notes": list(surgery.notes),
        "proof": prove(masked, shrunk, [x, noise]).as_dict(),
    }


def explore(
    folder: FrontierFolder, network: NetworkSource, data: DataSet, recorder_of: RecorderOf | None = None
) -> list[dict[str, Any]]:
    """Train the members that the folder lacks, chunk by chunk, and return all records.

    data: with the validation split of the plan.  Raises Interrupted where a recorder asks to stop; the next call goes
    on with the last state that was saved.
    """
    plan, settings = folder.plan, folder.settings
    chunk = 1 if plan["one_by_one"] else plan["chunk"]
    while len(folder.members) < len(settings):
        started = time.perf_counter()
        first = len(folder.members)
        part = settings[first : first + chunk]
        before = sum(one.warmup_epochs + one.prune_epochs + one.finetune_epochs for one in settings[:first:chunk])
        if plan["one_by_one"]:
            recorder = recorder_of(None, before) if recorder_of else None
            members = train_one_by_one(network, data, part, order_seed=plan["order_seed"], recorder=recorder)
        else:
            state = folder.load_state()
            done = before + (state["rows"] if state else 0)
            recorder = recorder_of(folder.save_state, done) if recorder_of else None
            members = train(network, data, part, order_seed=plan["order_seed"], recorder=recorder, resume=state)
        folder.add(members, data, time.perf_counter() - started)
    return folder.members
