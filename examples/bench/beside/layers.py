"""Times whole layers of SonicMoE beside those of this library, in turns on one GPU.

usage: python3 layers.py [-few] BENCH OUT.json ROW ...

BENCH is the built program examples/bench. Each ROW is a name that `BENCH -list` prints. It needs an H100 or H200, torch,
sonic-moe, quack-kernels, nvidia-cutlass-dsl and nvidia-ml-py (measured with 0.1.2.post1, 0.6.5 and 4.8.1). The first pass
tunes each product, which takes a minute or two. -few is as in beside.py.

For each row the script measures SonicMoE, then runs BENCH, then measures SonicMoE again:
- rested: the median of five timed passes, four times, each after a pause of 0.7 s and three passes;
- load200: the median of 24 passes back to back after a pause of 0.7 s and 200 ms of load.
Steady load: both sides take turns of a second after 2 s of load, with the energy of each.

SonicMoE's forward is the replay of a CUDA graph. Its backward is the replay of a graph of forward and backward, less the
forward. In steady load SonicMoE is also measured as the host launches it ("eager"). This library's passes are timed by events.
"""
import collections
import json
import statistics
import subprocess
import sys
import threading
import time

import pynvml
import torch

import beside
from sonicmoe import MoE
from sonicmoe.enums import ActivationType
from sonicmoe.functional import moe_TC_softmax_topk_layer

PAIRS = 4
REST = 0.7


def timed(f, repeats, warm=0):
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    for _ in range(warm):
        f()
    for event in events[:-1]:
        event.record()
        f()
    events[-1].record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in zip(events, events[1:])]


def load(f, seconds):
    """Lets the chip rest and then keeps it busy, with two passes in the queue."""
    torch.cuda.synchronize()
    time.sleep(REST)
    until, events = time.time() + seconds, []
    while len(events) < 2 or time.time() < until:
        f()
        events.append(torch.cuda.Event())
        events[-1].record()
        if len(events) > 2:
            events[-3].synchronize()


def rested(f):
    rounds = []
    for _ in range(4):
        torch.cuda.synchronize()
        time.sleep(REST)
        rounds.append(f())
    return statistics.median(rounds)


class Energy:
    """Notes when the energy counter advances, and with which value, for the energy between two times."""

    def __init__(self):
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID("GPU-" + str(torch.cuda.get_device_properties(0).uuid))
        self.steps, self.end = [], False

        def watch():
            while not self.end:
                joules = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3
                if not self.steps or joules != self.steps[-1][1]:
                    self.steps.append((time.time(), joules))
                time.sleep(0.004)
        self.thread = threading.Thread(target=watch)
        self.thread.start()

    def close(self):
        self.end = True
        self.thread.join()

    def at(self, moment):
        """Returns the counter at a time, on the line between the steps around it."""
        after = next((i for i, step in enumerate(self.steps) if step[0] > moment), len(self.steps) - 1)
        (t0, j0), (t1, j1) = self.steps[after - 1], self.steps[after]
        return j0 + (j1 - j0) * (moment - t0) / (t1 - t0)


def captured(f):
    """Returns a CUDA graph of the work of f, after a call on another stream, which PyTorch asks for."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        f()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        graph.result = f()
    graph.replay()
    torch.cuda.synchronize()
    return graph


class Sonic:
    """A layer of SonicMoE: d hidden, n neurons, E experts, K of them for each of T tokens."""

    def __init__(self, T, d, n, E, K):
        self.layer = MoE(num_experts=E, num_experts_per_tok=K, hidden_size=d, intermediate_size=n, activation_function=ActivationType.SWIGLU,
                         add_bias=False, std=beside.SCALE_WEIGHT).to(torch.bfloat16).cuda()
        self.x = beside.normal(T, d, scale=beside.SCALE_X).requires_grad_()
        self.do = beside.normal(T, d, scale=beside.SCALE_OUTPUT)
        self.k = K
        self.leaves = [self.x, self.layer.c_fc.weight, self.layer.c_proj.weight, self.layer.router.weight]
        start = time.time()
        self.inference()
        self.both()
        self.both()
        torch.cuda.synchronize()
        self.first = time.time() - start
        with torch.no_grad():
            self.graph = captured(self.forward)
        self.graph_both = captured(self.both)

    def forward(self):
        m = self.layer
        return moe_TC_softmax_topk_layer(self.x, m.router.weight, m.c_fc.weight.permute(1, 2, 0), None, m.c_proj.weight.permute(1, 2, 0), None,
                                         self.k, m.stream_id, ActivationType.SWIGLU, False)[0]

    def inference(self):
        with torch.no_grad():
            self.forward()

    def both(self):
        for leaf in self.leaves:
            leaf.grad = None
        self.forward().backward(self.do)

    def measure(self):
        def load200(f):
            load(f, 0.2)
            return statistics.median(timed(f, 24))

        def cool(f):
            return rested(lambda: statistics.median(timed(f, 5, warm=3)))
        result = {}
        for regime, of in ("rested", cool), ("load200", load200):
            forward, both = of(self.graph.replay), of(self.graph_both.replay)
            result[regime] = {"forward": forward, "backward": both - forward}
        return result


class Ours:
    """A process of this library that runs passes when asked."""

    def __init__(self, bench, row, kind):
        self.process = subprocess.Popen([bench, "-turns", "-row", row, "-pass", kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.run(1)

    def run(self, passes):
        self.process.stdin.write(f"{passes}\n")
        self.process.stdin.flush()
        json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def repeat(f):
    def run(passes):
        for i in range(passes):
            f()
        torch.cuda.synchronize()
    return run


def steady(sides):
    """Returns milliseconds and joules of a pass of each side, the means of turns of a second after 2 s of load."""
    passes, turns = {}, {name: [] for name in sides}
    for name, run in sides.items():
        run(4)
        start = time.time()
        run(8)
        passes[name] = max(4, int(8 / (time.time() - start)))
    for name, run in sides.items():
        run(passes[name] // 2)
    energy = Energy()
    for pair in range(PAIRS):
        for name in list(sides) if pair % 2 == 0 else reversed(list(sides)):
            start = time.time()
            sides[name](passes[name])
            turns[name].append((start, time.time()))
    time.sleep(0.3)
    energy.close()
    mean = lambda name, of: statistics.mean(of(*turn) for turn in turns[name]) / passes[name]
    return {name: {"ms": mean(name, lambda start, end: 1e3 * (end - start)), "joules": mean(name, lambda start, end: energy.at(end) - energy.at(start))}
            for name in sides}


def bench_times(bench, row):
    done = subprocess.run([bench, "-row", row, "-pass", "both", "-full", "-json", "-"], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stdout[-800:] + done.stderr[-800:])
    report = json.loads(done.stdout)
    result = collections.defaultdict(dict)
    for section, name in (report, "forward"), (report["backward"], "backward"):
        row = section["rows"][0]
        result["rested"][name], result["load200"][name] = row["cool"]["median_ms"], row["graph"]["median_ms"]
        result["eager200"][name] = row["eager"]["median_ms"]
        result["roofline"][name] = row["roofline_ms"]
    return result


def show(row):
    for kind in "forward", "backward":
        cells = []
        for regime in "rested", "load200":
            theirs, ours = statistics.mean(s[regime][kind] for s in row["sonic"]), row["ours"][regime][kind]
            cells.append(f"{regime} {theirs:.4g} {ours:.4g} {theirs / ours:.3f}")
        s = row["steady"]
        theirs, ours = s["sonic " + kind], s["this " + kind]
        for key in "ms", "joules":
            cells.append(f"steady {key} {theirs[key]:.4g} {ours[key]:.4g} {theirs[key] / ours[key]:.3f}")
        eager = s["sonic eager " + kind]["ms"]
        cells.append(f"launched by the host, steady ms {eager:.4g} {eager / ours['ms']:.3f}; roofline {row['ours']['roofline'][kind]:.4g}")
        print(f"  {kind}: " + ", ".join(cells), flush=True)


def main(*args):
    args = list(args)
    if "-few" in args:
        beside.choose_among_few()
    bench, path, *rows = [a for a in args if a != "-few"]
    known = beside.sizes(bench)
    out = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": []}
    for name in rows:
        start = time.time()
        sonic = Sonic(*known[name])
        row = {"name": name, "first_s": sonic.first, "sonic": [sonic.measure()]}
        print(f"{name}: first passes {sonic.first:.0f} s, measured at {time.time() - start:.0f} s; ms of SonicMoE, of this library, ratio", flush=True)
        row["ours"] = bench_times(bench, name)
        row["sonic"].append(sonic.measure())
        ours = {kind: Ours(bench, name, kind) for kind in ("forward", "backward")}
        row["steady"] = steady({"sonic forward": repeat(sonic.graph.replay), "this forward": ours["forward"].run,
                                "sonic both": repeat(sonic.graph_both.replay), "this backward": ours["backward"].run,
                                "sonic eager forward": repeat(sonic.inference), "sonic eager both": repeat(sonic.both)})
        for side in ours.values():
            side.close()
        s = row["steady"]
        for way in "sonic ", "sonic eager ":
            s[way + "backward"] = {key: s[way + "both"][key] - s[way + "forward"][key] for key in ("ms", "joules")}
        show(row)
        out["rows"].append(row)
        with open(path, "w") as f:
            json.dump(out, f, indent=1)
        del sonic
        torch.cuda.empty_cache()
        print(f"  {name} at {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
