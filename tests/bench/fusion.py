"""How well a graph was fused: loop nests and bytes moved, Inductor's and kiln's by one definition.

Loop nests: Inductor's scheduler nodes that are loops, after fusion (nodes under one outer loop are one); kiln's kernel
launches. Bytes: Inductor's `metrics.num_bytes_accessed`, which is a sum over scheduler nodes, library calls among them,
of each buffer that a node reads or writes, once a node, at most the elements it can touch; kiln counts its launches
and library calls the same way. `loop_bytes` are those of the loops alone, `bytes` all.
"""

class InductorGraphs:
    """Keeps what Inductor compiles in this process from now on; counted when asked, so that no start is slower."""

    def __init__(self):
        from torch._inductor.graph import GraphLowering

        self._graphs = graphs = []
        compile_to_module = GraphLowering.compile_to_module

        def keep(graph):
            graphs.append(graph)
            return compile_to_module(graph)

        GraphLowering.compile_to_module = keep

    def counts(self):
        return [self._count(graph) for graph in self._graphs]

    @staticmethod
    def _count(graph):
        from torch._inductor.scheduler import ExternKernelSchedulerNode, NopKernelSchedulerNode
        from torch._inductor.virtualized import V

        with V.set_graph_handler(graph):
            total, _, _ = graph.count_bytes()
            loops = [node for node in graph.scheduler.nodes
                     if not isinstance(node, (ExternKernelSchedulerNode, NopKernelSchedulerNode))]
            loop_bytes = sum(node.get_read_write_buffers_sizes() for node in loops)
        kind = "backward" if graph.is_backward else "inference" if graph.is_inference else "forward"
        return {"kind": kind, "nests": len(loops), "loop_bytes": int(loop_bytes), "bytes": int(total)}


def kiln_counts():
    from kiln import records

    found = []
    for record in records.graphs_since(0):
        if "fallback" in record:
            continue
        kernels = record["kernels"]
        loop_bytes = sum(kernels[number]["bytes_read"] + kernels[number]["bytes_written"]
                         for number in record["launches"])
        found.append({"kind": record["title"].rsplit(" ", 1)[-1], "nests": len(record["launches"]),
                      "loop_bytes": loop_bytes, "bytes": loop_bytes + record["library_bytes"]})
    return found


def pairs(inductor, kiln):
    """[(kind, Inductor's counts, kiln's)]: graphs of a kind in the order in which they were compiled."""
    result = []
    for kind in ("inference", "forward", "backward"):
        sides = [[counts for counts in side if counts["kind"] == kind] for side in (inductor, kiln)]
        if len(sides[0]) != len(sides[1]):
            raise ValueError(f"{len(sides[0])} {kind} graphs of Inductor's, {len(sides[1])} of kiln's")
        result += [(kind, *pair) for pair in zip(*sides)]
    return result
