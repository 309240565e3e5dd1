"""Trains a small GPT-2 (random weights, made-up text) and writes what happened, or prints the table of three
such runs. deploy/quickstart.sh runs it; by hand:

    .venv/bin/python deploy/quickstart_train.py --backend kiln
"""
import argparse
import json
import math
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="kiln", help="eager, kiln, inductor")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=64)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--json", help="file for the results")
    parser.add_argument("--table", nargs=3, metavar=("EAGER", "COLD", "WARM"), help="print the table of three results")
    return parser.parse_args()


def train(arguments: argparse.Namespace) -> dict[str, Any]:
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    vocabulary = 4096
    config = transformers.GPT2Config(
        n_layer=arguments.layers, n_embd=arguments.width, n_head=4, vocab_size=vocabulary, n_positions=256,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    # A sequence that can be learnt: each token follows from the one before.
    text = torch.randint(0, 64, (arguments.batch, 1)) + 7 * torch.arange(arguments.sequence)
    text = text % vocabulary
    run = model if arguments.backend == "eager" else torch.compile(model, backend=arguments.backend)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = run(input_ids=text, labels=text).loss
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    losses: list[float] = []
    seconds: list[float] = []
    for number in range(arguments.steps):
        start = time.perf_counter()
        losses.append(step())
        seconds.append(time.perf_counter() - start)
        if number % 10 == 0 or number == arguments.steps - 1:
            print(f"  step {number:3}  loss {losses[-1]:.4f}  {seconds[-1] * 1e3:8.1f} ms", flush=True)
    later = sorted(seconds[len(seconds) // 2:])
    result: dict[str, Any] = {"losses": losses, "first_step_s": seconds[0], "step_ms": later[len(later) // 2] * 1e3}
    if arguments.backend == "kiln":
        import kiln

        counts = kiln.stats()
        result["kiln"] = {key: counts[key] for key in ("graphs", "hits", "compiles", "kernels", "library_calls")}
        result["kiln"]["fallbacks"] = sum(counts["fallbacks"].values())
        result["kiln"]["reasons"] = counts["fallbacks"]
    return result


def print_table(paths: Sequence[str]) -> bool:
    """Whether the runs agree."""
    eager, cold, warm = (json.loads(pathlib.Path(path).read_text()) for path in paths)
    rows: list[tuple[str, ...]] = [("", "eager", "kiln, cold", "kiln, warm")]
    rows.append(("first step, s", *(f"{run['first_step_s']:.2f}" for run in (eager, cold, warm))))
    rows.append(("later step, ms", *(f"{run['step_ms']:.1f}" for run in (eager, cold, warm))))
    rows.append(("loss, first step", *(f"{run['losses'][0]:.5f}" for run in (eager, cold, warm))))
    rows.append((f"loss, step {len(eager['losses'])}", *(f"{run['losses'][-1]:.5f}" for run in (eager, cold, warm))))
    names = {"graphs": "graphs", "kernels": "kernels: native", "library_calls": "library calls",
             "fallbacks": "fallbacks", "compiles": "compiled", "hits": "cache hits"}
    for key, name in names.items():
        rows.append((name, "", str(cold["kiln"][key]), str(warm["kiln"][key])))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    print()
    for number, row in enumerate(rows):
        cells = "".join("   " + cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))
        print("  " + row[0].ljust(widths[0]) + cells)
        if number == 0:
            print("  " + "-" * (sum(widths) + 9))
    print()
    problems = []
    for name, run in (("cold", cold), ("warm", warm)):
        # A loss that is not a number is the largest difference there is: max() alone would pass over it.
        difference = max((abs(a - b) for a, b in zip(run["losses"], eager["losses"])),
                         key=lambda value: float("inf") if math.isnan(value) else value)
        scale = max(abs(loss) for loss in eager["losses"])
        print(f"  largest difference of a loss, {name} run against eager: {difference:.2e}")
        if not difference <= 1e-3 * scale:
            problems.append(f"the losses of the {name} run differ from eager's by {difference:.2e}")
        if run["kiln"]["fallbacks"]:
            problems.append(f"the {name} run fell back to eager: {run['kiln']['reasons']}")
    if warm["kiln"]["compiles"]:
        problems.append(f"the warm run compiled {warm['kiln']['compiles']} graphs again")
    for problem in problems:
        print(f"  PROBLEM: {problem}", file=sys.stderr)
    return not problems


def main() -> None:
    arguments = parse_arguments()
    if arguments.table:
        sys.exit(0 if print_table(arguments.table) else 1)
    result = train(arguments)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(result, file)


if __name__ == "__main__":
    main()
