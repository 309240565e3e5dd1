"""An AOTAutograd graph as a `kiln.v1.Graph` message.

Values are numbered as the message wants them: inputs first, then every result of every node in program order.
Arithmetic on symbolic integers and `getitem` leave no nodes: sizes are expressions, results are listed by node.
Names, source lines and guards' text go into GraphNotes, which no key covers.
"""
from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import sympy
import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from . import fallback, graph_cut, python_calls, remade_views, titles, wire, written_graph
from .devices import PassedInput
from .errors import Unsupported
from .exported_graph import ExportedGraph
from .fx_nodes import args_of, name_of
from .graph_codes import DEVICES, DTYPES, MEMORY_FORMATS, Encoded
from .graph_symbols import GraphSymbols, is_symbolic, is_unbacked, symbol_of_truth, unbacked_symbol_of
from .size_numbers import size_number
from .size_tensors import SizeTensors
from .symbols import VALUE_ITEM

T = TypeVar("T")
Key: TypeAlias = Any  # of a value: a node, (node, which of its results), or what stands for a number

FORMAT_VERSION = 1
FORWARD, BACKWARD, INFERENCE = 1, 2, 3

# Without effect on the result in a compiled graph.
_IGNORED_ARGUMENTS = {"pin_memory", "non_blocking"}

# Whether eager rounds softshrink's bound to half precision on a CPU; on a GPU it always does.
_ROUNDS_SHRINK = torch.torch_version.TorchVersion(torch.__version__) >= "2.14"


def export(module: fx.GraphModule, kind: int, *, title: str = "", static_inputs: Iterable[int] = (),
           donated_inputs: Iterable[int] = (), visible_outputs: Container[int] | None = None,
           guards: Iterable[sympy.Basic] = (), guards_text: Iterable[str] = (), gpu: torch.device | None = None,
           refused: Mapping[fx.Node, str] | None = None) -> ExportedGraph:
    """What kiln cannot express becomes calls of Python. Raises Unsupported where that does not do.

    visible_outputs: positions of outputs whose strides must be the traced ones; None is all of them.
    guards: sympy conditions that hold for this graph; those over foreign symbols are left out.
    gpu: as from devices.gpu_of; then every tensor is said to be there.
    refused: {node: reason} of nodes that are to run in Python in any case.
    """
    given = title, set(static_inputs), set(donated_inputs), visible_outputs, guards, guards_text
    exporter = _Exporter(module, kind, gpu, None, refused or {})
    exported = exporter.run(*given)
    if exported is not None:
        return exported
    cut = graph_cut.cut(module, exporter.refused, exporter.is_integer, gpu, exporter.symbols.binders)
    refused_nodes = exporter.refused
    exporter = _Exporter(cut.module, kind, gpu, cut.part, {})
    exported = exporter.run(*given)
    if exported is None:
        raise Unsupported(next(iter(exporter.refused.values())))
    exported.refused = refused_nodes
    return exported


def _check_pure(target: torch._ops.OpOverload) -> None:
    """Only the schema tells who writes, no name. The service takes one that does: copy_, of which it knows to whom."""
    custom = target.namespace not in ("aten", "prims")
    writes = target._schema.is_mutable and target is not torch.ops.aten.copy_.default
    if writes or (custom and any(result.alias_info is not None for result in target._schema.returns)):
        raise Unsupported(f"operator {target} mutates its arguments or returns them")
    if custom and not target._schema.returns:
        raise Unsupported(f"operator {target} has no result")


def _is_number(value: object) -> bool:
    return is_symbolic(value) or isinstance(value, (int, float, bool))


class _Exporter:
    def __init__(self, module: fx.GraphModule, kind: int, gpu: torch.device | None,
                 python: python_calls.PythonPart | None, given_up: Mapping[fx.Node, str]) -> None:
        self.module = module
        self.kind = kind
        self.gpu = gpu
        self.python = python  # python_calls.PythonPart of a graph that was cut
        held = () if python is None else python.inputs
        self.held = {position for position, _, shared in held if not shared}  # inputs that the program does not have
        self.refused: dict[fx.Node, str] = {}  # node -> why it can't be written
        self.given_up = given_up
        self.placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        self.symbols = GraphSymbols(self.placeholders, self.held)
        self.values: dict[Key, int] = {}
        self.value_count = 0
        self.inputs: list[bytes] = []
        self.nodes: list[bytes] = []
        self.node_names: list[str] = []
        self.graph_nodes: list[tuple[fx.Node | None, str]] = []
        self.source_lines: list[str] = []
        self.constants: list[torch.Tensor] = []
        self.constant_values: dict[str, int] = {}  # get_attr target -> value id
        self.floats = SizeTensors(self.symbols, self.scalar_node)
        self.complex_values: dict[tuple[str, torch.dtype], int] = {}  # (text of the number, dtype) -> the same
        self.float_inputs: list[int] = []
        self.other_outputs: list[tuple[int, Any]] = []
        self.truths: list[int] = []
        self.to_cpu: list[int] = []
        self.types: dict[object, bytes] = {}  # encoded TensorMeta, by its description
        self.mutated: set[fx.Node] = set()

    # ---- the whole ----

    def run(self, title: str, static_inputs: Container[int], donated_inputs: Container[int],
            visible_outputs: Container[int] | None, guards: Iterable[sympy.Basic],
            guards_text: Iterable[str]) -> ExportedGraph | None:
        graph = self.module.graph
        self.symbols.declare_inputs()
        for position, node in enumerate(self.placeholders):
            self.attempt(self.add_input, node, position)
        for _ in self.symbols.more_sizes:
            self.value_count += 1
        # Tensor constants are inputs too: their values are in no key.
        for node in graph.nodes:
            if node.op == "get_attr":
                self.attempt(self.add_constant, node)
        for node in graph.nodes:
            if node.op == "call_function":
                self.add_complex_numbers(node)
        for node in graph.nodes:
            if node.op == "call_function":
                self.attempt(self.add_node, node)
            elif node.op == "output":
                outputs = [self.attempt(self.output, value, position)
                           for position, value in enumerate(args_of(node)[0])]
            elif node.op not in ("placeholder", "get_attr"):
                raise Unsupported(f"graph node of kind {node.op}")
        if self.refused:
            return None
        conditions = self.symbols.conditions(guards)
        symbol_bytes = b"".join(wire.data(3, message) for message in self.symbols.messages)
        message = b"".join([
            wire.uint(1, FORMAT_VERSION), wire.uint(2, self.kind), symbol_bytes, self.symbols.pool.encode(4),
            b"".join(wire.data(5, part) for part in self.inputs),
            b"".join(wire.data(6, part) for part in self.nodes),
            b"".join(wire.data(7, part) for part in outputs if part is not None), wire.packed_uints(8, conditions)])
        facts = self.facts(static_inputs, donated_inputs, len(outputs), visible_outputs)
        notes = b"".join([b"".join(wire.data(1, name) for name in self.node_names),
                          b"".join(wire.data(2, line) for line in self.source_lines),
                          b"".join(wire.data(3, text) for text in guards_text), wire.data(4, title)])
        return ExportedGraph(message, facts, notes, self.symbols.hints, self.symbols.unbacked,
                             list(self.symbols.numbers), self.constants, len(outputs), self.other_outputs, self.truths,
                             self.float_inputs, self.to_cpu, self.symbols.more_sizes, self.python, self.graph_nodes)

    # ---- what can't be written

    def attempt(self, add: Callable[..., T], node: Any, *more: Any) -> T | None:
        """What goes wrong with one node, whatever it is, is that node's; then there is no result."""
        known = len(self.symbols.numbers)
        try:
            return add(node, *more)
        except Exception as error:
            if not isinstance(node, fx.Node):
                raise
            self.symbols.forget(known)
            self.refuse(node, error)
            return None

    def refuse(self, node: fx.Node, error: Exception) -> None:
        """The node is for Python to run; of its results the program may have those that can be written."""
        reason, _ = fallback.reason_of_error(error)
        self.refused.setdefault(node, reason.removeprefix("unsupported: "))
        value = node.meta.get("val")
        # torch's own fakes of quantized tensors claim float32.
        opaque = any(isinstance(part, torch.dtype) and part not in DTYPES
                     for part in torch.utils._pytree.tree_leaves((node.args, node.kwargs)))
        parts: list[tuple[Key, Any]] = [(node, value)]
        if isinstance(value, (list, tuple)):
            parts = [((node, i), part) for i, part in enumerate(value)]
        for key, part in parts:
            self.values.pop(key, None)
            if node.op != "call_function" or opaque or not isinstance(part, torch.Tensor):
                continue
            known = len(self.symbols.numbers)
            try:
                self.check_tensor(part)
                self.symbols.bind_sizes(self.node_of(node, key), part, self.new_value(key))
                self.tensor_meta(part)
            except Exception:
                self.values.pop(key, None)
                self.symbols.forget(known)

    @staticmethod
    def node_of(node: fx.Node, key: Key) -> fx.Node | None:
        """The node whose value the part of a result is; None where none asks for it."""
        if isinstance(key, fx.Node):
            return key
        index = key[1]
        return next((user for user in node.users if user.target is operator.getitem and user.args[1] == index), None)

    def why(self, node: fx.Node) -> str:
        """Why the program has no such value."""
        source = args_of(node)[0] if node.target is operator.getitem and node not in self.refused else node
        return self.refused.get(source, f"{node.name} is not a tensor here")

    def is_integer(self, value: object) -> bool:
        """Whether the program can evaluate the number."""
        if not isinstance(value, (torch.SymInt, int)) or isinstance(value, bool):
            return False
        try:
            self.symbols.sym_int(value)
        except Exception:
            return False
        return True

    def facts(self, static_inputs: Container[int], donated_inputs: Container[int], output_count: int,
              visible_outputs: Container[int] | None) -> bytes:
        parts = []
        for position in range(len(self.inputs)):
            own = position < len(self.placeholders)
            constant = position >= len(self.placeholders) + len(self.symbols.more_sizes)
            fact = (wire.uint(1, (position in static_inputs and position not in self.held) or constant)
                    + wire.uint(2, own and self.placeholders[position] in self.mutated)
                    + wire.uint(3, position in donated_inputs and position not in self.held))
            parts.append(wire.data(1, fact))
        for position in range(output_count):
            visible = visible_outputs is None or position in visible_outputs
            parts.append(wire.data(2, wire.uint(1, visible)))
        return b"".join(parts)

    # ---- tensors ----

    def tensor_meta(self, value: torch.Tensor, with_offset: bool = False) -> bytes:
        self.check_tensor(value)
        sizes, strides = tuple(value.shape), tuple(value.stride())
        offset = value.storage_offset() if with_offset else 0
        static = all(type(part) is int for part in (*sizes, *strides, offset))
        key = (value.dtype, value.device.type, sizes, strides, offset) if static else None
        if static and key in self.types:
            return self.types[key]
        encoded = (wire.uint(1, self.dtype(value.dtype)) + wire.data(2, self.device(value.device))
                   + b"".join(wire.data(3, self.symbols.sym_int(size)) for size in sizes)
                   + b"".join(wire.data(4, self.symbols.sym_int(stride)) for stride in strides)
                   + wire.data(5, self.symbols.sym_int(offset)))
        if static:
            self.types[key] = encoded
        return encoded

    def check_tensor(self, value: object) -> None:
        """Raises Unsupported for what no program can have, whatever its sizes."""
        if not isinstance(value, torch.Tensor):
            raise Unsupported(f"a result of type {type(value).__name__}")
        if value.layout != torch.strided:
            raise Unsupported(f"a tensor of layout {value.layout}")
        self.dtype(value.dtype)
        self.device(value.device)

    @staticmethod
    def dtype(dtype: torch.dtype) -> int:
        if dtype not in DTYPES:
            raise Unsupported(f"dtype {dtype}")
        return DTYPES[dtype]

    def device(self, device: torch.device) -> bytes:
        if device.type not in DEVICES:
            raise Unsupported(f"device {device.type}")
        if device.type == "cuda" and self.gpu is not None and device.index not in (None, self.gpu.index):
            raise Unsupported("a tensor on another GPU")
        return wire.uint(1, DEVICES["cpu" if self.gpu is None else "cuda"])

    # ---- inputs, outputs ----

    def new_value(self, key: Key) -> int:
        self.values[key] = self.value_count
        self.value_count += 1
        return self.value_count - 1

    def add_input(self, node: fx.Node, position: int) -> None:
        value = node.meta.get("val")
        if position in self.held:
            self.value_count += 1
            self.inputs.append(wire.data(2, self.symbols.sym_int(0)))
            return
        self.new_value(node)
        if isinstance(value, torch.Tensor):
            for user in node.users:  # a copy to it that Python makes: the program must not have the memory
                if user in self.given_up and user.target is torch.ops.aten.copy_.default and user.args[0] is node:
                    raise Unsupported(self.given_up[user])
            if self.gpu is not None and value.device.type == "cpu" and _is_written(node):
                raise Unsupported("a graph on a GPU that writes into a tensor on the CPU")
            self.inputs.append(wire.data(1, self.tensor_meta(value, with_offset=True)))
        elif isinstance(value, (torch.SymInt, int)) and not isinstance(value, bool):
            self.inputs.append(wire.data(2, self.symbols.sym_int(value)))
        elif isinstance(value, torch.SymBool) and symbol_of_truth(value) in self.symbols.numbers:
            self.inputs.append(wire.data(2, wire.uint_in_oneof(2, self.symbols.pool.add(value.node.expr))))
        elif isinstance(value, (torch.SymFloat, float)):
            if isinstance(value, torch.SymFloat):
                self.floats.values[value.node.expr] = self.values[node]
            self.float_inputs.append(len(self.inputs))
            self.inputs.append(wire.data(1, self.tensor_meta(_FLOAT_SCALAR, with_offset=True)))
        else:
            raise Unsupported(f"an input of type {type(value).__name__}")

    def add_constant(self, node: fx.Node) -> None:
        value = written_graph.attribute(self.module, name_of(node))
        if not isinstance(value, torch.Tensor):
            raise Unsupported(f"an attribute of type {type(value).__name__}")
        name = name_of(node)
        if name not in self.constant_values:
            self.constant_values[name] = self.new_value(node)
            with unset_fake_temporarily():  # a constant is a real tensor and has to stay one
                self.constants.append(value if self.gpu is None else value.to(self.gpu))
            self.inputs.append(wire.data(1, self.tensor_meta(value, with_offset=True)))
        self.values[node] = self.constant_values[name]

    def add_complex_numbers(self, node: fx.Node) -> None:
        """A complex number of Python is a 0-d tensor, of the dtype that it has in the result."""
        like = node.meta.get("val")
        if not isinstance(like, torch.Tensor) or not like.dtype.is_complex or like.dtype not in DTYPES:
            return  # of a dtype that the program does not know, Python takes the number as it is
        for value in (*node.args, *node.kwargs.values()):
            if type(value) is complex and (repr(value), like.dtype) not in self.complex_values:
                with unset_fake_temporarily():
                    number = torch.tensor(value, dtype=like.dtype)
                    self.constants.append(number if self.gpu is None else number.to(self.gpu))
                self.complex_values[repr(value), like.dtype] = self.new_value(("complex", repr(value), like.dtype))
                self.inputs.append(wire.data(1, self.tensor_meta(number, with_offset=True)))

    def output(self, value: Any, position: int) -> bytes:
        if isinstance(value, fx.Node):
            meta: Any = value.meta.get("val")
            if not _is_number(meta):
                of_graph = self.python is None or position < self.python.output_count
                if self.gpu is not None and meta.device.type == "cpu" and of_graph:
                    if value.op == "placeholder":
                        self.other_outputs.append((position, PassedInput(self.placeholders.index(value))))
                        return wire.uint_in_oneof(3, 1)
                    self.to_cpu.append(position)
                tensor = wire.uint_in_oneof(1, self.tensor(value))
                if not remade_views.is_remade(value):
                    return tensor
                return tensor + wire.data(4, self.symbols.sym_int(meta.storage_offset()))
            value = meta
        if isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
            return wire.data(2, self.symbols.sym_int(value))
        if isinstance(value, torch.SymBool) and not self.symbols.unbacked.isdisjoint(value.node.expr.free_symbols):
            self.truths.append(position)
            return wire.data(2, wire.uint_in_oneof(2, self.symbols.pool.add(value.node.expr)))
        if isinstance(value, (torch.SymFloat, torch.SymBool)):
            hints = dict(zip(self.symbols.numbers, self.symbols.hints))
            self.other_outputs.append((position, size_number(value, self.symbols.bindings, hints)))
        elif isinstance(value, (float, bool, str)):
            self.other_outputs.append((position, value))
        elif value is not None:
            raise Unsupported(f"an output of type {type(value).__name__}")
        return wire.uint_in_oneof(3, 1)

    # ---- nodes ----

    def add_node(self, node: fx.Node) -> None:
        target = node.target
        value = node.meta.get("val")
        if _is_number(value):
            if node in self.given_up:
                raise Unsupported(self.given_up[node])
            if target is torch.ops.aten._local_scalar_dense.default and is_symbolic(value):
                self.add_item(node, value)
            elif not graph_cut.is_placeholder_of_number(target) and not self.symbols.is_offset(value):
                self.check_known(value)
            return  # its users hold the expression or the number
        if target is operator.getitem:
            source, index = node.args
            if (source, index) not in self.values:
                raise Unsupported(self.why(node))
            self.values[node] = self.values[(source, index)]
            return
        if target in _TOKENS:
            raise Unsupported("a token of effects")
        if target is torch.ops.aten._assert_scalar.default and self.is_guarded(node.args[0]):
            return
        if node in self.given_up:
            raise Unsupported(self.given_up[node])
        if isinstance(target, python_calls.PythonCall):
            self.add_python_call(node, target)
            return
        if target is torch.ops.aten.scalar_tensor.default and self.add_float_tensor(node):
            return
        if target is torch.ops.aten.full.default and self.add_full(node):
            return
        if isinstance(target, torch._ops.HigherOrderOperator):
            raise Unsupported(f"higher-order operator {target.name()}")
        if not isinstance(target, torch._ops.OpOverload):
            raise Unsupported(f"a call of {getattr(target, '__name__', target)}")
        _check_pure(target)
        along = len(node.args) > 3 or node.kwargs.get("dim") is not None
        if target is torch.ops.aten.unique_consecutive.default and along:
            raise Unsupported("strides that torch's tracing tells otherwise than eager gives them")
        name, arguments = self.arguments(node, target)
        if self.gpu is not None and _is_random(target) and isinstance(value, torch.Tensor) \
                and value.device.type == "cpu":
            raise Unsupported("random numbers of the CPU's generator in a graph on a GPU")
        if name == "aten.copy_.default" and args_of(node)[0].op == "placeholder":
            self.mutated.add(args_of(node)[0])
        self.append_node(node, name, arguments, value)

    def add_python_call(self, node: fx.Node, call: python_calls.PythonCall) -> None:
        tensors, sizes = args_of(node)
        arguments = [("operands", self.list_argument("Tensor", tensors, "operands")),
                     ("sizes", self.list_argument("int", sizes, "sizes")), ("content", wire.data(11, call.digest))]
        self.append_node(node, call.name, arguments, node.meta["val"])

    def is_guarded(self, condition: Any) -> bool:
        """Whether a condition on sizes holds for every call of the graph: asking makes it a guard of torch's."""
        value = condition.meta.get("val") if isinstance(condition, fx.Node) else condition
        if isinstance(value, torch.SymBool):
            if self.symbols.is_offset(value):
                return True  # torch asks whether an offset in memory is negative
            self.check_known(value)
            if not self.symbols.unbacked.isdisjoint(value.node.expr.free_symbols):
                return False
        return isinstance(value, (bool, torch.SymBool)) and bool(value)

    def check_known(self, value: Any) -> None:
        """What the program can't know is for Python to compute."""
        if is_symbolic(value):
            for symbol in getattr(value.node, "expr", sympy.true).free_symbols:
                if symbol not in self.floats.values:
                    self.symbols.number_of(symbol)

    def add_item(self, node: fx.Node, value: Any) -> None:
        """A number that only the run knows: a symbol, or of a float the tensor itself, on which nothing waits."""
        source = args_of(node)[0]
        given, = node.meta.get("unbacked_bindings") or (unbacked_symbol_of(value),)
        if given is None or source.meta["val"].numel() != 1:
            raise Unsupported("an element of a tensor")
        symbol = value.node.shape_env.replace(given)
        if isinstance(value, torch.SymFloat):
            arguments = [("self", wire.uint_in_oneof(2, self.tensor(source))),
                         ("dtype", wire.uint_in_oneof(15, DTYPES[torch.float64]))]
            if source.meta["val"].dim():
                raise Unsupported("an element of a tensor of one element")
            self.floats.values[symbol] = self.scalar_node(node, "aten._to_copy.default", arguments)
            self.symbols.binders[symbol] = node
            return
        known = symbol in self.symbols.numbers or not isinstance(symbol, sympy.Symbol) or not is_unbacked(symbol)
        bound = given if known else symbol
        self.symbols.declare(bound, value.node.shape_env, None,
                     wire.uint(1, VALUE_ITEM) + wire.uint(4, self.tensor(source)))
        self.symbols.binders[bound] = node
        if known:  # torch goes on with what it is to be equal to
            self.add_assertion(node, sympy.Eq(given, symbol),
                               f"Runtime assertion failed for expression {given} == {symbol}")

    def add_assertion(self, node: fx.Node, condition: sympy.Basic, message: str) -> None:
        held = wire.data(13, wire.uint_in_oneof(2, self.symbols.pool.add(condition)))
        self.append_node(node, "aten._assert_scalar.default", [("self", held), ("assert_msg", wire.data(11, message))],
                         None)

    def append_node(self, node: fx.Node, target: str, arguments: Sequence[Encoded], value: Any,
                    key: Key | None = None) -> None:
        results = []
        if isinstance(value, (list, tuple)):
            for index, part in enumerate(value):
                number = self.new_value((node, index))
                if isinstance(part, torch.Tensor):
                    self.symbols.bind_sizes(self.node_of(node, (node, index)) or node, part, number)
                results.append(b"" if part is None or _is_number(part) else self.tensor_meta(part))
        elif isinstance(value, torch.Tensor):
            number = self.new_value(node if key is None else key)
            self.symbols.bind_sizes(node, value, number)
            results.append(self.tensor_meta(value))
        elif value is not None:
            raise Unsupported(f"a result of type {type(value).__name__}")
        self.nodes.append(b"".join([wire.data(1, target), *(wire.data(2, wire.data(1, name) + wire.data(2, body))
                                                            for name, body in arguments),
                                    *(wire.data(3, result) for result in results)]))
        self.node_names.append(node.name)
        given = node.meta.get(graph_cut.ORIGIN, node)
        self.graph_nodes.append((None if isinstance(node.target, python_calls.PythonCall) else given, target))
        self.source_lines.append(titles.source_line(node))

    def arguments(self, node: fx.Node, target: torch._ops.OpOverload) -> tuple[str, list[Encoded]]:
        """(target name, [(argument name, encoded Argument)]), defaults left out."""
        schema = target._schema
        name = str(target)
        given = list(zip(schema.arguments, node.args))
        by_name = {argument.name: argument for argument in schema.arguments}
        given += [(by_name[key], value) for key, value in node.kwargs.items()]
        encoded = []
        for argument, value in given:
            if value is None or argument.name in _IGNORED_ARGUMENTS or value is torch.strided:
                continue
            if argument.has_default_value() and _same(value, argument.default_value):
                continue
            if target is torch.ops.aten.softshrink.default and isinstance(value, float) and _ROUNDS_SHRINK:
                with unset_fake_temporarily():
                    value = torch.tensor(value, dtype=node.meta["val"].dtype).item()
            number = self.number_as_tensor(node, argument, value)
            if number is None:
                encoded.append((argument.name, self.argument(argument.type, value, argument.name)))
                continue
            if "Tensor" not in str(argument.type):
                name = _tensor_overload(target, name, argument.name)
            encoded.append((argument.name, wire.uint_in_oneof(2, number)))
        return name, encoded

    def number_as_tensor(self, node: fx.Node, argument: torch._C.Argument, value: Any) -> int | None:
        """The value id of a 0-d tensor, where a number is complex or depends on sizes; None for others."""
        like: Any = getattr(node.meta.get("val"), "dtype", None)
        if type(value) is complex:
            if (repr(value), like) not in self.complex_values:
                raise Unsupported(f"argument {argument.name} of type complex")
            return self.complex_values[repr(value), like]
        clamp = _is_clamp_by_a_tensor(node)
        if clamp and not like.is_floating_point:  # dtypes meet otherwise
            raise Unsupported(f"{node.target} takes no tensor as {argument.name}")
        if clamp and isinstance(value, (int, float)):
            arguments = [("s", wire.double_bits_in_oneof(7, float(value))),
                         ("dtype", wire.uint_in_oneof(15, DTYPES[torch.float64]))]
            return self.scalar_node(node, "aten.scalar_tensor.default", arguments)
        number = value.meta.get("val") if isinstance(value, fx.Node) else None
        if isinstance(number, torch.SymFloat):
            return self.float_value(node, value)
        if isinstance(number, torch.SymBool) and node.target is not torch.ops.aten._assert_scalar.default:
            return self.truth_value(node, number.node.expr)
        return None

    def tensor(self, node: fx.Node) -> int:
        if node not in self.values:
            raise Unsupported(self.why(node))
        return self.values[node]

    def argument(self, schema_type: object, value: Any, name: str) -> bytes:
        """The body of an Argument message. The schema's type decides where Python's does not."""
        kind = str(schema_type)
        optional = kind.startswith("Optional[")
        if optional:
            kind = kind[len("Optional["):-1]
        if isinstance(value, fx.Node):
            meta = value.meta.get("val")
            if isinstance(meta, torch.SymInt):
                return self.int_argument(meta)
            if isinstance(meta, torch.SymBool):  # of an assertion
                return wire.data(13, wire.uint_in_oneof(2, self.symbols.pool.add(meta.node.expr)))
            if is_symbolic(meta):
                raise Unsupported(f"argument {name} of type {type(meta).__name__}")
            if _is_number(meta):
                return self.argument(schema_type, meta, name)
            return wire.uint_in_oneof(2, self.tensor(value))
        if isinstance(value, (list, tuple)):
            return self.list_argument(kind, value, name)
        if isinstance(value, bool):
            return wire.uint_in_oneof(9, int(value))
        if isinstance(value, (int, torch.SymInt)):
            return wire.double_bits_in_oneof(7, float(value)) if kind == "float" else self.int_argument(value)
        if isinstance(value, float):
            return wire.double_bits_in_oneof(7, value)
        if isinstance(value, str):
            return wire.data(11, value)
        if isinstance(value, torch.dtype):
            return wire.uint_in_oneof(15, self.dtype(value))
        if isinstance(value, torch.memory_format):
            return wire.uint_in_oneof(16, MEMORY_FORMATS[value])
        if isinstance(value, torch.device):
            return wire.data(18, self.device(value))
        raise Unsupported(f"argument {name} of type {type(value).__name__}")

    def int_argument(self, value: int | torch.SymInt) -> bytes:
        body = self.symbols.sym_int(value)
        if body[0] >> 3 == 1:  # a literal
            return wire.sint_in_oneof(5, int(value))
        return wire.data(13, body)

    def list_argument(self, kind: str, values: Sequence[Any], name: str) -> bytes:
        metas: list[Any] = [value.meta.get("val") if isinstance(value, fx.Node) else value for value in values]
        if "Tensor" in kind:
            ids = [-1 if value is None else self.tensor(value) for value in values]
            if "Optional" in kind:
                return wire.data(4, wire.packed_sints(1, ids))
            return wire.data(3, wire.packed_uints(1, ids))
        if "bool" in kind:
            return wire.data(10, wire.packed_uints(1, [int(value) for value in metas]))
        if "float" in kind or any(isinstance(value, float) for value in metas):
            return wire.data(8, wire.packed_doubles(1, [float(value) for value in metas]))
        if "str" in kind:
            return wire.data(12, b"".join(wire.data(1, value) for value in metas))
        bodies = [self.symbols.sym_int(value) for value in metas]
        if all(body[0] >> 3 == 1 for body in bodies):
            return wire.data(6, wire.packed_sints(1, [int(value) for value in metas]))
        return wire.data(14, b"".join(wire.data(1, body) for body in bodies))

    # ---- numbers that depend on sizes ----

    def float_value(self, node: fx.Node, argument: fx.Node) -> int:
        value = argument.meta["val"]
        return self.floats.of(node, value.node.expr)

    def truth_value(self, node: fx.Node, expr: sympy.Basic) -> int:
        """The same of a boolean."""
        arguments = [("s", self.symbols.argument(expr)), ("dtype", wire.uint_in_oneof(15, DTYPES[torch.bool]))]
        return self.scalar_node(node, "aten.scalar_tensor.default", arguments, _TRUTH_SCALAR)

    def add_float_tensor(self, node: fx.Node) -> bool:
        """scalar_tensor of a number that depends on sizes is that number's tensor, cast."""
        number = args_of(node)[0]
        given = number.meta.get("val") if isinstance(number, fx.Node) else None
        if not isinstance(given, (torch.SymFloat, torch.SymBool)):
            return False
        value = node.meta["val"]
        if value.device != _FLOAT_SCALAR.device:
            return False
        scalar = self.float_value(node, number) if isinstance(given, torch.SymFloat) else \
            self.truth_value(node, given.node.expr)
        arguments = [("self", wire.uint_in_oneof(2, scalar)),
                     ("dtype", wire.uint_in_oneof(15, self.dtype(value.dtype)))]
        self.append_node(node, "aten._to_copy.default", arguments, value)
        return True

    def add_full(self, node: fx.Node) -> bool:
        """full of a number that depends on sizes: ones of them times its tensor."""
        size, number = args_of(node)
        given = number.meta.get("val") if isinstance(number, fx.Node) else None
        value = node.meta["val"]
        if not isinstance(given, torch.SymFloat) or not value.dtype.is_floating_point:
            return False
        ones = [("size", self.list_argument("int", size, "size")), ("fill_value", wire.double_bits_in_oneof(7, 1.0)),
                ("dtype", wire.uint_in_oneof(15, self.dtype(value.dtype)))]
        left = self.scalar_node(node, "aten.full.default", ones, value)
        arguments = [("self", wire.uint_in_oneof(2, left)),
                     ("other", wire.uint_in_oneof(2, self.float_value(node, number)))]
        self.append_node(node, "aten.mul.Tensor", arguments, value)
        return True

    def scalar_node(self, node: fx.Node, target: str, arguments: Sequence[Encoded],
                    like: torch.Tensor | None = None) -> int:
        key = ("float", len(self.nodes))
        self.append_node(node, target, arguments, _FLOAT_SCALAR if like is None else like, key)
        return self.values[key]


_TOKENS = (torch.ops.prims._make_token.default, torch.ops.prims._sink_tokens.default)

_FLOAT_SCALAR = torch.empty((), dtype=torch.float64, device="cpu")
_TRUTH_SCALAR = torch.empty((), dtype=torch.bool, device="cpu")

def _same(value: object, default: object) -> bool:
    return type(value) is type(default) and not isinstance(value, fx.Node) and value == default


def _tensor_overload(target: torch._ops.OpOverload, name: str, argument: str) -> str:
    """add.Scalar(x, number) has a twin that takes the number as a tensor."""
    if name == "aten.clamp.default" and argument in ("min", "max"):
        twin = "aten.clamp.Tensor"
    elif name == "aten.clamp.Tensor":
        return name
    elif name.endswith(".Scalar") and argument in ("other", "exponent", "value"):
        twin = name[: -len("Scalar")] + "Tensor"
    elif name.endswith(".Tensor") and argument == "other":
        return name  # x.mul(number) traces as mul.Tensor already
    elif name == "aten.pow.Tensor_Scalar" and argument == "exponent":
        twin = "aten.pow.Tensor_Tensor"
    else:
        raise Unsupported(f"{name} takes no tensor as {argument}")
    packet, overload = target.overloadpacket, twin.rsplit(".", 1)[1]
    taken = getattr(packet, overload)._schema.arguments if overload in packet.overloads() else ()
    if not any(other.name == argument and str(other.type) in ("Tensor", "Optional[Tensor]") for other in taken):
        raise Unsupported(f"{name} takes no tensor as {argument}")
    return twin


def _is_clamp_by_a_tensor(node: fx.Node) -> bool:
    """Whether a bound depends on sizes: then both are tensors."""
    return node.target is torch.ops.aten.clamp.default and any(
        isinstance(value, fx.Node) and isinstance(value.meta.get("val"), torch.SymFloat) for value in node.args[1:])


def _is_written(node: fx.Node) -> bool:
    return any(user.target is torch.ops.aten.copy_.default and user.args[0] is node for user in node.users)


def _is_random(target: torch._ops.OpOverload) -> bool:
    return torch.Tag.nondeterministic_seeded in target.tags
