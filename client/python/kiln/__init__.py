"""kiln: `torch.compile(model, backend="kiln")`.

Importing this package registers nothing by side effect but the backend's name; the compile service
is contacted when the first graph is compiled.
"""

from .backend import kiln, register
from .explain import explain
from .profile import profile
from .records import reset_stats, stats
from .service import status

register()

__all__ = ["explain", "kiln", "profile", "reset_stats", "stats", "status"]
__version__ = "0.1.0"
