"""The backend function of torch.compile, and the compilers that AOTAutograd calls for each graph."""
import functools
import time
import weakref

import torch
from torch._dynamo.backends.common import aot_autograd

from . import _C, decompositions, fallback, library, options as options_module, service, stats
from .errors import Unsupported
from .graph import BACKWARD, FORWARD, INFERENCE, export

_KIND_NAMES = {FORWARD: "forward", BACKWARD: "backward", INFERENCE: "inference"}
_live = weakref.WeakSet()


class CompiledGraph:
    """A graph that the service compiled; takes its inputs in a list, which it empties."""

    _boxed_call = True

    def __init__(self, artifact, constants, title):
        self.artifact = artifact
        self.constants = constants
        self.title = title
        _live.add(self)

    def __call__(self, args):
        if self.constants:
            args.extend(self.constants)
        return self.artifact(args)


def run_counts():
    """Sums over the programs that are alive."""
    total = {"calls": 0, "kernel_launches": 0, "library_call_runs": 0, "stride_copies": 0}
    for graph in list(_live):
        counts = graph.artifact.counts()
        total["calls"] += counts["calls"]
        total["kernel_launches"] += counts["launches"]
        total["library_call_runs"] += counts["library_calls"]
        total["stride_copies"] += counts["stride_copies"]
    return total


def _title(module, kind):
    name = "graph"
    for node in module.graph.nodes:
        stack = node.meta.get("nn_module_stack")
        if stack:
            owner = next(iter(stack.values()))[1]
            name = owner.rsplit(".", 1)[-1] if isinstance(owner, str) else owner.__name__
            break
    return f"{name} {_KIND_NAMES[kind]}"


def _torch_version():
    return ".".join(torch.__version__.split(".")[:2])


def _static_inputs(kind):
    context = torch._guards.TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if kind == BACKWARD or metadata is None:
        return ()
    return tuple(metadata.static_input_indices or ())


def _donated_inputs(kind):
    context = torch._guards.TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if kind != BACKWARD or metadata is None:
        return ()
    return tuple(metadata.bw_donated_idxs or ())


def _guards(inputs):
    """Conditions that torch has recorded on the symbols so far."""
    for value in inputs:
        sizes = [value] if isinstance(value, torch.SymInt) else getattr(value, "shape", ())
        for size in sizes:
            if isinstance(size, torch.SymInt):
                return [guard.expr for guard in size.node.shape_env.guards]
    return []


def _replay_guards(artifact, inputs):
    """Adds what the service specialised on to torch's own guards."""
    nodes, conditions, bindings = artifact.guards()
    if not conditions:
        return
    from .symbols import evaluate

    values = []
    for source, index, dim in bindings:
        value = inputs[index] if index < len(inputs) else None
        if source == 1:
            values.append(value)
        elif source == 2:
            values.append(value.shape[dim])
        else:
            values.append(value.stride(dim))
    if not evaluate(nodes, conditions, values):
        raise Unsupported("the service's program does not fit the sizes at hand")


def _report_strides(artifact):
    context = torch._guards.TracingContext.try_get()
    if context is not None and context.output_strides is not None:
        if len(context.output_strides) == 0:
            context.output_strides.extend(artifact.output_strides())


def _record(artifact, title, seconds):
    info = artifact.info()
    stats.count("graphs")
    stats.count("hits" if info["hit"] else "compiles")
    stats.count("joined", int(info["joined"]))
    stats.count("kernels", len(info["launches"]))
    stats.count("library_calls", len(info["library_calls"]))
    stats.count("uploaded_bytes", info["uploaded_bytes"])
    stats.count("fetched_objects", info["fetched_objects"])
    for phase in ("connect", "lookup", "compile", "fetch"):
        stats.add_seconds(phase, info[f"{phase}_seconds"])
    stats.add_seconds("export", seconds)
    info["title"] = title
    stats.record_graph(info)


def compile_graph(module, inputs, kind, settings):
    """The compiled graph, or one that runs without kiln."""
    title = _title(module, kind)
    try:
        return _compile(module, inputs, kind, settings, title)
    except Unsupported as reason:
        return fallback.run_without_kiln(module, title, f"unsupported: {reason}")
    except _C.ServiceError as error:
        code, message = error.args
        return fallback.run_without_kiln(module, title, fallback.reason_of(code, message), message)


def _compile(module, inputs, kind, settings, title):
    start = time.perf_counter()
    service.configure()
    library.install()
    exported = export(module, kind, title=title, static_inputs=_static_inputs(kind),
                      donated_inputs=_donated_inputs(kind), guards=_guards(inputs))
    key, header, graph = _C.build(
        exported.graph, exported.facts, exported.notes, list(exported.hints), options_module.MODES[settings.mode],
        settings.fallback_random, False, torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(), _torch_version(), decompositions.digest())
    seconds = time.perf_counter() - start
    artifact = _C.get(key, header, graph, True, service.interpret_list())
    _replay_guards(artifact, inputs)
    _record(artifact, title, seconds)
    _report_strides(artifact)
    return CompiledGraph(artifact, exported.constants, title)


def kiln(gm, example_inputs, *, mode=None, options=None):
    """Backend function: torch.compile(model, backend="kiln", mode=…, options=…)."""
    settings = options_module.parse(mode, options)
    fallback.policy()

    def compiler(kind):
        return functools.partial(_call_compiler, kind=kind, settings=settings)

    backend = aot_autograd(fw_compiler=compiler(FORWARD), bw_compiler=compiler(BACKWARD),
                           inference_compiler=compiler(INFERENCE), decompositions=decompositions.table(),
                           partition_fn=decompositions.partition, keep_inference_input_mutations=True)
    return backend(gm, example_inputs)


def _call_compiler(module, inputs, *, kind, settings):
    return compile_graph(module, inputs, kind, settings)


def register():
    """Makes the name known also where the package is used without being installed."""
    from torch._dynamo.backends import registry

    if "kiln" not in registry._BACKENDS or registry._BACKENDS["kiln"] is None:
        registry._BACKENDS.pop("kiln", None)
        registry.register_backend(compiler_fn=kiln, name="kiln")
