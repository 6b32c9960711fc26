"""What the pages say to type exists, and what is quick is typed."""

import json
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
import typer.main
from markdown_pages import PAGES, ROOT, commands, prose_of
from typer.testing import CliRunner

from bayesprune.cli.app import app

RUN = "runs/lenet5-digits-1"
QUICK = [
    *("--set", "warmup_epochs=1", "--set", "prune_epochs=2", "--set", "finetune_epochs=1"),
    *("--no-bench", "--quiet", "--device", "cpu"),
]
QUICK_BENCH = ["--seconds", "0.01", "--runtimes", "eager"]
ALL = sorted({tuple(words) for page in PAGES for words in commands(page)})
OURS = [words for words in ALL if words[0] == "bayesprune"]
COMPRESSING = [words for words in OURS if words[1] == "compress" and "--resume" not in words]
READING = [words for words in OURS if RUN in words and words[1] not in ("compress", "figures")]
ELSEWHERE = {"--nproc-per-node"}  # options of other programs


def shown(words: tuple[str, ...]) -> str:
    return " ".join(words)


def command_and_rest(words: list[str]) -> tuple[click.Command, click.Context, list[str]]:
    """Go down the groups of commands: `reproduce table2 --row lenet5` -> the command `table2`, `--row lenet5`."""
    command = typer.main.get_command(app)
    context = click.Context(command)
    while isinstance(command, click.Group):
        if words[0].startswith("--"):  # `frontier --model` is `frontier run --model`
            words = ["run", *words]
        found = command.get_command(context, words[0])
        assert found is not None, f"there is no command {words[0]!r}"
        command, words = found, words[1:]
        context = click.Context(command, parent=context)
    return command, context, words


def check_bayesprune(words: list[str]) -> None:
    """Raise where an option does not exist or a word is too many."""
    command, context, rest = command_and_rest(words)
    _, left, _ = command.make_parser(context).parse_args(rest)
    assert not left


def check_command(words: list[str]) -> None:
    """Raise unless a command, its options and the files it runs are there."""
    program, *rest = words
    if program == "bayesprune":
        check_bayesprune(rest)
    elif program == "torchrun":
        assert rest[:2] == ["--nproc-per-node", "2"]
        check_command(["bayesprune", *rest[4:]] if rest[2:4] == ["-m", "bayesprune"] else ["python", *rest[2:]])
    elif program == "make":
        assert re.search(rf"^{rest[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif program in ("python", ".venv/bin/python"):
        assert (ROOT / (rest[2] if rest[:2] == ["-m", "pytest"] else rest[0])).exists()
    else:
        assert words == [".venv/bin/pre-commit", "install"]
        assert (ROOT / ".pre-commit-config.yaml").exists()


@pytest.mark.parametrize("words", ALL, ids=shown)
def test_a_command_that_a_page_shows_exists(words):
    check_command(list(words))


@pytest.mark.parametrize("wrong", ["bayesprune compress --sped", "bayesprune sing", "make coffee", "rm -r ."])
def test_the_check_can_fail(wrong):
    with pytest.raises((AssertionError, click.UsageError)):
        check_command(wrong.split())


def options_of(command: click.Command) -> set[str]:
    found = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return found.union(*map(options_of, command.commands.values())) if isinstance(command, click.Group) else found


def test_options_that_the_text_names_exist():
    known = options_of(typer.main.get_command(app)) | ELSEWHERE
    for page in PAGES:
        for code in re.findall(r"`([^`]+)`", prose_of(page)):
            for option in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", code):
                assert option in known, f"{page.name} names {option}"


def test_make_demo_is_what_the_start_page_says():
    recipe = re.search(r"^demo:.*\n\t\$\(BIN\)/(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    assert tuple(recipe[1].split()) in COMPRESSING


def type_in(folder: Path, words: list[str]) -> str:
    """What a `bayesprune ...` prints when it is typed in a folder; an error unless it succeeds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("COLUMNS", "200")
        done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in which a run has finished."""
    place = tmp_path_factory.mktemp("typed")
    (place / "configs").symlink_to(ROOT / "configs")
    type_in(place, ["compress", "--config", "configs/demo.yaml", *QUICK])
    assert (place / RUN / "network.safetensors").exists()
    return place


@pytest.mark.parametrize("words", READING, ids=shown)
def test_commands_that_read_a_run_work(words, folder):
    type_in(folder, [*words[1:], *(QUICK_BENCH if words[1] == "bench" else [])])


@pytest.mark.parametrize("words", COMPRESSING, ids=shown)
def test_commands_that_compress_work_with_fewer_epochs(words, folder):
    name = f"typed-{COMPRESSING.index(words)}"
    type_in(folder, [*words[1:], *QUICK, "--name", name])
    assert json.loads((folder / "runs" / name / "summary.json").read_text())["nonzero_fraction"] > 0


def test_the_page_of_the_frontier_works_as_printed(tmp_path):
    """Its commands in their order, but for the large one."""
    typed = [words for words in commands(ROOT / "docs" / "frontier.md") if "fashion-mnist" not in words]
    assert [words[2] for words in typed] == ["--model", "pick", "run"]
    printed = "".join(type_in(tmp_path, [*words[1:], "--device", "cpu"]) for words in typed)
    (head,) = [line for line in (ROOT / "docs" / "frontier.md").read_text().splitlines() if line.startswith("member ")]
    assert head in printed
    assert (tmp_path / "small.safetensors").exists()


AS_PRINTED = [
    words for words in ALL if words[0] == "torchrun" or words in COMPRESSING or words[1] in ("bench", "figures")
]


@pytest.mark.slow
@pytest.mark.parametrize("words", AS_PRINTED, ids=shown)
def test_commands_work_as_printed(words, folder):
    (folder / "examples").unlink(missing_ok=True)
    (folder / "examples").symlink_to(ROOT / "examples")
    module = {"bayesprune": ["bayesprune"], "torchrun": ["torch.distributed.run", "--standalone"]}[words[0]]
    subprocess.run([sys.executable, "-m", *module, *words[1:]], cwd=folder, check=True)


@pytest.mark.slow
def test_two_processes_with_their_own_loop_agree_on_a_small_network(tmp_path):
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", ROOT / "examples" / "data_parallel.py"]
    done = subprocess.run([sys.executable, "-m", *command], cwd=tmp_path, check=True, capture_output=True, text=True)
    figures = re.search(
        r"2 processes, accuracy ([\d.]+)%\n([\d.]+)% of the weights, ([\d.]+)% of the MACs", done.stdout
    )
    assert figures is not None, done.stdout
    accuracy, live, removed = map(float, figures.groups())
    assert accuracy > 95
    assert live < 10
    assert removed > 50
