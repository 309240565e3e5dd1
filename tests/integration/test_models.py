"""Transformers' models, small: inference and training against eager fp64, native share, five steps of Adam."""
import copy

import pytest
import torch

import kiln
from agreement import check
from models import MODELS, make

pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("no_fallback")

# Library calls that a graph may hold; everything else is native.
CLOSED_LIST = ("mm", "addmm", "bmm", "baddbmm", "convolution", "_scaled_dot_product", "sort", "topk", "nonzero",
               "unique", "_fft", "linalg", "rnn", "embedding_bag", "randperm", "multinomial", "max_pool2d", "avg_pool2d",
               "pool")


def copies(name):
    model, inputs = make(name)
    exact = copy.deepcopy(model).double()
    exact_inputs = {key: value.double() if value.is_floating_point() else value for key, value in inputs.items()}
    return model, copy.deepcopy(model), exact, inputs, exact_inputs


def library_calls(start=0):
    from kiln import records

    return {target for graph in records.graphs_since(start) for target in graph["library_calls"]}


@pytest.mark.parametrize("name", MODELS)
def test_inference(name):
    model, eager, exact, inputs, exact_inputs = copies(name)
    with torch.no_grad():
        actual = torch.compile(model, backend="kiln")(**inputs)
        check([("logits", actual.logits, eager(**inputs).logits, exact(**exact_inputs).logits)])
    assert kiln.stats()["kernels"] > 0


@pytest.mark.parametrize("name", MODELS)
def test_training(name):
    model, eager, exact, inputs, exact_inputs = copies(name)
    losses = []
    for run, its_inputs in ((torch.compile(model.train(), backend="kiln"), inputs), (eager.train(), inputs),
                            (exact.train(), exact_inputs)):
        loss = run(**its_inputs).loss
        loss.backward()
        losses.append(loss)
    named = [("loss", *losses)]
    for (parameter, mine), its, exactly in zip(model.named_parameters(), eager.parameters(), exact.parameters()):
        assert (mine.grad is None) == (exactly.grad is None), parameter
        if mine.grad is not None:
            named.append((parameter, mine.grad, its.grad, exactly.grad))
    check(named)
    outside = {target for target in library_calls() if not any(part in target for part in CLOSED_LIST)}
    assert not outside, f"not native: {sorted(outside)}"


@pytest.mark.parametrize("name", ["gpt2", "resnet"])
def test_five_steps_of_adam(name):
    model, eager, _, inputs, _ = copies(name)
    runs = [(torch.compile(model.train(), backend="kiln"), torch.optim.Adam(model.parameters(), 1e-3)),
            (eager.train(), torch.optim.Adam(eager.parameters(), 1e-3))]
    losses = [[], []]
    for _ in range(5):
        for (run, optimizer), kept in zip(runs, losses):
            optimizer.zero_grad()
            loss = run(**inputs).loss
            loss.backward()
            optimizer.step()
            kept.append(loss.item())
    assert losses[0][-1] < losses[0][0]
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]), rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_bfloat16(name):
    model, eager, exact, inputs, exact_inputs = copies(name)
    model, eager = model.bfloat16(), eager.bfloat16()
    exact.load_state_dict({key: value.double() for key, value in eager.state_dict().items()})
    named = []
    runs = [torch.compile(model, backend="kiln"), eager, exact]
    losses = []
    for run, its_inputs in zip(runs, (inputs, inputs, exact_inputs)):
        loss = run(**its_inputs).loss
        loss.backward()
        losses.append(loss)
    for (parameter, mine), its, exactly in zip(model.named_parameters(), eager.parameters(), exact.parameters()):
        if mine.grad is not None:
            named.append((parameter, mine.grad, its.grad, exactly.grad))
    check(named)
