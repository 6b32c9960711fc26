"""`compile`: the fastest way, and always the same answer."""

import copy
import threading
from types import SimpleNamespace

import pytest
import torch
from runtime_networks import images, small_network
from torch import nn
from torch.nn.utils import prune

from bayesprune.runtime import Compiled, UnsupportedError, compile, compiled, fastest_native, native
from bayesprune.runtime.fused import fused

needs_engine = pytest.mark.skipif(native.library() is None, reason="the native engine is not built: no C compiler")


@pytest.mark.parametrize("batch", [1, 7, 100])
def test_the_answer_is_that_of_the_network(batch):
    network, x = small_network(), images(batch)
    fast = compile(network, x)
    with torch.no_grad():
        expected = network(x)
    torch.testing.assert_close(fast(x), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(fast(x.double().float()), expected, rtol=1e-5, atol=1e-5)
    assert not fast(x).requires_grad


@needs_engine
def test_the_fastest_way_is_chosen_and_remembered(monkeypatch):
    times = {"torch": 3.0, "torch, channels last": 2.0, "native, 16 lanes": 1.5, "native, 32 lanes": 1.0}
    asked = []

    def seconds(ways, x):
        asked.extend(ways)
        return {name: times.get(name, 9.0) for name in ways}

    names = ["torch", "torch, channels last", "native, 16 lanes", "native, 32 lanes", "native, 64 lanes"]
    monkeypatch.setattr(compiled, "_seconds", seconds)
    fast, x = compile(small_network(), images(1)), images(61)
    fast(x)
    fast(images(64))  # the same eighth of a power of two
    assert asked == names
    (choice,) = fast._choices.values()
    assert choice.way == "native, 32 lanes"
    threads = torch.get_num_threads()
    assert fast.explain()["choices"][f"batch up to 64, {threads} threads"]["way"] == "native, 32 lanes"
    times |= {"native, 16 lanes": 1.99, "native, 32 lanes": 1.99}  # within the noise of torch
    asked.clear()
    fast(images(65))
    assert fast._choices[72, threads].way == "torch, channels last"


@needs_engine
def test_a_choice_serves_sizes_that_are_nearly_the_same():
    """33 examples in 64 lanes are far from 64 of them."""
    sizes = range(1, 1025)
    groups = {largest: [size for size in sizes if compiled.rounded_up(size) == largest] for largest in sizes}
    groups = {largest: members for largest, members in groups.items() if members}
    assert all(members[-1] == largest <= 1.125 * members[0] for largest, members in groups.items())
    assert len(groups) == 16 + 6 * 8
    fast = compile(small_network(), images(1))
    for size in (64, 33, 36, 63):
        fast(images(size))
    assert [size for size, _ in fast._choices] == [64, 36]


@needs_engine
def test_ways_that_fail_are_left_out_and_named(monkeypatch):
    class CompilationError(Exception):
        """As Triton's: no RuntimeError."""

    def fail(self, x, lanes):
        raise CompilationError("no such instruction")

    monkeypatch.setattr(Compiled, "_native", fail)
    fast, x = compile(small_network(), images(1)), images(5)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), small_network()(x), rtol=1e-5, atol=1e-5)
    (choice,) = fast.explain()["choices"].values()
    assert choice["left_out"] == dict.fromkeys(
        ["native, 1 lane", "native, 16 lanes"], "CompilationError: no such instruction"
    )


def test_an_error_of_the_network_itself_is_not_hidden():
    class Failing(nn.Module):
        def forward(self, x):
            raise KeyError("its own")

    with pytest.raises(KeyError, match="its own"):
        compile(Failing(), images(1))(images(2))


@needs_engine
def test_what_was_not_chosen_holds_no_memory(monkeypatch):
    ways = iter(["native, 16 lanes", "torch", "torch, channels last"])

    def seconds(measured, x):
        best = next(ways)
        return {name: 1.0 if name == best else 2.0 for name in measured}

    monkeypatch.setattr(compiled, "_seconds", seconds)
    fast = compile(small_network(), images(1))
    held = []
    for size in (3, 50, 100):
        fast(images(size))
        held.append((list(fast._programs), fast._channels_last is not None))
    assert held == [([16], False), ([16], False), ([16], True)]


@needs_engine
def test_lanes_that_need_too_much_memory_are_left_out(monkeypatch):
    fast, x = compile(small_network(), images(1)), images(50)
    needed = {lanes: native.Program(fast._lowered, lanes)._bytes for lanes in compiled.LANES}
    monkeypatch.setattr(native, "MOST_BYTES", needed[16])
    with torch.no_grad():
        torch.testing.assert_close(fast(x), small_network()(x), rtol=1e-5, atol=1e-5)
    (choice,) = fast.explain()["choices"].values()
    assert set(choice["left_out"]) == {"native, 32 lanes", "native, 64 lanes"}
    assert "MiB for every thread" in choice["left_out"]["native, 64 lanes"]
    assert fastest_native(small_network(), x)._way == "native, 16 lanes"
    monkeypatch.setattr(native, "MOST_BYTES", 1)
    with pytest.raises(UnsupportedError, match="MiB for every thread"):
        fastest_native(small_network(), x)


@needs_engine
def test_the_fastest_program_is_the_only_one_that_is_kept():
    run = fastest_native(small_network(), images(64))
    assert [f"native, {lanes} lanes" for lanes in run._compiled._programs] == [run._way]


def test_ways_take_turns_until_they_cannot_win(monkeypatch):
    calls, now = [], [0.0]
    clock = SimpleNamespace(perf_counter=lambda: now[0])  # with the machine's own, other programs decide
    monkeypatch.setattr(compiled, "time", clock)

    def way(name, seconds):
        def run(x):
            calls.append(name)
            now[0] += seconds
            return x

        return run

    ways = {"slow": way("slow", 0.03), "good": way("good", 0.008), "same": way("same", 0.008)}
    found = compiled._seconds(ways, torch.zeros(1))
    assert calls[:6] == ["slow", "good", "same"] * 2
    assert calls.count("slow") == compiled.FEWEST_TURNS
    assert calls.count("good") == calls.count("same") > compiled.FEWEST_TURNS
    assert found == pytest.approx({"slow": 0.03, "good": 0.008, "same": 0.008})


@pytest.mark.parametrize("other", [100e-6, 20e-3])
def test_a_slow_start_does_not_choose(monkeypatch, other):
    now, runs = [0.0], {"steady": 0, "late": 0, "other": 0}
    monkeypatch.setattr(compiled, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def way(name, first, then):
        def run(_):
            runs[name] += 1
            now[0] += first if runs[name] <= 12 else then

        return run

    ways = {
        "steady": way("steady", 100e-6, 100e-6),
        "late": way("late", 400e-6, 50e-6),
        "other": way("other", other, other),
    }
    found = compiled._seconds(ways, torch.zeros(1))
    assert found == pytest.approx({"steady": 100e-6, "late": 50e-6, "other": other})


def test_close_ways_are_looked_at_again(monkeypatch):
    looks = iter([{"disturbed": 1.1, "good": 1.05, "slow": 2.0}, {"disturbed": 0.9, "good": 1.06}])
    asked = []

    def seconds(ways, _):
        asked.append(list(ways))
        return next(looks)

    monkeypatch.setattr(compiled, "_seconds", seconds)
    ways = dict.fromkeys(["disturbed", "good", "slow"], torch.relu)
    assert compiled._seconds_twice(ways, torch.zeros(1)) == {"disturbed": 0.9, "good": 1.05, "slow": 2.0}
    assert asked == [["disturbed", "good", "slow"], ["disturbed", "good"]]


def test_one_lucky_run_does_not_choose():
    lucky, steady = [1.0, *[3.0] * 11], [2.0] * 12
    assert compiled.lower_quartile(lucky) > compiled.lower_quartile(steady)
    assert compiled.lower_quartile([4.0, 1.0, 3.0, 2.0]) == 1.0
    assert compiled.lower_quartile([float(n) for n in range(101)]) == 25.0


@needs_engine
def test_every_way_gives_the_same():
    fast, x = compile(small_network(), images(1)), images(33)
    with torch.inference_mode():
        answers = [fast._way(name)(x) for name in fast._measure(x).seconds]
    assert len(answers) == 5
    for answer in answers[1:]:
        torch.testing.assert_close(answer, answers[0], rtol=1e-5, atol=1e-5)


def test_joined_operations_are_a_way():
    """On a GPU; here it is only seen that they give the same."""
    network, x = small_network(), images(6)
    fast = compile(network, x)
    assert fast._fused_ways() == []
    fast._fused = {multiple: fused(network, (1, 28, 28), multiple) for multiple in (1, 8)}
    assert fast._fused_ways() == ["fused, widths of 1, graph", "fused, widths of 8, graph"]
    with torch.inference_mode():
        for name in fast._fused_ways():
            torch.testing.assert_close(fast._to_capture(name, x)(x), network(x), rtol=1e-5, atol=1e-5)
    assert not any("fused" in name for name, _ in fast.named_modules())


def test_what_the_engine_has_not_runs_in_torch():
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sigmoid(), nn.Flatten())
    fast = compile(network, images(1))
    x = images(3)
    with torch.no_grad():
        assert torch.equal(fast(x), network.eval()(x))
    if native.library() is not None:
        assert "Sigmoid" in fast.explain()["lowered"]


def test_other_inputs_go_through_torch():
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    fast = compile(network, images(1))
    larger = torch.randn(2, 1, 40, 40)
    with torch.no_grad():
        assert torch.equal(fast(larger), network(larger))
        assert torch.equal(fast(images(0)), network(images(0)))
        doubled = copy.deepcopy(network).double()
    assert torch.equal(compile(doubled, images(1))(images(2).double()), doubled(images(2).double()))


def test_the_network_given_stays_as_it_is():
    network = small_network().train()
    compile(network, images(2))(images(2))
    assert network.training


def test_copies_are_of_their_own():
    fast, x = compile(small_network(), images(1)), images(4)
    expected = fast(x)
    twin = copy.deepcopy(fast)
    del fast
    assert isinstance(twin, Compiled)
    torch.testing.assert_close(twin(x), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(TypeError, match="save the network itself"):
        twin.__getstate__()


def test_threads_share_it():
    fast, x = compile(small_network(), images(1)), images(64)
    expected = fast(x)
    wrong = []

    def work():
        for _ in range(10):
            if not torch.allclose(fast(x), expected, rtol=1e-5, atol=1e-5):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_without_an_engine_it_says_so(monkeypatch):
    monkeypatch.setattr(native, "library", lambda: None)
    with pytest.warns(UserWarning, match="not built"):
        fast = compile(small_network(), images(1))
    with torch.no_grad():
        assert torch.equal(fast(images(3)), small_network()(images(3)))


class Writing(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = small_network()

    def forward(self, x):
        x += torch.relu(x)
        return self.inner(x)


def test_measuring_leaves_the_input_alone():
    network, x = Writing().eval(), images(8)
    with torch.no_grad():
        expected = network(x.clone())
        torch.testing.assert_close(compile(network, images(1))(x.clone()), expected, rtol=1e-5, atol=1e-5)


def test_other_weights_are_those_of_every_way():
    fast, x = compile(small_network(), images(1)), images(8)
    fast(x)
    other = small_network()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(-0.5)
        expected = other(x)
    fast.load_state_dict({f"network.{name}": value for name, value in other.state_dict().items()})
    fast(x)
    with torch.no_grad():
        for way in fast._ways(x):
            torch.testing.assert_close(fast._way(way)(x), expected, rtol=1e-5, atol=1e-5)


def test_it_stays_in_eval_mode():
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 10), nn.Dropout(0.9), nn.BatchNorm1d(10)).eval()
    fast, x = compile(network, images(1)).train(), images(8)
    assert not any(module.training for module in fast.network.modules())
    with torch.no_grad():
        torch.testing.assert_close(fast(x), network(x), rtol=1e-5, atol=1e-5)


def test_a_student_may_learn_from_it():
    """Results are ordinary tensors: they can be part of a loss."""
    fast, x, student = compile(small_network(), images(1)), images(8), small_network()
    (student(x) * fast(x)).sum().backward()
    with torch.inference_mode():
        fast(x)
    (student(x) * fast(x)).sum().backward()
    assert all(parameter.grad is not None for parameter in student.parameters())


def test_masks_that_are_not_part_of_the_weights_are_named():
    network = small_network()
    layer = next(module for module in network.modules() if isinstance(module, nn.Conv2d))
    prune.random_unstructured(layer, "weight", amount=0.5)
    with pytest.raises(ValueError, match=r"prune\.remove"):
        compile(network, images(1))
    prune.remove(layer, "weight")
    with torch.no_grad():
        torch.testing.assert_close(compile(network, images(1))(images(4)), network(images(4)), rtol=1e-5, atol=1e-5)


def test_several_results_run_in_torch():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = small_network()

        def forward(self, x):
            return self.inner(x), x

    network = Two().eval()
    first, second = compile(network, images(1))(images(3))
    with torch.no_grad():
        assert torch.equal(first, network(images(3))[0])
    assert torch.equal(second, images(3))


@needs_engine
@pytest.mark.parametrize(("examples", "lanes"), [(1, [1, 16]), (16, [1, 16]), (17, [16, 32]), (64, [16, 32, 64])])
def test_lanes_that_would_stay_empty_are_not_tried(examples, lanes):
    fast = compile(small_network(), images(1))
    ways = [f"native, {number} lane{'s' * (number > 1)}" for number in lanes]
    assert [way for way in fast._ways(images(examples)) if way.startswith("native")] == ways
