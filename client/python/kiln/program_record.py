"""What is told of one graph: `kiln.explain` shows it, and `kiln._C` fills most of it."""
from typing import Any, TypeAlias, TypedDict, final


class KernelRecord(TypedDict):
    """A native kernel, as the worker that made it tells."""

    name: str
    digest: str  # of its object
    operators: list[str]
    sources: list[str]  # "file.py:12 in forward"
    bytes_read: int  # by one launch, at the sizes that it was compiled at
    bytes_written: int


class MeasuredRecord(TypedDict):
    """What max-autotune found of one step: the default's time, and the best's."""

    changed: bool
    default_microseconds: float
    microseconds: float
    candidates: int
    lost: int  # candidates that could not be measured


class GemmRecord(MeasuredRecord):
    """Of a gemm: cuBLASLt's first algorithm against its others and kernels of kiln's own."""

    sizes: tuple[int, int, int, int]  # batch, rows, depth, columns
    kernel: str  # of kiln's own; "": the library's


class ConvolutionRecord(MeasuredRecord):
    """Of a convolution or a gradient of one: cuDNN's first plan against its others. Shapes are torch's (N, C, …)."""

    of: str  # FORWARD, or which gradient
    input: tuple[int, ...]
    weight: tuple[int, ...]
    output: tuple[int, ...]


class ScheduleRecord(MeasuredRecord, total=False):
    """Of a generated kernel: its default thread schedule against others."""

    name: str  # of the kernel
    schedules: list[str]  # the default's first
    schedule: str  # the best, where it is another


class ImagesRecord(TypedDict):
    """Which layout of images was the faster one."""

    without: str  # why nothing was measured
    as_traced: bool
    channels_last_microseconds: float
    as_traced_microseconds: float
    at_least: bool  # the latter took longer than was waited for


class TuningRecord(TypedDict, total=False):
    """What max-autotune measured for a program."""

    without: str  # why not all was measured
    gpu: str
    gemms: list[GemmRecord]
    convolutions: list[ConvolutionRecord]
    kernels: list[ScheduleRecord]
    images: ImagesRecord


class PythonCallRecord(TypedDict):
    """A step that runs in Python: neighbouring nodes that kiln does not know."""

    name: str
    reason: str
    operators: tuple[str, ...]
    share: float  # of the time that the graph's runs took so far


class _Compiled(TypedDict):
    compile_key: str
    variant_id: str
    request_key: str
    manifest_digest: str
    hit: bool
    joined: bool  # another process's compile
    not_kept: str  # why the store has not kept it
    recovered: list[str]
    refused: list[str]  # answers that were not taken, and why
    uploaded_bytes: int
    fetched_objects: int
    connect_seconds: float
    lookup_seconds: float
    compile_seconds: float
    fetch_seconds: float
    kernels: list[KernelRecord]
    launches: list[int]  # a kernel's number each
    library_calls: list[str]  # a target each
    library_bytes: int
    library_reasons: dict[str, str]  # by target


@final
class ProgramRecord(_Compiled, total=False):
    """Of a graph that was compiled."""

    title: str
    tuning: TuningRecord
    cuda_graph: str
    python_calls: list[PythonCallRecord]


class _FallbackRecord(TypedDict):
    title: str
    fallback: str  # the reason that is counted
    message: str


@final
class FallbackRecord(_FallbackRecord, total=False):
    """Of a graph that runs without kiln."""

    due: float  # when the service is asked for it again, by time.monotonic()


GraphRecord: TypeAlias = ProgramRecord | FallbackRecord
Entry: TypeAlias = dict[str, Any]  # what `kilnctl show --json` prints of a program: JSON of proto/kiln/v1
