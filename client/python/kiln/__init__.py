"""kiln: `torch.compile(model, backend="kiln")`.

Importing this package registers nothing by side effect but the backend's name; the compile service
is contacted when the first graph is compiled.
"""

from .backend import kiln, register
from .explain import explain
from .records import reset_stats, stats
from .service import status

register()

__all__ = ["explain", "kiln", "reset_stats", "stats", "status"]
__version__ = "0.1.0"
