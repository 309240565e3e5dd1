"""What kiln's runtime takes of the CPU on a GPU, over the bare calls that it makes: microseconds a step (a kernel's
launch, a product) and an allocation with its tensor, which Python gets.

The bare calls run in a loop in C (gpu_calls.c, compiled by cc), those that a chain of steps is held against in the
chain's order. Kiln's figures are differences of two programs of unlike length, so that the cost of a call itself drops
out; nobody waits for the GPU while the clock runs. The fastest of many rounds counts: what other processes take is
never negative.
"""
import ctypes
import os
import time

import torch

from c_library import compiled
from steps import chain

SIZE = 8  # rows and columns of a product
LAYERS = (20, 220)
OUTPUTS = (4, 36)
ROUNDS = 60
BARE_CALLS = 400  # less than the driver queues
PTX = b""".version 7.0
.target sm_80
.address_size 64
.visible .entry empty(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 d) { ret; }
"""
CUDA_R_32F, CUBLAS_COMPUTE_32F = 0, 68
ALGORITHM_RESULT_BYTES = 96  # cublasLtMatmulHeuristicResult_t; the algorithm is its first member


def _check(what, status):
    if status:
        raise RuntimeError(f"{what} gave {status}")


def _address(function):
    return ctypes.cast(function, ctypes.c_void_p)


def _loaded(name):
    """The library of torch's own that this process has."""
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if f"/{name}" in line}
    if not paths:
        raise RuntimeError(f"{name} is not loaded")
    return ctypes.CDLL(sorted(paths)[0])


def _loops():
    loops = compiled("gpu_calls.c", "-O2")
    loops.BareSeconds.restype = loops.TensorSeconds.restype = ctypes.c_double
    return loops


def _fastest(*programs):
    """Microseconds of the fastest of the rounds of each function, which gives its own seconds; they take turns."""
    best = [float("inf")] * len(programs)
    for _ in range(ROUNDS):
        for i, seconds in enumerate(programs):
            torch.cuda.synchronize()
            taken = seconds()
            if taken < 0:
                raise RuntimeError("a bare call failed")
            best[i] = min(best[i], taken)
    return [seconds * 1e6 for seconds in best]


class _LaunchCall(ctypes.Structure):
    """As in gpu_calls.c."""
    _fields_ = [(name, ctypes.c_void_p) for name in ("function", "kernel", "parameters")]


class _ProductCall(ctypes.Structure):
    """As in gpu_calls.c."""
    _fields_ = [(name, ctypes.c_void_p)
                for name in ("function", "handle", "description", "layout", "a", "b", "c", "algorithm")]


def _launch_call():
    """(the call of a kernel that does nothing, what has to live as long)."""
    driver = ctypes.CDLL("libcuda.so.1")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _check("cuModuleLoadData", driver.cuModuleLoadData(ctypes.byref(module), ctypes.c_char_p(PTX)))
    _check("cuModuleGetFunction", driver.cuModuleGetFunction(ctypes.byref(function), module, b"empty"))
    values = [ctypes.c_uint64(0) for _ in range(4)]
    parameters = (ctypes.c_void_p * 4)(*(ctypes.addressof(value) for value in values))
    return _LaunchCall(_address(driver.cuLaunchKernel), function, _address(parameters)), (values, parameters)


def _product_call():
    """(the call of a product by the heuristic's algorithm, what has to live as long)."""
    library = _loaded("libcublasLt.so")
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
    return _ProductCall(_address(library.cublasLtMatmul), handle, description, layout,
                        *(matrix.data_ptr() for matrix in matrices), _address(algorithm)), (matrices, algorithm)


def _tensors(loops, device="cuda"):
    """Seconds of a tensor of SIZE numbers out of as many as the larger fan has more, by torch's own C functions."""
    torch_library = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch.so"))
    kind = getattr(torch_library, f"aoti_torch_device_type_{device}")()
    return loops.TensorSeconds(_address(torch_library.aoti_torch_empty_strided),
                               _address(torch_library.aoti_torch_delete_tensor_object), ctypes.c_int64(SIZE),
                               torch_library.aoti_torch_dtype_float32(), kind, OUTPUTS[1] - OUTPUTS[0])


def _bare(loops):
    """Microseconds of a launch, of a product, of both in turn, and of a tensor."""
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    (launch, launch_memory), (product, product_memory) = _launch_call(), _product_call()

    def rounds_of(*calls):
        references = [call and ctypes.byref(call) for call in calls]
        count = ctypes.c_int(BARE_CALLS // len([call for call in calls if call]))
        return lambda: loops.BareSeconds(*references, stream, count)

    taken = _fastest(rounds_of(launch, None), rounds_of(None, product), rounds_of(launch, product),
                     lambda: _tensors(loops))
    del launch_memory, product_memory
    return taken


def _fan(outputs):
    return lambda x: tuple(x + float(i) for i in range(outputs))


class _Counted:
    """A compiled function with what one call of it does."""

    def __init__(self, function, *inputs):
        import kiln
        from kiln import backend
        compiled = torch.compile(function, backend="kiln")
        self._call = lambda: compiled(*inputs)
        for _ in range(3):
            self._call()
        before, allocated = backend.run_counts(), self._allocations()
        self._call()
        after = backend.run_counts()
        self.kernels = after["kernel_launches"] - before["kernel_launches"]
        self.products = after["library_call_runs"] - before["library_call_runs"]
        self.allocations = self._allocations() - allocated
        if fallbacks := kiln.stats()["fallbacks"]:
            raise RuntimeError(f"kiln fell back: {fallbacks}")

    @staticmethod
    def _allocations():
        return torch.cuda.memory_stats()["allocation.all.allocated"]

    def seconds(self):
        begin = time.perf_counter()
        self._call()
        return time.perf_counter() - begin


def _difference(short, long):
    """(microseconds, kernels, products, allocations) of what `long` does more than `short`."""
    took_short, took_long = _fastest(short.seconds, long.seconds)
    return (took_long - took_short, long.kernels - short.kernels, long.products - short.products,
            long.allocations - short.allocations)


@torch.no_grad()
def measure():
    """Microseconds: launch, product, both in turn, tensor (bare); allocation (with its tensor and Python's, over the
    bare tensor); step (a kernel or product, over the bare calls in the same order); counts of the programs they come
    from."""
    x, w = torch.rand(SIZE, SIZE, device="cuda"), torch.rand(SIZE, SIZE, device="cuda") / SIZE
    fans = [_Counted(_fan(outputs), x) for outputs in OUTPUTS]
    chains = [_Counted(chain(layers), x, w) for layers in LAYERS]
    launch, product, both, tensor = _bare(_loops())
    more, kernels, _, allocations = _difference(*fans)
    allocation = (more - kernels * launch) / allocations - tensor
    more, kernels, products, allocations = _difference(*chains)
    if kernels != products:
        raise RuntimeError(f"the chain has {kernels} kernels and {products} products: no bare calls like it")
    over = more - kernels * both
    return {"launch_us": launch, "product_us": product, "both_us": both, "tensor_us": tensor,
            "allocation_us": allocation,
            "step_us": (over - allocations * (allocation + tensor)) / (kernels + products),
            "steps": kernels + products, "allocations": allocations, "over_us": over}


def line(result):
    """The Markdown."""
    return (f"CPU time of the runtime: a step takes {result['step_us']:.2f} µs over its bare call (a launch by the driver "
            f"{result['launch_us']:.2f} µs, a product by cuBLASLt {result['product_us']:.2f} µs, both in turn "
            f"{result['both_us']:.2f} µs), an allocation with its tensor {result['allocation_us']:.2f} µs over torch's own "
            f"({result['tensor_us']:.2f} µs). "
            f"({result['steps']} steps with {result['allocations']} allocations took {result['over_us']:.0f} µs more than "
            "the bare calls.)")
