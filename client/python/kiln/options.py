"""`mode=` and `options=` of torch.compile, checked; the errors name what is valid."""
import dataclasses
from collections.abc import Mapping

MODES = {
    "default": 0,
    "reduce-overhead": 1,
    "max-autotune": 2,
    "max-autotune-no-cudagraphs": 3,
}


@dataclasses.dataclass(frozen=True)
class Options:
    """What a caller can set that changes generated code. Field numbers: proto/kiln/v1/compile.proto."""

    mode: str = "default"
    # Random operators as torch's own calls, so that they repeat eager's numbers bit by bit.
    fallback_random: bool = False

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"kiln: unknown mode {self.mode!r}; valid modes are {', '.join(MODES)}")


_SETTABLE = {field.name: field.type for field in dataclasses.fields(Options) if field.name != "mode"}


def parse(mode: str | None = None, options: Mapping[str, object] | None = None) -> Options:
    """Options from torch.compile's arguments. Raises ValueError or TypeError, naming what is valid."""
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f"kiln: options take a dict such as {{'{next(iter(_SETTABLE))}': True}}, not {options!r}")
    values = {}
    for name, value in (options or {}).items():
        if name not in _SETTABLE:
            raise ValueError(f"kiln: unknown option {name!r}; valid options are {', '.join(sorted(_SETTABLE))}")
        if not isinstance(value, bool):
            raise TypeError(f"kiln: option {name!r} takes True or False, not {value!r}")
        values[name] = value
    return Options(mode=mode or "default", **values)
