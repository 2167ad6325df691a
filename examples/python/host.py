"""Compares the host's time of a call in Python and in Go, on the same cores of one machine.

    CGO_ENABLED=0 go build -o bench ./examples/bench
    python host.py --go ./bench [--turns 5 --tokens 16,4096 --backward --parts] [--hidden 2048 --intermediate 768 --experts 128 --top-k 8]

Each turn prints the median time until a call returns, with the 10th and the 90th percentile, in µs.
The calls are Go's Forward, the function moe and the module SonicMoE. A turn also prints by how much
the slower of the Python calls exceeds Go's. Go and Python alternate every 20 calls on the same
--cores cores, because shared cores can be 1.5 times slower for seconds. "nothing" is the time in ns
of one step of an empty loop, which shows the speed of the cores.

With --backward the calls are autograd.grad. "autograd" is the time of autograd.grad for a function
that does nothing, and "with room" for one that allocates the gradients. "here" are the same passes
with autograd in the calling thread (torch.autograd.set_multithreading_enabled(False)). --parts prints the times of the parts of a call
of the module.
"""

import argparse
import ctypes
import itertools
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable

import torch

import sonicmoe_go
from sonicmoe_go import _library, _plans, _weights


def of_python(call) -> Callable[[int], list[float]]:
    """Returns a function that times a number of calls, in µs. It waits for the device before and
    after the calls, so that the queue never fills."""

    def batch(calls: int) -> list[float]:
        torch.cuda.synchronize()
        times = []
        for _ in range(calls):
            before = time.perf_counter_ns()
            call()
            times.append((time.perf_counter_ns() - before) / 1e3)
        torch.cuda.synchronize()
        return times

    return batch


class Go:
    """Times calls in Go, by running examples/bench in a process of its own."""

    def __init__(self, program: str, shape: str, tokens: int, which: str):
        command = [program, "-device", "cuda", "-shape", shape, "-tokens", str(tokens), "-pass", which, "-timeout", "1h", "-turns"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def __call__(self, calls: int) -> list[float]:
        self.process.stdin.write(f"{calls}\n")
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{' '.join(self.process.args)} ended with {self.process.wait()}")
        return json.loads(answer)


def host_us(*sources, batches: int = 20, batch: int = 20) -> list[tuple[float, float, float]]:
    """Returns the median time of the calls of each source, with the 10th and the 90th percentile.
    The sources run in turns."""
    times = [[] for _ in sources]
    for _ in range(batches):
        for source, of in zip(sources, times):
            of += source(batch)
    tenths = [statistics.quantiles(of, n=10) for of in times]
    return [(statistics.median(of), t[0], t[-1]) for of, t in zip(times, tenths)]


class Nothing(torch.autograd.Function):
    """A function of tensors whose gradients are computed in advance."""

    @staticmethod
    def forward(ctx, *tensors):
        ctx.gradients = [torch.empty_like(t) for t in tensors]
        return torch.empty_like(tensors[0])

    @staticmethod
    def backward(ctx, _):
        return tuple(ctx.gradients)


class Room(torch.autograd.Function):
    """A function of tensors that allocates its gradients and does not write them."""

    @staticmethod
    def forward(ctx, *tensors):
        ctx.save_for_backward(*tensors)
        return torch.empty_like(tensors[0])

    @staticmethod
    def backward(ctx, _):
        return tuple(torch.empty_like(t) for t in ctx.saved_tensors)


def parts(layer, x) -> None:
    """Prints the times of the parts of a call of the module."""
    library, c = _library.library(), layer.config
    inference = _plans.find(_plans.Inference, x, c.key, _plans.ROUTER, False)
    # A function that returns 1 at once replaces the pass. The time is then the time of everything
    # except the pass.
    looked = _plans.Inference(_library.layer(c.key, f"cuda:{x.get_device()}"), (2, x.get_device()), _plans.ROUTER, False)
    looked._struct.queue = ctypes.cast(library.sm_abi, ctypes.c_void_p).value
    weights = [None] * len(_weights.WEIGHTS)
    for name, w in (("router", layer.gate.weight), ("w1", layer.experts.gate_up_proj), ("w2", layer.experts.down_proj)):
        weights[_weights.WEIGHTS.index(name)] = w
    o, nothing = torch.empty_like(x), torch.nn.Identity()
    turns = itertools.cycle([layer, sonicmoe_go.SonicMoE(c.hidden, c.intermediate, c.num_experts, c.top_k, device="cuda")])
    calls = {
        "the call of a module that does nothing": lambda: nothing(x),
        "room for the output": lambda: torch.empty_like(x),
        "the plan": lambda: _plans.find(_plans.Inference, x, c.key, _plans.ROUTER, False),
        "looking at the tensors, and a workspace": lambda: looked.queue(x, o, None, *weights),
        "that and the pass": lambda: inference.queue(x, o, None, *weights),
        "moe": lambda: sonicmoe_go.moe(x, weights[0], layer.experts.gate_up_proj, layer.experts.down_proj, c),
        "SonicMoE": lambda: layer(x),
        "SonicMoE, another's weights each time": lambda: next(turns)(x),
    }
    for (name, _), (median, low, high) in zip(calls.items(), host_us(*map(of_python, calls.values()))):
        print(f"{len(x):12d}  {name:42s}{median:7.2f} ({low:.2f} to {high:.2f}) µs", flush=True)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"hidden": 2048, "intermediate": 768, "experts": 128, "top-k": 8, "turns": 5}.items():
        flags.add_argument("--" + name, type=int, default=value)
    flags.add_argument("--go", required=True, help="the program bench of Go")
    flags.add_argument("--tokens", default="16,4096")
    flags.add_argument("--backward", action="store_true", help="backward passes too: in Python through autograd, which has a thread of its own")
    flags.add_argument("--parts", action="store_true", help="what a call of the module is made of, too")
    flags.add_argument("--cores", type=int, default=4)
    flags.add_argument("--own-stream", action="store_true", help="not on the default stream, which Go does not use")
    args = flags.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])  # also sets the cores of bench, which this process starts
    layer = sonicmoe_go.SonicMoE(args.hidden, args.intermediate, args.experts, args.top_k, device="cuda")
    weights = layer.gate.weight, layer.experts.gate_up_proj, layer.experts.down_proj
    shape = f"{args.hidden},{args.intermediate},{args.experts},{args.top_k}"
    print(f"{'turn':>4s}{'tokens':>8s}{'pass':>10s}" + "".join(f"{name:>24s}" for name in ("Go", "moe", "SonicMoE")) + f"{'later':>8s}{'nothing':>9s}")
    if args.parts:
        with torch.no_grad():
            for tokens in map(int, args.tokens.split(",")):
                parts(layer, torch.randn(tokens, args.hidden, device="cuda", dtype=torch.bfloat16))
    later, programs = {"forward": [], "backward": [], "here": []}, {}

    def go(tokens: int, which: str) -> Go:
        if (tokens, which) not in programs:
            programs[tokens, which] = Go(args.go, shape, tokens, which)
            programs[tokens, which](1)
        return programs[tokens, which]

    for turn in range(args.turns):
        for tokens in map(int, args.tokens.split(",")):
            x = torch.randn(tokens, args.hidden, device="cuda", dtype=torch.bfloat16)
            d_o = torch.randn_like(x)

            def backward(of):
                return of_python(lambda: torch.autograd.grad(of, [x, *weights], d_o, retain_graph=True))

            def line(which, *python):
                *rows, (nothing, *_) = host_us(go(tokens, "forward" if which == "forward" else "backward"), *python, of_python(lambda: None))
                later[which].append(max(r[0] for r in rows[1:]) - rows[0][0])
                columns = "".join(f"{f'{m:.1f} ({a:.1f} to {b:.1f})':>24s}" for m, a, b in rows)
                print(f"{turn:4d}{tokens:8d}{which:>10s}{columns}{later[which][-1]:8.1f}{1e3 * nothing:9.0f}", flush=True)

            with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream() if args.own_stream else None):
                line("forward", of_python(lambda: sonicmoe_go.moe(x, *weights, layer.config)), of_python(lambda: layer(x)))
            if args.backward:
                x.requires_grad_()
                calls = backward(sonicmoe_go.moe(x, *weights, layer.config)[0]), backward(layer(x))
                floors = backward(Nothing.apply(x, *weights)), backward(Room.apply(x, *weights))
                line("backward", *calls)
                autograd = host_us(*floors)
                with torch.autograd.set_multithreading_enabled(False):
                    line("here", *calls)
                    autograd += host_us(*floors)
                nothing, room, here, room_here = (median for median, *_ in autograd)
                print(f"{'':14s}autograd {nothing:.1f}, with room {room:.1f}; here {here:.1f}, with room {room_here:.1f}", flush=True)
    for which, of in later.items():
        if of:
            print(f"{which}: Python later than Go by {statistics.median(of):.1f} µs, {min(of):.1f} to {max(of):.1f}")


if __name__ == "__main__":
    main()
