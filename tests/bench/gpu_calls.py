"""What kiln's runtime takes of the CPU on a GPU, over the bare calls that it makes: microseconds a step (a kernel's
launch, a product) and an allocation with its tensor.

The bare calls run in a loop in C (gpu_calls.c, compiled by cc). Kiln's figures are differences of two programs of
unlike length, so that the cost of a call itself drops out; nobody waits for the GPU while the clock runs. The fastest
of many rounds counts: what other processes take is never negative.
"""
import ctypes
import os
import shutil
import subprocess
import tempfile
import time

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
SIZE = 8  # rows and columns of a product
LAYERS = (20, 220)
OUTPUTS = (4, 12)
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


def _loops(directory):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        raise RuntimeError("no C compiler (cc) for the bare calls")
    path = os.path.join(directory, "gpu_calls.so")
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", path, os.path.join(HERE, "gpu_calls.c")], check=True)
    loops = ctypes.CDLL(path)
    loops.LaunchSeconds.restype = loops.ProductSeconds.restype = ctypes.c_double
    return loops


def _fastest(seconds):
    """Microseconds of the fastest of the rounds of a function that gives its own seconds."""
    best = float("inf")
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        taken = seconds()
        if taken < 0:
            raise RuntimeError("a bare call failed")
        best = min(best, taken)
    return best * 1e6


def _bare_launch(loops, stream):
    driver = ctypes.CDLL("libcuda.so.1")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _check("cuModuleLoadData", driver.cuModuleLoadData(ctypes.byref(module), ctypes.c_char_p(PTX)))
    _check("cuModuleGetFunction", driver.cuModuleGetFunction(ctypes.byref(function), module, b"empty"))
    values = [ctypes.c_uint64(0) for _ in range(4)]
    parameters = (ctypes.c_void_p * 4)(*(ctypes.addressof(value) for value in values))
    return _fastest(lambda: loops.LaunchSeconds(_address(driver.cuLaunchKernel), function, stream, parameters,
                                                ctypes.c_int(BARE_CALLS)))


def _bare_product(loops, stream):
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
    a, b, c = (torch.zeros(SIZE, SIZE, device="cuda") for _ in range(3))
    pointers = [ctypes.c_void_p(matrix.data_ptr()) for matrix in (a, b, c)]
    return _fastest(lambda: loops.ProductSeconds(_address(library.cublasLtMatmul), handle, description, layout,
                                                 *pointers, algorithm, stream, ctypes.c_int(BARE_CALLS)))


def _chain(layers):
    def run(x, w):
        for _ in range(layers):
            x = torch.mm(x, w).relu() + 0.5
        return x
    return run


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

    def microseconds(self):
        def seconds():
            begin = time.perf_counter()
            self._call()
            return time.perf_counter() - begin
        return _fastest(seconds)


def _difference(short, long):
    """(microseconds, kernels, products, allocations) of what `long` does more than `short`."""
    return (long.microseconds() - short.microseconds(), long.kernels - short.kernels, long.products - short.products,
            long.allocations - short.allocations)


@torch.no_grad()
def measure():
    """Microseconds: launch, product (bare), allocation (with its tensor), step (a kernel or product, over the bare
    call and its allocation); counts of the programs they come from."""
    x, w = torch.rand(SIZE, SIZE, device="cuda"), torch.rand(SIZE, SIZE, device="cuda") / SIZE
    fans = [_Counted(_fan(outputs), x) for outputs in OUTPUTS]
    chains = [_Counted(_chain(layers), x, w) for layers in LAYERS]
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    with tempfile.TemporaryDirectory() as directory:
        loops = _loops(directory)
        launch, product = _bare_launch(loops, stream), _bare_product(loops, stream)
    more, kernels, _, allocations = _difference(*fans)
    allocation = (more - kernels * launch) / allocations
    more, kernels, products, allocations = _difference(*chains)
    over = more - kernels * launch - products * product
    return {"launch_us": launch, "product_us": product, "allocation_us": allocation,
            "step_us": (over - allocations * allocation) / (kernels + products),
            "steps": kernels + products, "allocations": allocations, "over_us": over}


def line(result):
    """The Markdown."""
    return (f"CPU time of the runtime: a step takes {result['step_us']:.2f} µs over its bare call (a launch by the driver "
            f"{result['launch_us']:.2f} µs, a product by cuBLASLt {result['product_us']:.2f} µs), an allocation with its "
            f"tensor {result['allocation_us']:.2f} µs. ({result['steps']} steps with {result['allocations']} allocations "
            f"took {result['over_us']:.0f} µs more than the bare calls.)")
