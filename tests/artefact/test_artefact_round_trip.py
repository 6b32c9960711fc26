"""A network that is saved and loaded computes the same, to the bit, without its class."""

import copy
import errno
import operator
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from artefact_networks import Attention, Net, SelfMade, Transposed, every_dtype, networks, small
from safetensors import safe_open
from safetensors.torch import save_file
from torch import fx, nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils import _pytree

from bayesprune import artefact
from bayesprune.artefact import ArtefactError, ArtefactWarning, closed_list
from bayesprune.structure import operations
from bayesprune.surgery import operate
from bayesprune.surgery.attention import SlimAttention

NETWORKS = networks()


def leaves(value):
    return _pytree.tree_flatten(value)[0]


def assert_same(result, expected):
    assert len(leaves(result)) == len(leaves(expected))
    for one, other in zip(leaves(result), leaves(expected), strict=True):
        if isinstance(other, torch.Tensor):
            assert one.dtype == other.dtype
            assert one.shape == other.shape
            bits = [tensor.reshape(-1).contiguous().view(torch.uint8) for tensor in (one, other)]
            assert torch.equal(*bits)
        else:
            assert one == other


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Every network saved here, loaded and run in a process that does not have its class."""
    folder = tmp_path_factory.mktemp("artefacts")
    (folder / "inputs").mkdir()
    (folder / "outputs").mkdir()
    for name, (network, inputs) in NETWORKS.items():
        artefact.save(folder / f"{name}.safetensors", network)
        save_file(dict(zip("abc", inputs, strict=False)), folder / "inputs" / f"{name}.safetensors")
    script = Path(__file__).with_name("load_artefacts.py")
    command = [sys.executable, "-W", "error", "-I", str(script), str(folder), str(torch.get_num_threads())]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("name", NETWORKS)
def test_a_fresh_process_computes_the_same(folder, name):
    network, inputs = NETWORKS[name]
    with torch.no_grad():
        expected = leaves(copy.deepcopy(network).eval()(*inputs))
    with safe_open(folder / "outputs" / f"{name}.safetensors", "pt") as file:
        found = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
        texts = file.metadata() or {}
    assert len(found) + len(texts) == len(expected)
    for i, one in enumerate(expected):
        if isinstance(one, torch.Tensor):
            assert_same(found[str(i)], one)
        else:
            assert texts[str(i)] == str(one)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_loaded_network_can_be_saved_again(folder, name, tmp_path):
    network, inputs = NETWORKS[name]
    loaded = artefact.load(folder / f"{name}.safetensors")
    artefact.save(tmp_path / "again.safetensors", loaded)
    again = artefact.load(tmp_path / "again.safetensors")
    assert isinstance(again, fx.GraphModule)
    assert again.code == loaded.code
    with torch.no_grad():
        assert_same(again(*inputs), copy.deepcopy(network).eval()(*inputs))


def test_a_loaded_network_can_be_copied_and_trained(folder):
    _, inputs = NETWORKS["resnet20"]
    loaded = copy.deepcopy(artefact.load(folder / "resnet20.safetensors"))
    loaded.train()(*inputs).sum().backward()
    assert all(parameter.grad is not None for parameter in loaded.parameters())


@pytest.mark.gpu
def test_a_network_on_a_gpu(tmp_path):
    for name in ("resnet20", "attention", "transposed"):
        network, inputs = NETWORKS[name]
        artefact.save(tmp_path / "a.safetensors", copy.deepcopy(network).cuda())
        artefact.save(tmp_path / "b.safetensors", network)
        assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
        loaded = artefact.load(tmp_path / "a.safetensors", device="cuda")
        assert all(one.is_cuda for one in (*loaded.parameters(), *loaded.buffers()))
        with torch.no_grad():
            expected = copy.deepcopy(network).eval().cuda()(*(one.cuda() for one in inputs))
            assert_same(loaded(*(one.cuda() for one in inputs)), expected)


def test_saving_leaves_the_network_as_it_was(tmp_path):
    network = SelfMade().train()
    network.conv.eval()
    before = {key for key in vars(network)}
    state = {name: one.clone() for name, one in network.state_dict().items()}
    artefact.save(tmp_path / "a.safetensors", network)
    assert network.training
    assert not network.conv.training
    assert set(vars(network)) == before
    assert all(torch.equal(state[name], one) for name, one in network.state_dict().items())


def test_loading_draws_no_random_numbers(folder):
    state = torch.get_rng_state()
    for name in NETWORKS:
        artefact.load(folder / f"{name}.safetensors")
    assert torch.equal(state, torch.get_rng_state())


def test_other_readers_see_the_tensors(folder):
    network, _ = NETWORKS["lenet5"]
    with safe_open(folder / "lenet5.safetensors", "pt") as file:
        assert set(file.keys()) == set(network.state_dict())
        for name, tensor in network.state_dict().items():
            assert torch.equal(file.get_tensor(name), tensor)
        assert file.metadata()["format"] == "bayesprune-artefact"


def test_what_read_tells(tmp_path):
    path = tmp_path / "a.safetensors"
    network = Attention()
    artefact.save(
        path,
        network,
        example_shape=(5,),
        config={"model": "attention", "rate": 0.1},
        metrics={"accuracy": torch.tensor(0.5), "loss": float("nan")},
        classes=["cat", "dög"],
    )
    found = artefact.read(path)
    assert found.config == {"model": "attention", "rate": 0.1}
    assert found.metrics == {"accuracy": 0.5, "loss": None}
    assert found.classes == ["cat", "dög"]
    assert found.example_shape == [5]
    assert found.versions["torch"] == torch.__version__
    assert found.size == path.stat().st_size
    assert found.tied == {"out.weight": "tokens.weight"}
    assert found.tensors["tokens.weight"] == artefact.TensorInfo((11, 8), "F32")
    assert "out.weight" not in found.tensors
    assert found.architecture is not None
    assert found.note == ""


def test_tied_parameters_are_one_again(folder):
    loaded = artefact.load(folder / "attention.safetensors")
    assert loaded.out.weight is loaded.tokens.weight
    shared = artefact.load(folder / "shared_layer.safetensors")
    assert len(list(shared.parameters())) == 2


def test_parameters_that_share_memory_are_tied(tmp_path):
    network = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    network[1].weight = nn.Parameter(network[0].weight.data)
    artefact.save(tmp_path / "a.safetensors", network)
    loaded = artefact.load(tmp_path / "a.safetensors")
    assert loaded.get_parameter("0.weight") is loaded.get_parameter("1.weight")


def test_kinds_of_tensors_survive(folder):
    network, _ = NETWORKS["self_made"]
    loaded = artefact.load(folder / "self_made.safetensors")
    kinds = {name: one.requires_grad for name, one in network.named_parameters()}
    assert {name: one.requires_grad for name, one in loaded.named_parameters()} == kinds
    assert loaded.state_dict().keys() == network.state_dict().keys()
    assert torch.equal(loaded.mask, network.mask)


def test_the_order_in_memory_survives(tmp_path):
    network = Transposed()
    artefact.save(tmp_path / "a.safetensors", network)
    loaded = artefact.load(tmp_path / "a.safetensors")
    for name in ("conv.weight", "one.weight", "linear.weight"):
        assert loaded.get_parameter(name).stride() == network.get_parameter(name).stride()
    assert loaded.sliced.weight.is_contiguous()


def test_dtypes_survive(tmp_path):
    network = every_dtype()
    artefact.save(tmp_path / "a.safetensors", network)
    loaded = artefact.load(tmp_path / "a.safetensors")
    assert {n: p.dtype for n, p in loaded.named_parameters()} == {n: p.dtype for n, p in network.named_parameters()}


def test_inputs_keep_their_names(folder):
    loaded = artefact.load(folder / "several.safetensors")
    _, (x, y) = NETWORKS["several"]
    assert_same(loaded(y=y, x=x), loaded(x, y))


def test_an_input_with_an_awkward_name(tmp_path):
    class Awkward(nn.Module):
        def forward(self, torch, node_0, inf):
            return node_0 - 2 * torch + inf

    artefact.save(tmp_path / "a.safetensors", Awkward())
    loaded = artefact.load(tmp_path / "a.safetensors")
    assert loaded(1.0, 10.0, 100.0) == 108.0


def lookalike(x):
    return x + 1


fx.wrap("lookalike")


class Doubled(nn.Linear):
    pass


def hooked():
    layer = nn.Linear(4, 4)
    layer.register_forward_hook(lambda module, inputs, output: output * 2)
    return nn.Sequential(layer)


def changed():
    conv = nn.Conv1d(4, 4, 3, padding=1, padding_mode="circular")
    conv.padding = (2,)
    return nn.Sequential(conv)


def replaced():
    layer = nn.Linear(4, 4)
    layer.forward = lambda x: x
    return nn.Sequential(layer)


def branching():
    return Net(lambda net, x: net.a(x) if x.sum() > 0 else x, a=nn.Linear(4, 4))


def keyword_name():
    network = nn.Sequential()
    network.add_module("print_readable", nn.Linear(4, 4))
    return network


UNLISTED = {
    "subclass": (lambda: nn.Sequential(Doubled(4, 4)), "Doubled"),
    "hook": (hooked, "hooks"),
    "parametrized": (lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4))), "Parametrized"),
    "changed": (changed, "was changed"),
    "replaced forward": (replaced, "replaces"),
    "function": (lambda: Net(lambda net, x: lookalike(net.a(x)), a=nn.Linear(4, 4)), "lookalike"),
    "method": (lambda: Net(lambda net, x: net.a(x).as_strided((2,), (1,)), a=nn.Linear(4, 4)), "as_strided"),
    "branch": (branching, "cannot trace"),
    "taken name": (keyword_name, "taken"),
    "recurrent": (lambda: nn.Sequential(nn.LSTM(4, 4)), "LSTM"),
}


@pytest.mark.parametrize("case", UNLISTED)
def test_what_is_not_listed_is_saved_without_architecture(case, tmp_path):
    make, reason = UNLISTED[case]
    path = tmp_path / "a.safetensors"
    torch.manual_seed(1)
    network = make().eval()
    with pytest.warns(ArtefactWarning, match=f"weights only.*{reason}"):
        artefact.save(path, network)
    assert artefact.read(path).architecture is None
    assert reason in artefact.read(path).note
    with pytest.raises(ArtefactError, match="network="):
        artefact.load(path)
    torch.manual_seed(2)
    loaded = artefact.load(path, network=make())
    assert not loaded.training
    assert all(torch.equal(one, other) for one, other in zip(loaded.parameters(), network.parameters(), strict=True))


def test_loading_into_a_network_of_the_class(tmp_path):
    path = tmp_path / "a.safetensors"
    network = SelfMade()
    artefact.save(path, network)
    other = SelfMade()
    loaded = artefact.load(path, network=other)
    assert loaded is other
    x = torch.randn(2, 3, 6, 6)
    assert_same(loaded(x), network.eval()(x))
    assert torch.equal(other.mask, network.mask)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 5)), "shape"),
        (lambda: nn.Sequential(nn.Linear(4, 4).double()), "dtype"),
        (lambda: nn.Sequential(nn.Linear(4, 4, bias=False)), "has not"),
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), "lacks"),
        (lambda: nn.Sequential(nn.Linear(4, 4, device="meta")), "meta"),
    ],
)
def test_loading_into_another_network(other, message, tmp_path):
    artefact.save(tmp_path / "a.safetensors", nn.Sequential(nn.Linear(4, 4)))
    with pytest.raises(ArtefactError, match=message):
        artefact.load(tmp_path / "a.safetensors", network=other())


def test_loading_into_a_network_that_ties_more(tmp_path):
    network = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    artefact.save(tmp_path / "a.safetensors", network)
    network[1].weight = network[0].weight
    with pytest.raises(ArtefactError, match="one tensor in the network"):
        artefact.load(tmp_path / "a.safetensors", network=network)


def test_what_cannot_be_saved(tmp_path):
    path = tmp_path / "a.safetensors"
    with pytest.raises(ArtefactError, match=r"\.safetensors"):
        artefact.save(tmp_path / "a.pt", nn.Linear(2, 2))
    with pytest.raises(ArtefactError, match="meta"):
        artefact.save(path, nn.Linear(2, 2, device="meta"))
    with pytest.raises(ArtefactError, match="complex64"):
        artefact.save(path, nn.Linear(2, 2, dtype=torch.complex64))
    with pytest.raises(ArtefactError, match="rate"):
        artefact.save(path, nn.Linear(2, 2), config={"rate": float("nan")})
    with pytest.raises(ArtefactError, match="classes"):
        artefact.save(path, nn.Linear(2, 2), classes=[object()])
    bad = nn.Module()
    bad.register_parameter("a/b", nn.Parameter(torch.ones(2)))
    with pytest.raises(ArtefactError, match="a/b"), warnings.catch_warnings():
        artefact.save(path, bad)
    assert not list(tmp_path.iterdir())


def test_a_failing_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    artefact.save(path, small())
    before = path.read_bytes()
    calls = []
    write = os.write

    def full(descriptor, data):
        calls.append(len(data))
        if len(calls) == 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        artefact.save(path, nn.Linear(3, 3))
    monkeypatch.undo()
    assert len(calls) == 4
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_the_same_network_gives_the_same_file(tmp_path):
    for name in "ab":
        artefact.save(tmp_path / f"{name}.safetensors", small())
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_the_closed_list_has_what_structure_understands():
    missing = {name for function, name in operations.FUNCTIONS.items() if function not in closed_list.FUNCTION_NAMES}
    assert missing <= {"device", "dtype", "layout"}  # classes, which no graph calls


def test_the_closed_list_names_what_there_is():
    assert not {name for name in closed_list.METHODS if not callable(getattr(torch.Tensor, name, None))}
    assert not {name for name in closed_list.ATTRIBUTES if not hasattr(torch.Tensor, name)}
    forbidden = {torch.load, torch.save, torch.from_file, torch.as_strided, torch.empty, eval, exec, operator.call}
    forbidden |= {operator.attrgetter, operator.methodcaller, functional.handle_torch_function}
    assert not forbidden & set(closed_list.FUNCTIONS.values())
    tricks = {"apply_", "map_", "map2_", "set_", "resize_", "storage", "untyped_storage", "share_memory_", "numpy"}
    tricks |= {"as_strided", "register_hook", "data_ptr", "backward", "retain_grad", "pin_memory", "module_load"}
    assert not tricks & closed_list.METHODS
    assert not [name for name in closed_list.METHODS | closed_list.ATTRIBUTES if name.startswith("_")]


EXAMPLES = {
    "Linear": (3, 2),
    "Bilinear": (3, 4, 2),
    "Embedding": (5, 3),
    "EmbeddingBag": (5, 3),
    "MultiheadAttention": (4, 2),
    "LayerNorm": ((3, 4),),
    "RMSNorm": (4,),
    "GroupNorm": (2, 4),
    "LocalResponseNorm": (2,),
    "Unflatten": (1, (2, 2)),
    "Threshold": (0.1, 20.0),
    "Fold": ((4, 5), 2),
    "Unfold": (2,),
    "PixelShuffle": (2,),
    "PixelUnshuffle": (2,),
    "ChannelShuffle": (2,),
    "SlimAttention": (5, 3, 2, 4, True, False, 0.1, True),
    "UpsamplingNearest2d": (4,),
    "UpsamplingBilinear2d": (4,),
}


def example(name):
    """A module of the class, with what its constructor needs."""
    kind = closed_list.MODULES[name].make
    if name in EXAMPLES:
        return kind(*EXAMPLES[name])
    if name.startswith("Conv"):
        return kind(2, 4, 3)
    if name.startswith("ConstantPad"):
        return kind(2, 3.5)
    if name.startswith("LPPool"):
        return kind(2, 3)
    if name[:-2].endswith(("Pool", "Unpool", "Pad", "Norm")):
        return kind(4)
    return kind()


@pytest.mark.parametrize("name", sorted(closed_list.MODULES))
def test_every_module_of_the_list_survives(name, tmp_path):
    module = example(name)
    with torch.no_grad():
        for parameter in module.parameters():  # some constructors leave memory as it is, which may be NaN
            parameter.normal_()
    graph = fx.Graph()
    x = graph.placeholder("x")
    arity = 3 if "Attention" in name else 2 if name in ("Bilinear", "CosineSimilarity") or "Unpool" in name else 1
    graph.output(graph.call_module("module", (x,) * arity))
    artefact.save(tmp_path / "a.safetensors", fx.GraphModule({"module": module}, graph))
    loaded = artefact.load(tmp_path / "a.safetensors").module
    assert type(loaded) is type(module)
    assert repr(loaded) == repr(module)
    for one, other in zip(loaded.state_dict().values(), module.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def cropped():
    network, (x,) = NETWORKS["lenet5"]
    masks = {"conv1": torch.ones(6, 1, 5, 5), "conv2": torch.ones(16, 6, 5, 5), "fc1": torch.ones(120, 400)}
    masks["conv1"][:3] = 0
    masks["conv1"][:, :, 0] = 0
    masks["conv2"][4:] = 0
    masks["conv2"][..., 3:] = 0
    masks["fc1"][50:] = 0
    return network, masks, x, nn.Conv2d


def fewer_heads():
    layer = nn.Sequential(nn.Linear(6, 8), Itself(), nn.Linear(8, 3))
    masks = {"1.attention.out_proj": torch.ones(8, 8)}
    masks["1.attention.out_proj"][:, :4] = 0
    return layer, masks, torch.randn(2, 5, 6), SlimAttention


class Itself(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 4, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize("case", [cropped, fewer_heads])
def test_what_surgery_leaves_survives(case, tmp_path):
    network, masks, x, kind = case()
    operated = operate(network.eval(), masks, x).network
    assert sum(one.numel() for one in operated.parameters()) < sum(one.numel() for one in network.parameters())
    assert any(type(module) is kind for module in operated.modules())
    artefact.save(tmp_path / "a.safetensors", operated)
    loaded = artefact.load(tmp_path / "a.safetensors")
    with torch.no_grad():
        assert_same(loaded(x), operated(x))
