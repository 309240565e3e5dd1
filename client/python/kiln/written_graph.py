"""An FX graph as plain data: what a key's digest covers, and what torch's AOTAutograd cache keeps.

A graph is a tuple of nodes, each (operation, target, args, kwargs); nodes are named by their position, operators by
their name and, for the digest, by their declared types. Sub-graphs are written within the attribute that holds them.
What has no written form (an object of the user's) stands in the digest as its type, and can't be kept.
"""
import hashlib
import importlib
from typing import Any, TypeAlias

import torch
from torch import fx
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

from .fx_nodes import kwargs_of, name_of

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), torch.dtype, torch.device, torch.layout,
          torch.memory_format)


Written: TypeAlias = tuple[tuple[Any, ...], ...]  # a node each


class NotWritable(Exception):
    """The graph holds an object that has no written form; `str()` names it."""


def write(module: fx.GraphModule) -> Written:
    """The written form of a GraphModule. Raises NotWritable."""
    return _Writer(module).graph()


def digest(module: fx.GraphModule) -> str:
    """Of the graph's contents, the same in every process."""
    return hashlib.sha256(repr(_Writer(module, for_digest=True).graph()).encode()).hexdigest()


class _Writer:
    def __init__(self, module: fx.GraphModule, for_digest: bool = False) -> None:
        self.module = module
        self.for_digest = for_digest
        self.position = {node: i for i, node in enumerate(module.graph.nodes)}

    def graph(self) -> Written:
        return tuple((node.op, self.target(node), self.value(node.args), self.keywords(node))
                     for node in self.module.graph.nodes)

    def target(self, node: fx.Node) -> Any:
        if node.op == "call_function":
            return self.value(node.target)
        if node.op == "get_attr":
            return self.value(attribute(self.module, name_of(node)))
        if node.op in ("placeholder", "output"):
            return None
        return self.other(node.target)

    def keywords(self, node: fx.Node) -> Any:
        """torch holds a user's Triton kernel and its constants in a table of the process, by number."""
        kwargs = kwargs_of(node)
        if "kernel_idx" not in kwargs:
            return self.value(node.kwargs)
        if not self.for_digest:
            raise NotWritable("a Triton kernel")
        kernel = kernel_side_table.id_to_kernel.get(kwargs["kernel_idx"])
        constants = kernel_side_table.constant_args.get(kwargs["constant_args_idx"])
        others = {name: value for name, value in kwargs.items() if name not in ("kernel_idx", "constant_args_idx")}
        return "triton", _text_of_kernel(kernel), repr(constants), self.value(others)

    def value(self, value: Any) -> Any:
        if isinstance(value, fx.Node):
            return "node", self.position[value]
        if isinstance(value, (list, tuple)):
            return "list" if isinstance(value, list) else "tuple", tuple(map(self.value, value))
        if isinstance(value, dict):
            return "dict", tuple((self.value(key), self.value(item)) for key, item in value.items())
        if isinstance(value, slice):
            return "slice", tuple(map(self.value, (value.start, value.stop, value.step)))
        if isinstance(value, torch._ops.OpOverload):
            return ("operator", str(value), str(value._schema)) if self.for_digest else ("operator", str(value))
        if isinstance(value, torch._ops.HigherOrderOperator):
            return "higher", value.name()
        if isinstance(value, fx.GraphModule):
            return "graph", _Writer(value, self.for_digest).graph()
        if isinstance(value, _PLAIN):
            return "plain", repr(value) if self.for_digest else value
        return self.tensor(value) if isinstance(value, torch.Tensor) else self.other(value)

    def tensor(self, value: torch.Tensor) -> Any:
        if self.for_digest:
            return "tensor", str(value.dtype), tuple(map(str, value.shape))
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise NotWritable(f"a constant of type {type(value).__name__}")
        return "tensor", value.detach()

    def other(self, value: object) -> Any:
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if module is not None and name is not None and _found(module, name) is value:
            return "function", module, name
        if not self.for_digest:
            raise NotWritable(f"an object of type {type(value).__name__}")
        return "object", f"{type(value).__module__}.{type(value).__qualname__}"


def _text_of_kernel(kernel: Any) -> list[Any]:
    """Of a Triton kernel and what wraps it: how it is tuned, its source and that of the functions that it calls."""
    texts = []
    while kernel is not None:
        texts.append((type(kernel).__name__, repr(getattr(kernel, "configs", None)),
                      getattr(kernel, "cache_key", None) or getattr(kernel, "src", None)))
        kernel = getattr(kernel, "fn", None)
    return texts


def attribute(module: torch.nn.Module, target: str) -> Any:
    for part in target.split("."):
        module = getattr(module, part)
    return module


def _found(module: str, name: str) -> Any:
    try:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    return found


def read(written: Written) -> fx.GraphModule:
    """The GraphModule of a written form. Raises AttributeError where an operator is not registered here."""
    root, graph = torch.nn.Module(), fx.Graph()
    nodes: list[fx.Node] = []

    def value(written: tuple[Any, ...]) -> Any:
        kind, *rest = written
        if kind == "node":
            return nodes[rest[0]]
        if kind in ("list", "tuple"):
            return (list if kind == "list" else tuple)(map(value, rest[0]))
        if kind == "dict":
            return {value(key): value(item) for key, item in rest[0]}
        if kind == "slice":
            return slice(*map(value, rest[0]))
        if kind == "operator":
            namespace, name, overload = rest[0].split(".")
            return getattr(getattr(getattr(torch.ops, namespace), name), overload)
        if kind == "higher":
            return torch._ops._higher_order_ops[rest[0]]
        if kind == "graph":
            return read(rest[0])
        if kind == "function":
            return _found(*rest)
        return rest[0]

    for number, (op, target, args, kwargs) in enumerate(written):
        name = f"value_{number}"
        if op == "placeholder":
            nodes.append(graph.placeholder(name))
        elif op == "output":
            nodes.append(graph.output(value(args)[0]))
        elif op == "get_attr":
            set_attribute(root, name, value(target))
            nodes.append(graph.get_attr(name))
        else:
            nodes.append(graph.call_function(value(target), value(args), value(kwargs)))
    return fx.GraphModule(root, graph)


def set_attribute(root: torch.nn.Module, name: str, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        root.register_buffer(name, value)
    else:
        setattr(root, name, value)


def has_effects(node: fx.Node, module: torch.nn.Module) -> bool:
    """Whether its place among others of the kind matters: it draws random numbers, checks, prints, or may."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return _operator_has_effects(target)
    if not isinstance(target, torch._ops.HigherOrderOperator):
        return False
    for value in torch.utils._pytree.tree_leaves((node.args, node.kwargs)):
        if isinstance(value, torch._ops.OpOverload) and _operator_has_effects(value):
            return True
        if isinstance(value, fx.Node) and value.op == "get_attr":
            held = attribute(module, name_of(value))
            if isinstance(held, fx.GraphModule) and any(has_effects(inner, held) for inner in held.graph.nodes):
                return True
    return False


def _operator_has_effects(target: torch._ops.OpOverload) -> bool:
    if target.namespace not in ("aten", "prims"):
        return True
    return torch.Tag.nondeterministic_seeded in target.tags or target._schema.is_mutable or not target._schema.returns
