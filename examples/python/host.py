"""What a call costs the host, in Python and in Go, in turns on the same cores of one machine.

    CGO_ENABLED=0 go build -o bench ./examples/bench
    python host.py --go ./bench [--turns 5 --tokens 16,4096 --backward] [--hidden 2048 --intermediate 768 --experts 128 --top-k 8]

Of each turn the median time of a call that nothing waits for, with the tenths below and above which a tenth of the
calls lie, in µs: Go's Forward, the function moe, the module SonicMoE, and how much later the slower of the two is. All
run on the same --cores cores, so that which cores the system picks does not stand between them.
"""

import argparse
import json
import os
import statistics
import subprocess
import time

import torch

import sonicmoe_go


def host_us(*calls, batches: int = 20, batch: int = 20) -> list[tuple[float, float, float]]:
    """The host's median time of each call, with the first and the last tenth. Batches of the calls take turns, and the
    device is waited for before each: the queue of launches never fills."""
    times = [[] for _ in calls]
    for _ in range(batches):
        for f, of in zip(calls, times):
            torch.cuda.synchronize()
            for _ in range(batch):
                before = time.perf_counter_ns()
                f()
                of.append((time.perf_counter_ns() - before) / 1e3)
    tenths = [statistics.quantiles(of, n=10) for of in times]
    return [(statistics.median(of), t[0], t[-1]) for of, t in zip(times, tenths)]


def go_us(program: str, shape: str, tokens: int, which: str) -> tuple[float, float, float]:
    """The same of examples/bench, in a process of its own."""
    command = [program, "-device", "cuda", "-shape", shape, "-tokens", str(tokens), "-pass", which, "-warm", "0s", "-repeats", "1", "-json", "-"]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode:
        raise SystemExit(f"{' '.join(command)}: {ran.stderr}")
    host = json.loads(ran.stdout)["rows"][0]["host"]
    return tuple(host[k] for k in ("eager_us", "eager_low_us", "eager_high_us"))


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"hidden": 2048, "intermediate": 768, "experts": 128, "top-k": 8, "turns": 5}.items():
        flags.add_argument("--" + name, type=int, default=value)
    flags.add_argument("--go", required=True, help="the program bench of Go")
    flags.add_argument("--tokens", default="16,4096")
    flags.add_argument("--backward", action="store_true", help="backward passes too: in Python through autograd, which has a thread of its own")
    flags.add_argument("--cores", type=int, default=4)
    flags.add_argument("--own-stream", action="store_true", help="not on the default stream, which Go does not use")
    args = flags.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])  # bench's too, which this process starts
    layer = sonicmoe_go.SonicMoE(args.hidden, args.intermediate, args.experts, args.top_k, device="cuda")
    weights = layer.gate.weight, layer.experts.gate_up_proj, layer.experts.down_proj
    shape = f"{args.hidden},{args.intermediate},{args.experts},{args.top_k}"
    print(f"{'turn':>4s}{'tokens':>8s}{'pass':>10s}" + "".join(f"{name:>24s}" for name in ("Go", "moe", "SonicMoE")) + f"{'later':>8s}")
    later = {"forward": [], "backward": []}
    for turn in range(args.turns):
        for tokens in map(int, args.tokens.split(",")):
            x = torch.randn(tokens, args.hidden, device="cuda", dtype=torch.bfloat16)
            d_o = torch.randn_like(x)

            def backward(of):
                return lambda: torch.autograd.grad(of, [x, *weights], d_o, retain_graph=True)

            def line(which, python):
                rows = [go_us(args.go, shape, tokens, which), *python]
                later[which].append(max(r[0] for r in python) - rows[0][0])
                columns = "".join(f"{f'{m:.1f} ({a:.1f} to {b:.1f})':>24s}" for m, a, b in rows)
                print(f"{turn:4d}{tokens:8d}{which:>10s}{columns}{later[which][-1]:8.1f}", flush=True)

            with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream() if args.own_stream else None):
                line("forward", host_us(lambda: sonicmoe_go.moe(x, *weights, layer.config), lambda: layer(x)))
            if args.backward:
                x.requires_grad_()
                line("backward", host_us(backward(sonicmoe_go.moe(x, *weights, layer.config)[0]), backward(layer(x))))
    for which, of in later.items():
        if of:
            print(f"{which}: Python later than Go by {statistics.median(of):.1f} µs, {min(of):.1f} to {max(of):.1f}")


if __name__ == "__main__":
    main()
