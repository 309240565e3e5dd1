"""kiln: `torch.compile(model, backend="kiln")`.

Importing this package does nothing by side effect but register the backend's name and put declarations of
torch's right (declarations.py); the compile service is contacted when the first graph is compiled.
"""

from . import declarations
from .backend import kiln, register
from .errors import GangDiverges
from .explain import explain
from .profile import profile
from .records import reset_stats
from .stats import stats
from .status import status

register()
declarations.install()

__all__ = ["GangDiverges", "explain", "kiln", "profile", "reset_stats", "stats", "status"]
__version__ = "0.1.0"
