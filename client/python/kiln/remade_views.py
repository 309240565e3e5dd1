"""Results that AOTAutograd makes again: a view of an input, or of another result, which it has from a graph as a tensor
of its own. Where sizes are symbolic it reads strides and storage offset off that tensor."""
from __future__ import annotations

from torch import fx
from torch._functorch._aot_autograd.schemas import OutputType, ViewAndMutationMeta

from .fx_nodes import args_of

_MARK = "kiln_remade"
_REMADE = (OutputType.alias_of_input, OutputType.alias_of_intermediate, OutputType.alias_of_intermediate_save_as_output,
           OutputType.alias_of_intermediate_base_is_user_output)


def mark(module: fx.GraphModule, metadata: ViewAndMutationMeta) -> None:
    """Marks them among the results of a forward or an inference graph, and what an input's metadata is set to."""
    results = args_of(module.graph.output_node())[0][len(metadata.tokens):]  # those of effects come first
    mutated = metadata.num_mutated_inp_runtime_indices
    remade = [True] * mutated + [info.output_type in _REMADE for info in metadata.output_info]
    for result, is_one in zip(results, remade):
        if is_one and isinstance(result, fx.Node):
            result.meta[_MARK] = True


def is_remade(node: fx.Node) -> bool:
    return _MARK in node.meta
