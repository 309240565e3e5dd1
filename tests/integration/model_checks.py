"""What every model is asked: agreement with eager by the fp64 rule, and that all but gemms is native; and
the training of a small one on a GPU."""
import copy
from collections.abc import Callable, Iterable, Set
from typing import Any

import torch
import torch.nn.functional as F

import kiln
from agreement import check
from kiln.program_record import ProgramRecord

# Library calls that a graph may hold, by exact name; everything else is native.
GEMMS = {
    "mm", "addmm", "_addmm_activation", "bmm", "baddbmm", "mkldnn._linear_pointwise", "convolution",
    "convolution_backward",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_cudnn_attention_backward",
}
THE_REST = {
    "sort", "topk", "nonzero", "_unique2", "unique_dim", "unique_consecutive", "_fft_c2c",
    "_fft_c2r", "_fft_r2c", "lstm", "gru", "rnn_tanh", "rnn_relu", "_embedding_bag", "randperm",
    "multinomial",
    "max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", "avg_pool2d_backward",
    "avg_pool3d_backward", "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward",
    "adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward",
}


REST_SHARE_MAX = 0.02  # of a step's time


def name_of(target: str) -> str:
    """"mm" of "aten.mm.default"; what is not ATen's keeps its namespace."""
    return target.removeprefix("aten.").rsplit(".", 1)[0]


def outside_closed_list(targets: Iterable[str]) -> list[str]:
    """Those of `targets` ("aten.mm.default") that have to be native."""
    return sorted(target for target in targets
                  if name_of(target) not in GEMMS | THE_REST and not name_of(target).startswith("linalg_"))


def share_of_the_rest(step: Callable[[], object]) -> float:
    """Of the time that `step` spends in compiled graphs, the part in library calls other than gemms.

    By the fastest of several runs of each kernel and call, for other processes disturb single ones."""
    with kiln.profile() as profile:
        for _ in range(4):
            step()
    assert profile.lines
    rest = [line for line in profile.lines if line.name.startswith("aten.") and name_of(line.name) not in GEMMS]
    return sum(line.least_seconds for line in rest) / sum(line.least_seconds for line in profile.lines)


def doubles(model: torch.nn.Module, inputs: dict[str, Any]) -> tuple[torch.nn.Module, dict[str, Any]]:
    """The model in fp64 and its inputs."""
    return copy.deepcopy(model).double(), {key: value.double() if value.is_floating_point() else value
                                           for key, value in inputs.items()}


def programs(start: int = 0) -> list[ProgramRecord]:
    """The records of the graphs of this process after its first `start`; none of them may have fallen back."""
    from kiln import records

    found = []
    for record in records.graphs_since(start):
        assert "fallback" not in record, record
        found.append(record)
    return found


def library_calls(start: int = 0) -> set[str]:
    return {target for graph in programs(start) for target in graph["library_calls"]}


def check_library_calls(rest: Set[str] = frozenset()) -> None:
    """Of all graphs of the process: everything native but gemms and `rest`, a part of the closed list's rest."""
    assert kiln.stats()["kernels"] > 0
    calls = library_calls()
    assert not outside_closed_list(calls)
    assert not {name_of(target) for target in calls} & (THE_REST - rest)


def check_inference(model: torch.nn.Module, inputs: dict[str, Any], rest: Set[str] = frozenset()) -> Callable[..., Any]:
    """Outputs of a model in evaluation mode; the compiled model."""
    eager, (exact, exact_inputs) = copy.deepcopy(model), doubles(model, inputs)
    compiled = torch.compile(model, backend="kiln")
    with torch.no_grad():
        actual = compiled(**inputs)
        check([("logits", actual.logits, eager(**inputs).logits, exact(**exact_inputs).logits)])
    check_library_calls(rest)
    return compiled


def check_training(model: torch.nn.Module, inputs: dict[str, Any], rest: Set[str] = frozenset()) -> Callable[..., Any]:
    """The loss and every gradient; the compiled model."""
    eager, (exact, exact_inputs) = copy.deepcopy(model), doubles(model, inputs)
    losses = []
    compiled = torch.compile(model, backend="kiln")
    for run, its_inputs in ((compiled, inputs), (eager, inputs), (exact, exact_inputs)):
        loss = run(**its_inputs).loss
        loss.backward()
        losses.append(loss)
    named = [("loss", *losses)]
    for (parameter, mine), its, exactly in zip(model.named_parameters(), eager.parameters(), exact.parameters()):
        assert (mine.grad is None) == (exactly.grad is None), parameter
        if mine.grad is not None:
            named.append((parameter, mine.grad, its.grad, exactly.grad))
    check(named)
    check_library_calls(rest)
    return compiled


def losses(wrap: Callable[..., Any], steps: int = 5) -> list[float]:
    """Of training a small network, with a new batch at another address each step."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512, bias=False), torch.nn.BatchNorm1d(512),
                                torch.nn.LayerNorm(512),
                                torch.nn.GELU(), torch.nn.Linear(512, 10)).cuda()
    call, optimizer, values, batches = wrap(model), torch.optim.Adam(model.parameters(), 1e-3), [], []
    for _ in range(steps):
        batches.append((torch.randn(64, 256, device="cuda"), torch.randint(0, 10, (64,), device="cuda")))
        optimizer.zero_grad()
        loss = F.cross_entropy(call(batches[-1][0]), batches[-1][1])
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    norm: Any = model[1]
    return [*values, norm.running_mean.sum().item(), norm.num_batches_tracked.item()]
