"""Arguments of an FX node as a reader of one operator knows them. torch's own type is a union of all there may be."""
from collections.abc import Mapping
from typing import Any

from torch import fx


def args_of(node: fx.Node) -> tuple[Any, ...]:
    return node.args


def kwargs_of(node: fx.Node) -> Mapping[str, Any]:
    return node.kwargs


def name_of(node: fx.Node) -> str:
    """The target of a node that is no call: a placeholder's name, an attribute's path."""
    return str(node.target)
