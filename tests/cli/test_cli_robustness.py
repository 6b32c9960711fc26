"""`bayesprune robustness` from networks to table and picture: stopped, continued, and what it refuses."""

import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from bayesprune import artefact, data
from bayesprune.cli import robustness
from bayesprune.robustness import studying
from bayesprune.robustness.studying import measure

QUICK = (
    *("--device", "cpu", "--eps", "0,0.05,0.1", "--pgd-eps", "0.1", "--pgd-steps", 2, "--noise", "0,0.2"),
    *("--adversarial-epochs", 2, "--batch-size", 64),
)


def trained(seed):
    """A network that knows most digits."""
    loaded = data.load("digits", validation=0.2, seed=4)
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimiser = torch.optim.Adam(network.parameters(), 1e-2)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(5):
        for x, y in data.Batches(loaded.train, 64, generator):
            optimiser.zero_grad()
            functional.cross_entropy(network(x), y).backward()
            optimiser.step()
    with torch.no_grad():
        network[1].weight[network[1].weight.abs() < 0.05] = 0
        right = float((network(loaded.test.x).argmax(1) == loaded.test.y).double().mean())
    return network.eval(), right


@pytest.fixture(scope="module")
def made():
    return [trained(seed) for seed in (0, 1)]


def save(path, network, accuracy=None, **config):
    plan = {"model": "mlp", "data": "digits", "settings": {"validation": 0.2, "seed": 4}} | config
    path.parent.mkdir(parents=True, exist_ok=True)
    metrics = {} if accuracy is None else {"accuracy": accuracy}
    classes = tuple(map(str, range(10)))
    artefact.save(path, network, example_shape=(1, 8, 8), classes=classes, config=plan, metrics=metrics)
    return path


@pytest.fixture
def networks(made):
    return [
        save(Path(f"rows/{method}-best-0.safetensors"), *made[number], method=method)
        for number, method in enumerate(("ours", "snip"))
    ]


def figures(folder, name):
    """Of a record, without times."""
    text = (Path(folder) / "networks" / f"{name}.json").read_text()
    return json.loads(re.sub(r'"seconds": [0-9.]+', '"seconds": 0', text))


def test_two_networks_from_files_to_a_picture(call, networks, made):
    code, out, err = call("robustness", *networks, *QUICK, "-o", "out")
    assert code == 0, err
    assert {path.name for path in Path("out").iterdir()} == {
        *("networks", "robustness.json", "robustness.md", "robustness.png", "robustness.svg")
    }
    content = json.loads(Path("out/robustness.json").read_text())
    assert [one["method"] for one in content["networks"]] == ["ours", "snip"]
    for one, (network, right) in zip(content["networks"], made, strict=True):
        assert one["before"]["clean"]["accuracy"] == pytest.approx(right, abs=1e-6)  # normalised as in training
        assert (one["validation"], one["split_seed"]) == (0.2, 4)
        attacked = {part: one[part]["fgsm"][2]["accuracy"] for part in ("before", "after")}
        assert attacked["after"] > attacked["before"]
        hardened = artefact.load(f"out/networks/{one['name']}-hardened.safetensors")
        dead = network[1].weight == 0
        assert int(dead.sum()) > 50
        assert bool((hardened.get_submodule("1").weight[dead] == 0).all())
    assert content["adversarial"]["epochs"] == 2
    assert re.search(r"ours-best-0 +as it is +\d", out)
    assert re.search(r"snip-best-0 +adversarial +\d", out)
    assert "its file says" not in Path("out/robustness.md").read_text()


def test_stopped_it_goes_on_and_ends_in_the_same_place(call, networks, monkeypatch):
    measured = []

    def counted(*arguments, **named):
        measured.append(1)
        return measure(*arguments, **named)

    monkeypatch.setattr(studying, "measure", counted)
    assert call("robustness", *networks, *QUICK, "--quiet", "-o", "whole")[0] == 0
    assert len(measured) == 4

    steps = []

    def stop(watcher):
        steps.append(1)
        return len(steps) > 56  # 2 + 2 x 17 + 2 of the first network, 2 + 17 - 1 of the second: in its fine-tuning

    with monkeypatch.context() as patch:
        patch.setattr(robustness._Watcher, "should_stop", stop)
        code, out, _ = call("robustness", *networks, *QUICK, "-o", "parts")
    assert code == 130
    assert "stopped at snip-best-0; what is finished is kept" in out
    assert not Path("parts/robustness.json").exists()
    assert "after" not in figures("parts", "snip-best-0")
    first = Path("parts/networks/ours-best-0.json")
    stamp = first.stat().st_mtime_ns

    measured.clear()
    code, out, err = call("robustness", *networks, *QUICK, "-o", "parts")
    assert code == 0, err
    assert len(measured) == 1  # only the second network after fine-tuning
    assert "1 of 2 networks are finished and kept" in out
    assert first.stat().st_mtime_ns == stamp
    for name in ("ours-best-0", "snip-best-0"):
        assert figures("parts", name) == figures("whole", name)


def test_only_what_has_changed_is_measured_again(call, networks, made, monkeypatch):
    measured = []

    def counted(*arguments, **named):
        measured.append(1)
        return measure(*arguments, **named)

    monkeypatch.setattr(studying, "measure", counted)
    monkeypatch.setattr(robustness, "write_robustness", lambda *_: ([], ""))

    def work(*options):
        measured.clear()
        code, _, err = call("robustness", *networks, *QUICK, "--quiet", "-o", "out", *options)
        assert code == 0, err
        return len(measured)

    assert work("--adversarial-epochs", 0) == 2
    assert work("--adversarial-epochs", 0) == 0
    assert work() == 2  # the figures before fine-tuning are there
    assert work("--adversarial-epochs", 0) == 0
    assert work() == 0  # and so are those after it
    assert work("--learning-rate", 0.001) == 2
    assert work("--seed", 3) == 4
    assert work("--seed", 3, "--learning-rate", 0.002) == 2
    save(networks[1], made[0][0], method="snip")
    assert work("--seed", 3, "--learning-rate", 0.002) == 2
    Path("out/networks/ours-best-0.json").write_text("{")
    assert work("--seed", 3, "--learning-rate", 0.002) == 2
    Path("out/networks/ours-best-0-hardened.safetensors").unlink()
    assert work("--seed", 3, "--learning-rate", 0.002) == 1


def test_a_run_folder_with_its_dense_network(call):
    small = (
        "--model",
        "mlp",
        "--data",
        "digits",
        "--device",
        "cpu",
        "--quiet",
        "--no-bench",
        "--set",
        "batch_size=256",
    )
    epochs = [word for name in ("warmup", "prune", "finetune") for word in ("--set", f"{name}_epochs=1")]
    assert call("compress", *small, *epochs, "--name", "one")[0] == 0
    options = ("--device", "cpu", "--eps", "0,0.05", "--pgd-eps", "", "--noise", "", "--quiet")
    code, out, err = call("robustness", "runs/one", "--dense", *options)
    assert code == 0, err
    names = [one["name"] for one in json.loads(Path("robustness/robustness.json").read_text())["networks"]]
    assert names == ["one", "one-unpruned"]
    assert "PGD" not in out
    # a hardened network of one command can be the subject of another
    again = call("robustness", "runs/one/network.safetensors", *options, "--adversarial-epochs", 1, "-o", "second")
    assert again[0] == 0, again[2]
    hardened = "second/networks/one-hardened.safetensors"
    code, out, err = call("robustness", hardened, *options, "-o", "third")
    assert code == 0, err
    before = json.loads(Path("second/robustness.json").read_text())["networks"][0]["after"]["fgsm"]
    assert json.loads(Path("third/robustness.json").read_text())["networks"][0]["before"]["fgsm"] == before


def test_files_of_one_name_are_told_apart_and_the_same_one_is_refused(call, made):
    paths = [save(Path(f"{folder}/net.safetensors"), network) for folder, (network, _) in zip("ab", made, strict=True)]
    options = ("--device", "cpu", "--eps", "0.05", "--pgd-eps", "", "--noise", "", "--quiet")
    assert call("robustness", *paths, *options)[0] == 0
    names = {path.stem for path in Path("robustness/networks").glob("*.json")}
    assert len(names) == 2
    assert all(re.fullmatch(r"net-[0-9a-f]{8}", name) for name in names)
    code, _, err = call("robustness", paths[0], paths[0], *options)
    assert code == 1
    assert "was given twice" in err


def test_what_cannot_be_is_said(call, networks, made):
    other = save(Path("other.safetensors"), made[0][0], data="fashion-mnist")
    silent = save(Path("silent.safetensors"), made[0][0], data=None)
    for arguments, code, text in (
        (("missing",), 1, "there is no missing"),
        ((networks[0], other), 1, "compare networks of the same data"),
        ((silent,), 1, "does not say on which data; add --data"),
        ((silent, "--data", "mnist"), 2, "is not one of digits"),
        ((networks[0], "--eps", "0,x"), 2, "is not a list of numbers"),
        ((networks[0], "--eps", "0,...,0.1"), 2, "is not a list of numbers"),
        ((networks[0], "--eps", "0,0.03,...,0.1"), 2, "is not a list of numbers"),
        ((networks[0], "--eps", "2"), 1, "epsilons must be between 0 and 1 pixels, got 2.0"),
        ((networks[0], "--adversarial-eps", "0,0.1,0.2"), 2, "must be one or two numbers"),
        ((networks[0], "--dense", "--device", "nowhere"), 2, "cannot be used"),
    ):
        got, _, err = call("robustness", *arguments)
        assert (got, text in err) == (code, True), err
    assert not Path("robustness").exists()


def test_numbers_may_be_given_as_a_row():
    assert robustness._numbers(robustness.EPSILONS, "--eps") == tuple(round(n / 100, 2) for n in range(11))
    assert robustness._numbers("0.1,0.05", "--eps") == (0.1, 0.05)
    assert robustness._numbers("", "--noise") == ()


def test_help_teaches(call):
    code, out, _ = call("robustness", "--help")
    assert code == 0
    assert "bayesprune robustness runs/lenet5-digits-1 --dense" in out
