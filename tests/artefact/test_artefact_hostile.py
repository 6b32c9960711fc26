"""Architectures that somebody wrote by hand, with the right checksum: nothing of them is executed."""

import pytest
from artefact_crafting import edit_architecture, edit_header
from artefact_networks import small

from bayesprune import artefact
from bayesprune.artefact import ArtefactError

# Whatever evaluates this leaves a file behind.
CODE = "__import__('pathlib').Path('executed').touch()"
INJECTIONS = [
    f"x'); {CODE} #",
    f"x\n    {CODE}",
    f'x"); {CODE} #',
    f"x={CODE}",
    f"x: {CODE}",
    "x'",
    "x\\",
    f"x, y={CODE}",
]
X = {"node": 0}


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.safetensors"
    artefact.save(path, small())
    yield path
    assert not (tmp_path / "executed").exists()


def refused(path, message=None):
    with pytest.raises(ArtefactError, match=message):
        artefact.load(path)


def with_node(path, **node):
    """Put a node in front of the output; the others go on referring to what they did."""

    def insert(architecture):
        architecture["nodes"].insert(-1, node)

    edit_architecture(path, insert)


def test_the_way_these_tests_add_a_node_works(path):
    with_node(path, op="call_function", target="torch.relu", args=[X])
    artefact.load(path)


@pytest.mark.parametrize(
    "target", ["__class__", "conv.__class__", "", "conv..x", "../conv", None, 3, ["conv"], *INJECTIONS]
)
@pytest.mark.parametrize("op", ["call_module", "get_attr"])
def test_paths(path, op, target):
    with_node(path, op=op, target=target, args=[X] if op == "call_module" else [])
    refused(path, "names are at most")


@pytest.mark.parametrize(
    "target", ["nothing", "conv.weight", "forward", "conv.forward", "training", "_modules", "graph"]
)
def test_modules_that_are_not_declared(path, target):
    with_node(path, op="call_module", target=target, args=[X])
    refused(path, "does not declare")


@pytest.mark.parametrize("target", ["nothing", "conv", "conv.forward", "training", "code", "conv._parameters"])
def test_attributes_that_are_no_tensors(path, target):
    with_node(path, op="get_attr", target=target)
    refused(path, "must be a tensor of the network")


@pytest.mark.parametrize(
    "target",
    [
        *("os.system", "builtins.eval", "eval", "exec", "__import__", "torch.load", "torch.save", "torch.from_file"),
        *("torch.hub.load", "torch.ops.load_library", "operator.attrgetter", "operator.call", "torch.as_strided", ""),
        *(
            "torch.empty",
            "torch.utils.cpp_extension.load",
            "torch.add.__globals__",
            None,
            3,
            ["os.system"],
            *INJECTIONS,
        ),
    ],
)
def test_functions(path, target):
    with_node(path, op="call_function", target=target, args=["true"])
    refused(path, "not in the closed list")


@pytest.mark.parametrize(
    "target",
    [
        *("apply", "apply_", "map_", "register_hook", "numpy", "__reduce__", "__class__", "set_", "resize_", "storage"),
        *("share_memory_", "as_strided", "data_ptr", "module_load", "relu.__globals__", None, 3, *INJECTIONS),
    ],
)
def test_methods(path, target):
    with_node(path, op="call_method", target=target, args=[X])
    refused(path, "not in the closed list")


@pytest.mark.parametrize("args", [[], [3], ["text"], [[X]]])
def test_methods_of_something_else(path, args):
    with_node(path, op="call_method", target="relu", args=args)
    refused(path, "its first argument must be a node")


@pytest.mark.parametrize("name", ["__globals__", "__class__", "grad_fn", "data", "_backward_hooks", "", None, X, ["T"]])
def test_getattr(path, name):
    with_node(path, op="call_function", target="getattr", args=[X, name])
    refused(path, "reads the attribute")


def test_getattr_by_other_ways(path):
    with_node(path, op="call_function", target="getattr", args=[X], kwargs={"name": "__class__"})
    refused(path, "reads the attribute")


def test_getattr_of_a_text(path):
    with_node(path, op="call_function", target="getattr", args=["text", "shape"])
    refused(path, "reads the attribute")


@pytest.mark.parametrize("name", ["", "class", "__class__", "a b", "a.b", "ä", "1", *INJECTIONS])
def test_names_of_arguments(path, name):
    with_node(path, op="call_function", target="torch.relu", args=[X], kwargs={name: 1})
    refused(path, "must be a plain identifier")


@pytest.mark.parametrize(
    "name", ["class", "self", "*args", "**kwargs", "torch", "node_3", "x", "", 3, None, *INJECTIONS]
)
def test_names_of_inputs(path, name):
    with_node(path, op="placeholder", target=name)
    refused(path, "plain identifier, once")


@pytest.mark.parametrize("args", [[X], [[1]], [1, 2], [{"tuple": []}]])
def test_defaults_of_inputs(path, args):
    with_node(path, op="placeholder", target="y", args=args)
    refused(path, "one plain default")


def test_an_input_without_default_after_one_with(path):
    with_node(path, op="placeholder", target="y", args=[1])
    with_node(path, op="placeholder", target="z")
    refused(path, "torch.fx refuses")


@pytest.mark.parametrize("text", [*INJECTIONS[:3], "'", '"', "\\", "\n", "{", "%s", "ä", "a" * 201])
def test_texts(path, text):
    with_node(path, op="call_function", target="torch.relu", args=[X, text])
    refused(path, "without quotes")


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"a": 1},
        {"node": 0, "tuple": []},
        {"tuple": 3},
        {"slice": [1, 2]},
        {"float": "1"},
        {"float": ["inf"]},
        {"dtype": "load"},
        {"memory_format": "os"},
        {"ellipsis": 1},
        {"dict": [["a", 1], ["a", 2]]},
        {"dict": [[X, 1]]},
        {"dict": {"a": 1}},
        {"dict": [[1.5, 1]]},
        2**63,
        10**400,
        -(2**70),
    ],
)
def test_values(path, value):
    with_node(path, op="call_function", target="torch.relu", args=[value])
    refused(path)


@pytest.mark.parametrize("wrap", [lambda x: [x], lambda x: {"tuple": [x]}, lambda x: {"dict": [["a", x]]}])
def test_deep_nesting(path, wrap):
    value = 1
    for _ in range(100):
        value = wrap(value)
    with_node(path, op="call_function", target="torch.relu", args=[value])
    refused(path, "nested deeper")


@pytest.mark.parametrize("number", [-1, 7, 8, 10**9, True, 1.0, "0", None, [0]])
def test_references(path, number):
    """To itself (7), forwards, to nothing."""
    with_node(path, op="call_function", target="torch.relu", args=[{"node": number}])
    refused(path, "refers to node")


@pytest.mark.parametrize(
    "node",
    [
        {"op": "call_module", "target": "conv", "args": []},
        {"op": "call_module", "target": "conv", "args": [X, X]},
        {"op": "call_module", "target": "conv", "args": [X], "kwargs": {"more": 1}},
        {"op": "call_function", "target": "operator.add", "args": [X]},
        {"op": "call_function", "target": "torch.nn.functional.relu", "args": []},
        {"op": "call_function", "target": "torch.nn.functional.relu", "args": [X], "kwargs": {"more": 1}},
        {"op": "get_attr", "target": "conv.weight", "args": [X]},
        {"op": "output", "args": [X]},
        {"op": "call_function", "target": "torch.relu", "args": X},
        {"op": "call_function", "target": "torch.relu", "kwargs": [X]},
        {"op": "call_function", "target": "torch.relu", "args": [X], "name": "evil"},
        {"op": "root", "target": "x"},
        {"op": ["call_function"]},
        {"target": "torch.relu"},
    ],
)
def test_nodes(path, node):
    with_node(path, **node)
    refused(path)


@pytest.mark.parametrize(
    "output", [{"op": "output"}, {"op": "output", "args": [X, X]}, {"op": "output", "target": "x", "args": [X]}]
)
def test_outputs(path, output):
    def edit(architecture):
        architecture["nodes"][-1] = output

    edit_architecture(path, edit)
    refused(path, "exactly one")


def test_no_output(path):
    edit_architecture(path, lambda architecture: architecture["nodes"].pop())
    refused(path, "the last node is the output")


@pytest.mark.parametrize("nodes", [[], {}, None, [[]], ["x"]])
def test_no_nodes(path, nodes):
    edit_architecture(path, lambda architecture: architecture.update(nodes=nodes))
    refused(path)


def test_too_many_nodes(path):
    def edit(architecture):
        architecture["nodes"][1:1] = [{"op": "call_method", "target": "relu", "args": [X]}] * 20_000

    edit_architecture(path, edit)
    refused(path, "must have 1 to 20000")


def test_too_many_items(path):
    with_node(path, op="call_function", target="torch.relu", args=[[1] * 200_000])
    refused(path, "the limit is 200000")


def test_too_many_modules(path):
    relu = {"class": "Identity", "arguments": {}}
    edit_architecture(path, lambda architecture: architecture["modules"].update({f"m{i}": relu for i in range(20_000)}))
    refused(path, "20003 modules, the limit is 20000")


@pytest.mark.parametrize("depth", [17, 500, 900, 960, 970, 980, 985, 990, 2000])
@pytest.mark.parametrize("place", ['"nodes":[', '"args":[', '"frozen":[', '"groups":', '"padding_mode":'])
def test_deep_json(path, place, depth):
    """JSON that is just not too deep for Python to read may be too deep for what follows."""

    def edit(header):
        text = header["__metadata__"]["architecture"]
        nested = "[" * depth + "]" * depth
        filled = nested + "," if place.endswith("[") else nested + ',"more":'
        header["__metadata__"]["architecture"] = text.replace(place, place + filled, 1)

    edit_header(path, edit)
    refused(path)


@pytest.mark.parametrize("part", ["modules", "attributes", "frozen", "layouts", "nodes"])
@pytest.mark.parametrize("value", [None, 3, "x", [3], [[3]], {"a": 3}, {"../a": 3}])
def test_parts_of_another_kind(path, part, value):
    edit_architecture(path, lambda architecture: architecture.update({part: value}))
    refused(path)
    edit_architecture(path, lambda architecture: architecture.pop(part))
    refused(path, "it needs")


def module(path, name, kind, **arguments):
    """Declare a module and call it."""
    edit_architecture(
        path, lambda architecture: architecture["modules"].update({name: {"class": kind, "arguments": arguments}})
    )
    if isinstance(name, str):
        with_node(path, op="call_module", target=name, args=[X])


@pytest.mark.parametrize("kind", ["Sequential", "os.system", "LSTM", "Module", "__class__", None, 3, ["ReLU"]])
def test_classes_of_modules(path, kind):
    module(path, "new", kind, inplace=False)
    refused(path, "not in the closed list")


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("ReLU", {}),
        ("ReLU", {"inplace": False, "device": "cuda"}),
        ("Linear", {"in_features": 4, "out_features": 3, "bias": True, "dtype": {"dtype": "float64"}}),
        ("Linear", {"in_features": -4, "out_features": 3, "bias": True}),
        ("Linear", {"in_features": "a", "out_features": 3, "bias": True}),
        ("Linear", {"in_features": 10**12, "out_features": 10**6, "bias": True}),
        ("Linear", {"in_features": 2**62, "out_features": 2**62, "bias": True}),
        ("Linear", {"in_features": X, "out_features": 3, "bias": True}),
        ("GroupNorm", {"num_groups": 0, "num_channels": 4, "eps": 1e-5, "affine": True}),
        ("Unflatten", {"dim": 1, "unflattened_size": {"dict": [["a", 1]]}}),
    ],
)
def test_arguments_of_modules(path, kind, arguments):
    module(path, "new", kind, **arguments)
    refused(path, "new")


def test_absurd_sizes_of_a_layer(path):
    edit_architecture(path, lambda architecture: architecture["modules"]["out"]["arguments"].update(in_features=10**12))
    refused(path, r"out.weight has the shape \(3, 4\) in the file, \(3, 1000000000000\) in the network")


@pytest.mark.parametrize(
    "name",
    [
        "__class__",
        "class",
        "",
        "a..b",
        "conv.weight",
        "conv.inner",
        "forward",
        "train",
        "_modules",
        "graph",
        *INJECTIONS,
    ],
)
def test_names_of_modules(path, name):
    module(path, name, "ReLU", inplace=False)
    refused(path, "names are at most|taken already|names must not overlap")


def test_a_module_twice(path):
    def edit(header):
        metadata = header["__metadata__"]
        metadata["architecture"] = metadata["architecture"].replace('"norm":{', '"conv":{', 1)

    edit_header(path, edit)
    refused(path, "'conv' twice")


def test_a_module_that_is_never_called(path):
    edit_architecture(
        path,
        lambda architecture: architecture["modules"].update(new={"class": "ReLU", "arguments": {"inplace": False}}),
    )
    refused(path, "never uses the modules .*new")


def test_a_tensor_too_many_and_one_too_few(path):
    def rename(header):
        header["more"] = header.pop("conv.bias")

    edit_header(path, rename)
    refused(path, "lacks the tensors .*conv.bias")
    edit_architecture(path, lambda architecture: architecture["modules"]["conv"]["arguments"].update(bias=False))
    refused(path, "has the tensors .*more.* which its architecture does not")


@pytest.mark.parametrize(("name", "dtype"), [("conv.bias", "I32"), ("norm.num_batches_tracked", "F64")])
def test_a_dtype_that_does_not_fit(path, name, dtype):
    edit_header(path, lambda header: header[name].update(dtype=dtype))
    refused(path, f"{name} has the dtype")


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"new": "parameter"}, "lacks the tensor new"),
        ({"conv.weight": "parameter"}, "names must not overlap"),
        ({"__class__": "buffer"}, "names are at most"),
        ({"conv": "buffer"}, "lacks"),
        ({"new": "code"}, "must be one of"),
        ({"new": ["buffer"]}, "must be one of"),
    ],
)
def test_attributes(path, attributes, message):
    edit_architecture(path, lambda architecture: architecture.update(attributes=attributes))
    refused(path, message)


@pytest.mark.parametrize("layout", [[0], [0, 0, 1, 2], [0, 1, 2, 4], "0123", [0.0, 1, 2, 3], [True, 0, 2, 3], None])
def test_layouts(path, layout):
    edit_architecture(path, lambda architecture: architecture.update(layouts={"conv.weight": layout}))
    refused(path, "layout of conv.weight")


@pytest.mark.parametrize("frozen", [["nothing"], ["norm.running_mean"], [3], [["conv.weight"]], "conv.weight"])
def test_frozen(path, frozen):
    edit_architecture(path, lambda architecture: architecture.update(frozen=frozen))
    refused(path, "frozen")


def test_ties_between_different_kinds(path):
    def tie(header):
        # The buffer and the weight of the norm have the same shape; the file loses the one that comes last.
        begin, end = header.pop("norm.weight")["data_offsets"]
        for entry in header.values():
            if "data_offsets" in entry and entry["data_offsets"][0] >= end:
                entry["data_offsets"] = [one - (end - begin) for one in entry["data_offsets"]]
        header["padding"] = {"dtype": "U8", "shape": [end - begin], "data_offsets": [0, 0]}
        last = max(entry["data_offsets"][1] for entry in header.values() if "data_offsets" in entry)
        header["padding"]["data_offsets"] = [last, last + end - begin]
        header["__metadata__"]["tied"] = '{"norm.weight": "norm.running_mean"}'

    edit_header(path, tie)

    def declare(architecture):
        architecture["attributes"] = {"padding": "buffer"}
        architecture["nodes"].insert(-1, {"op": "get_attr", "target": "padding"})

    edit_architecture(path, declare)
    refused(path, "not both parameters")


def test_strangers_may_still_write_networks(path):
    """Right checksums make a hostile network a network: it loads, and computes what it says."""
    with_node(path, op="call_method", target="repeat", args=[X, 10**9])
    artefact.load(path)
