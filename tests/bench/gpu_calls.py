"""What kiln's runtime takes of the CPU on a GPU, over the bare calls that it makes: microseconds a step (a kernel's
launch, a gemm) and a result that Python gets.

The bare calls run in a loop in C (gpu_calls.c, compiled by cc), those that a chain of steps is held against in the
chain's order, as many as the longer of two programs has more. Each round times the short program, the long one and the
bare calls in turn and takes the difference, so that the cost of a call itself drops out and a slow moment of the
machine falls on all three; the median of many rounds counts, their quartiles are the spread. The thread stays on one
core, nobody waits for the GPU while the clock runs, and the programs are called without Dynamo and AOTAutograd.
"""
import ctypes
import gc
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from c_library import compiled, loaded
from steps import chain

SIZE = 8  # rows and columns of a gemm
LAYERS = (20, 220)
OUTPUTS = (4, 36)
ROUNDS = 300
PTX = b""".version 7.0
.target sm_80
.address_size 64
.visible .entry empty(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 d) { ret; }
"""
CUDA_R_32F, CUBLAS_COMPUTE_32F = 0, 68
ALGORITHM_RESULT_BYTES = 96  # cublasLtMatmulHeuristicResult_t; the algorithm is its first member


def _check(what: str, status: int) -> None:
    if status:
        raise RuntimeError(f"{what} gave {status}")


def _address(function: Any) -> ctypes.c_void_p:
    return ctypes.cast(function, ctypes.c_void_p)


def _rounds(*timed: Callable[[], float]) -> list[list[float]]:
    """The seconds of each function, which gives its own, by rounds in which they take turns."""
    rounds = []
    for _ in range(ROUNDS):
        taken = []
        for seconds in timed:
            torch.cuda.synchronize()
            taken.append(seconds())
        if min(taken) < 0:
            raise RuntimeError("a bare call failed")
        rounds.append(taken)
    return rounds


def _spread(values: list[float]) -> tuple[float, float, float]:
    """(median, lower quartile, upper quartile)."""
    low, middle, high = statistics.quantiles(values, n=4)
    return middle, low, high


class _LaunchCall(ctypes.Structure):
    """As in gpu_calls.c."""
    _fields_ = [(name, ctypes.c_void_p) for name in ("function", "kernel", "parameters")]


class _GemmCall(ctypes.Structure):
    """As in gpu_calls.c."""
    _fields_ = [(name, ctypes.c_void_p)
                for name in ("function", "handle", "description", "layout", "a", "b", "c", "algorithm")]


def _launch_call() -> tuple[_LaunchCall, Any]:
    """(the call of a kernel that does nothing, what has to live as long)."""
    driver = ctypes.CDLL("libcuda.so.1")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _check("cuModuleLoadData", driver.cuModuleLoadData(ctypes.byref(module), ctypes.c_char_p(PTX)))
    _check("cuModuleGetFunction", driver.cuModuleGetFunction(ctypes.byref(function), module, b"empty"))
    values = [ctypes.c_uint64(0) for _ in range(4)]
    parameters = (ctypes.c_void_p * 4)(*(ctypes.addressof(value) for value in values))
    return _LaunchCall(_address(driver.cuLaunchKernel), function, _address(parameters)), (values, parameters)


def _gemm_call() -> tuple[_GemmCall, Any]:
    """(the call of a gemm by the heuristic's algorithm, what has to live as long)."""
    library = loaded("libcublasLt.so")
    handle, description, layout, preference = (ctypes.c_void_p() for _ in range(4))
    _check("cublasLtCreate", library.cublasLtCreate(ctypes.byref(handle)))
    _check("cublasLtMatmulDescCreate",
           library.cublasLtMatmulDescCreate(ctypes.byref(description), CUBLAS_COMPUTE_32F, CUDA_R_32F))
    _check("cublasLtMatrixLayoutCreate", library.cublasLtMatrixLayoutCreate(
        ctypes.byref(layout), CUDA_R_32F, ctypes.c_uint64(SIZE), ctypes.c_uint64(SIZE), ctypes.c_int64(SIZE)))
    _check("cublasLtMatmulPreferenceCreate", library.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)))
    found, algorithm = ctypes.c_int(), ctypes.create_string_buffer(ALGORITHM_RESULT_BYTES)
    _check("cublasLtMatmulAlgoGetHeuristic", library.cublasLtMatmulAlgoGetHeuristic(
        handle, description, layout, layout, layout, layout, preference, 1, algorithm, ctypes.byref(found)))
    matrices = [torch.zeros(SIZE, SIZE, device="cuda") for _ in range(3)]
    return _GemmCall(_address(library.cublasLtMatmul), handle, description, layout,
                     *(matrix.data_ptr() for matrix in matrices), _address(algorithm)), (matrices, algorithm)


class _Bare:
    """Functions that give the seconds of bare calls."""

    def __init__(self) -> None:
        self._loops = compiled("gpu_calls.c", "-O2")
        self._loops.BareSeconds.restype = self._loops.TensorSeconds.restype = ctypes.c_double
        self._stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        (self._launch, *self._kept), (self._gemm, *more) = _launch_call(), _gemm_call()
        self._kept += more
        self._torch = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch.so"))

    def calls(self, launches: int, gemms: int) -> Callable[[], float]:
        """Of a gemm and a launch in turn, or of one of them alone."""
        count = max(launches, gemms)
        if min(launches, gemms) not in (0, count):
            raise ValueError("no bare calls like it")
        references = [ctypes.byref(call) if wanted else None
                      for call, wanted in ((self._launch, launches), (self._gemm, gemms))]
        return lambda: self._loops.BareSeconds(*references, self._stream, ctypes.c_int(count))

    def tensors(self, count: int) -> Callable[[], float]:
        """Of tensors of SIZE numbers that live together, by torch's own C functions."""
        handles = (ctypes.c_void_p * count)()

        def seconds() -> float:
            taken = self._tensors(count, handles)
            for handle in handles:
                self._torch.aoti_torch_delete_tensor_object(ctypes.c_void_p(handle))
            return taken
        return seconds

    def _tensors(self, count: int, handles: Any) -> float:
        kind = self._torch.aoti_torch_device_type_cuda()
        return float(self._loops.TensorSeconds(
            _address(self._torch.aoti_torch_empty_strided), ctypes.c_int64(SIZE),
            self._torch.aoti_torch_dtype_float32(), kind, ctypes.c_int(count), handles))

    def pythons(self, count: int) -> Callable[[], float]:
        """Of Python's objects for as many tensors, of which it had none."""
        tensors_of = torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs
        capsule = ctypes.pythonapi.PyCapsule_New
        capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p] * 3
        handles = (ctypes.c_void_p * count)()

        def seconds() -> float:
            if self._tensors(count, handles) < 0:
                return -1
            capsules = [capsule(handle, None, None) for handle in handles]
            begin = time.perf_counter()
            made = tensors_of(capsules)
            taken = time.perf_counter() - begin
            del made
            return taken
        return seconds


def _fan(outputs: int) -> Callable[[torch.Tensor], tuple[torch.Tensor, ...]]:
    return lambda x: tuple(x + float(i) for i in range(outputs))


class _Counted:
    """A compiled function with what one call of it does."""

    def __init__(self, function: Callable[..., Any], *inputs: torch.Tensor) -> None:
        import kiln
        from kiln import compiled
        before = {id(graph) for graph in compiled.live_graphs()}
        whole = torch.compile(function, backend="kiln")
        whole(*inputs)
        graphs = [graph for graph in compiled.live_graphs() if id(graph) not in before]
        if len(graphs) != 1:
            raise RuntimeError(f"{len(graphs)} graphs where one was to be compiled")
        # Kept, so that Dynamo does not drop the program.
        self._whole, self._program, self._inputs = whole, graphs[0], inputs
        for _ in range(3):
            self.seconds()
        counts, allocated = kiln.stats(), self._allocations()
        self.seconds()
        after = kiln.stats()
        self.kernels = after["kernel_launches"] - counts["kernel_launches"]
        self.gemms = after["library_call_runs"] - counts["library_call_runs"]
        self.allocations = self._allocations() - allocated
        if fallbacks := kiln.stats()["fallbacks"]:
            raise RuntimeError(f"kiln fell back: {fallbacks}")

    @staticmethod
    def _allocations() -> int:
        return int(torch.cuda.memory_stats()["allocation.all.allocated"])

    def seconds(self) -> float:
        inputs = list(self._inputs)
        begin = time.perf_counter()
        results = self._program(inputs)
        taken = time.perf_counter() - begin
        del results
        return taken


def _difference(short: _Counted, long: _Counted, *bare: Callable[[], float]) -> list[list[float]]:
    """By rounds, the microseconds that `long` takes more than `short`, and those of each bare function."""
    return [[1e6 * (taken[1] - taken[0]), *(1e6 * seconds for seconds in taken[2:])]
            for taken in _rounds(short.seconds, long.seconds, *bare)]


@torch.no_grad()
def measure() -> dict[str, Any]:
    """Microseconds as (median, quartiles): step (a kernel or gemm, over the bare calls in the same order), result
    (of a program, over torch's own tensor and Python's object for it); medians of what is bare; counts of the programs
    they come from."""
    x, w = torch.rand(SIZE, SIZE, device="cuda"), torch.rand(SIZE, SIZE, device="cuda") / SIZE
    fans = [_Counted(_fan(outputs), x) for outputs in OUTPUTS]
    chains = [_Counted(chain(layers), x, w) for layers in LAYERS]
    bare = _Bare()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # this thread alone
    gc.disable()
    steps, step = _over(chains[0], chains[1], bare)
    results, result = _over(fans[0], fans[1], bare, with_results=True)
    return {"step": step, "steps": steps, "result": result, "results": results}


def _over(short: _Counted, long: _Counted, bare: _Bare,
          with_results: bool = False) -> tuple[dict[str, Any], tuple[float, float, float]]:
    """(what `long` does more than `short`, microseconds of it over the bare calls, a step or a result each)."""
    more = {what: getattr(long, what) - getattr(short, what) for what in ("kernels", "gemms", "allocations")}
    timed = [bare.calls(more["kernels"], more["gemms"])] if more["kernels"] or more["gemms"] else []
    count = more["kernels"] + more["gemms"]
    if with_results:
        count = more["allocations"]
        timed += [bare.tensors(count), bare.pythons(count)]
    rounds = _difference(short, long, *timed)
    more["bare_us"] = [statistics.median(taken[1 + i] for taken in rounds) / count for i in range(len(timed))]
    return more, _spread([(taken[0] - sum(taken[1:])) / count for taken in rounds])


def line(result: dict[str, Any]) -> str:
    """The Markdown."""
    def of(what: str) -> str:
        return "{:.2f} µs ({:.2f}–{:.2f})".format(*result[what])

    steps, results = result["steps"], result["results"]
    bare = [f"{microseconds:.2f}" for microseconds in results["bare_us"]]
    return (f"CPU time of the runtime, medians and quartiles of {ROUNDS} rounds: a step takes {of('step')} over its "
            f"bare call, of {steps['kernels']} launches and {steps['gemms']} gemms in turn, bare "
            f"{steps['bare_us'][0]:.2f} µs "
            f"each, with {steps['allocations']} allocations; a result takes {of('result')} over torch's own tensor and "
            f"Python's object, bare {' and '.join(bare[-2:])} µs ({results['allocations']} results).")
