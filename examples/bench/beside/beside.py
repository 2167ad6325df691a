"""Times the expert products of quack-kernels, which SonicMoE calls, beside those of this library, in turns on one GPU.

usage: python3 beside.py [-few] [-alone] BENCH OUT.json ROW ...

BENCH is the built program examples/bench. Each ROW is a name that `BENCH -list` prints. For each row the script times
quack's products, then runs BENCH, then times quack's products again. It needs an H100 or H200, torch, quack-kernels and
nvidia-cutlass-dsl (measured with 0.6.5 and 4.8.1). quack tunes each product at its first launch, which takes a minute.
With -few the tuner chooses among FEW, the tilings that it chose for Qwen3-30B-A3B and 7B n=256 when it had all.

Both sides have normal inputs of the same scales, and experts chosen at random. Times are milliseconds between events
before each launch, the median of passes back to back: after 200 ms of load ("load200"), after 2 s ("steady"), and for
quack also on a rested chip ("rested"). A pass of quack has the products alone, and its dh includes the small kernels
that it launches around the product. A pass of this library also has the router and the sums over experts.

"alone" has each product repeated alone in steady load: milliseconds, watts and pJ a FLOP, quack's before and after this
library's. It needs nvidia-ml-py. Each product is printed and stored as soon as it is measured. With -alone nothing else
is measured.
"""
import json
import math
import statistics
import subprocess
import sys
import time

import torch

try:
    import pynvml
except ImportError:
    pynvml = None
import quack.autotuner
import quack.gemm_runtime.identity as identity


def _hashable(key, exact=identity.semantic_value_key):
    """quack-kernels 0.6.5 cannot build its cache key for some enums of nvidia-cutlass-dsl 4.8.1."""
    def semantic(v, *more):
        try:
            return exact(v, *more)
        except TypeError:
            return key(v)
    return semantic


identity.semantic_value_key = _hashable(lambda v: (type(v).__name__, getattr(v, "name", getattr(v, "__name__", ""))))

from quack.gemm_interface import gemm, gemm_dgated, gemm_gated  # noqa: E402 (quack reads the key at import)

SCALE_X, SCALE_WEIGHT, SCALE_OUTPUT = 0.5, 0.02, 0.2
ALONE_SECONDS = 1.5
# Rows, columns, ping-pong, and the cluster's rows and columns.
FEW = {(128, 192, True, 2, 1), (128, 192, True, 1, 2), (192, 128, True, 1, 2), (128, 128, True, 2, 1),
       (256, 160, False, 2, 1), (256, 192, False, 2, 1), (128, 256, False, 2, 1)}
FORWARD, BACKWARD = ("up", "down"), ("dh", "dw2", "dx", "dw1")


def choose_among_few():
    every = quack.autotuner.Autotuner.prune_configs

    def few(tuner, kwargs):
        configs = every(tuner, kwargs)
        shape = lambda c: (c.tile_m, c.tile_n, c.pingpong, c.cluster_m, c.cluster_n)
        return [c for c in configs if not c.kwargs["config"].swap_ab and shape(c.kwargs["config"]) in FEW] or configs
    quack.autotuner.Autotuner.prune_configs = few


def normal(*shape, scale):
    return scale * torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


class Products:
    """The products of a row: d hidden, n neurons, E experts, K of them for each of T tokens."""

    def __init__(self, T, d, n, E, K):
        experts, order = torch.rand(T, E, device="cuda").topk(K, 1).indices.flatten().sort(stable=True)
        token = (order // K).int()
        ends = torch.bincount(experts, minlength=E).cumsum(0).int()
        offsets = torch.cat([ends.new_zeros(1), ends])
        x, do = normal(T, d, scale=SCALE_X), normal(T, d, scale=SCALE_OUTPUT)
        w1, w2 = normal(E, 2 * n, d, scale=SCALE_WEIGHT), normal(E, d, n, scale=SCALE_WEIGHT)
        score = torch.rand(T * K, device="cuda")
        rows = lambda width: torch.empty(T * K, width, device="cuda", dtype=torch.bfloat16)
        h, a, y, dh, weighted, dx = rows(2 * n), rows(n), rows(d), rows(2 * n), rows(n), rows(d)
        dw1, dw2 = torch.empty_like(w1), torch.empty_like(w2)
        gathered = dict(A_idx=token)
        by_rows, by_sums = dict(cu_seqlens_m=offsets), dict(cu_seqlens_k=offsets)
        self.launch = {
            "up": lambda: gemm_gated(x, w1.mT, activation="swiglu", preact_out=h, postact_out=a, **by_rows, **gathered),
            "down": lambda: gemm(a, w2.mT, out=y, dynamic_scheduler=False, **by_rows),
            "dh": lambda: gemm_dgated(do, w2, PreAct=h, activation="swiglu", dx_out=dh, postact_out=weighted, colvec_scale=score,
                                      colvec_reduce=True, dynamic_scheduler=False, **by_rows, **gathered),
            "dw2": lambda: gemm(do.T, weighted, out=dw2, dynamic_scheduler=False, **by_sums, **gathered),
            "dx": lambda: gemm(dh, w1, out=dx, dynamic_scheduler=False, **by_rows),
            "dw1": lambda: gemm(x.T, dh, out=dw1.mT, dynamic_scheduler=False, **by_sums, **gathered),
        }
        self.flops = {name: 2 * T * K * d * n * (2 if name in ("up", "dx", "dw1") else 1) for name in self.launch}
        for name in FORWARD + BACKWARD:  # tunes, and fills what later products read
            self.launch[name]()
            torch.cuda.synchronize()
        self.error = self.compare(int((ends - offsets[:-1]).argmax()), offsets, token, x, do, w1, w2, h, a, y, dh, weighted, dx, dw1, dw2)

    def compare(self, e, offsets, token, x, do, w1, w2, h, a, y, dh, weighted, dx, dw1, dw2):
        """Returns the relative errors of the largest expert's results, compared with FP64."""
        rows = slice(int(offsets[e]), int(offsets[e + 1]))
        f64 = lambda t: t.double()
        xs, dos = f64(x[token[rows].long()]), f64(do[token[rows].long()])
        pairs = xs @ f64(w1[e]).T
        error = lambda got, want: ((f64(got) - want).norm() / want.norm()).item()
        return {
            "up": error(a[rows], torch.nn.functional.silu(pairs[:, 0::2]) * pairs[:, 1::2]), "down": error(y[rows], f64(a[rows]) @ f64(w2[e]).T),
            "dw2": error(dw2[e], dos.T @ f64(weighted[rows])), "dx": error(dx[rows], f64(dh[rows]) @ f64(w1[e])),
            "dw1": error(dw1[e], f64(dh[rows]).T @ xs),
        }

    def queue(self, names):
        """Queues a pass with an event before each product and one after the last, and returns the events."""
        events = [torch.cuda.Event(enable_timing=True) for _ in range(len(names) + 1)]
        for event, name in zip(events, names):
            event.record()
            self.launch[name]()
        events[-1].record()
        return events

    def times(self, names, repeats, warm=0):
        """Returns the median milliseconds of each product in passes back to back, after some passes that do not count."""
        passes = [self.queue(names) for _ in range(warm + repeats)]
        torch.cuda.synchronize()
        return {name: statistics.median(p[i].elapsed_time(p[i + 1]) for p in passes[warm:]) for i, name in enumerate(names)}

    def after(self, seconds, names, repeats):
        """Returns times after a rest and a load without gaps: like bench, it always has two passes in the queue."""
        torch.cuda.synchronize()
        time.sleep(0.7)
        until, passes = time.time() + seconds, []
        while len(passes) < 2 or time.time() < until:
            passes.append(self.queue(names))
            if len(passes) > 2:
                passes[-3][-1].synchronize()
        return self.times(names, repeats)

    def rested(self, names):
        rounds = []
        for _ in range(4):
            time.sleep(0.7)
            rounds.append(self.times(names, 5, warm=3))
        return {name: statistics.median(r[name] for r in rounds) for name in names}

    def alone(self, name):
        """Returns the time and the energy of a product repeated alone for ALONE_SECONDS, after as much load.

        The launches are graphs of 20 ms or more, because a reading of the energy counter takes milliseconds.
        """
        handle = pynvml.nvmlDeviceGetHandleByUUID("GPU-" + str(torch.cuda.get_device_properties(0).uuid))
        self.launch[name]()
        launches = math.ceil(20 / min(self.times([name], 3)[name], 20))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(launches):
                self.launch[name]()
        edges, count = [], 0  # edges: the times at which the energy counter advances, with its value

        def work(seconds, watch):
            nonlocal count
            begin, last, events, count = time.time(), None, [], 0
            while time.time() - begin < seconds:
                graph.replay()
                count += launches
                events.append(torch.cuda.Event())
                events[-1].record()
                if len(events) > 2:
                    events[-3].synchronize()
                if watch:
                    now = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3
                    if last is not None and now != last:
                        edges.append((time.time(), now))
                    last = now
            torch.cuda.synchronize()
            return time.time() - begin

        work(ALONE_SECONDS, False)
        seconds = work(ALONE_SECONDS, True)
        watts = (edges[-1][1] - edges[0][1]) / (edges[-1][0] - edges[0][0])
        return {"ms": 1e3 * seconds / count, "watts": watts, "pj_per_flop": 1e12 * watts * seconds / count / self.flops[name]}

    def measure(self, rest):
        result = {"load200": {}, "steady": {}}
        for names in FORWARD, BACKWARD:
            result["load200"].update(self.after(0.2, names, 24))
            result["steady"].update(self.after(2, names, 24))
        if rest:
            result["rested"] = {**self.rested(FORWARD), **self.rested(BACKWARD)}
        return result


def ours(bench, row, load, *more):
    """Returns the kernels of passes of this library after a load, by name."""
    done = subprocess.run([bench, "-row", row, "-pass", "both", "-warm", load, "-json", "-", *more], capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    return {kernel["name"]: kernel for section in (report, report["backward"]) for kernel in section["rows"][0]["kernels"]}


def times(kernels):
    return {name: kernel["median_ms"] for name, kernel in kernels.items()}


def sizes(bench):
    """Returns the sizes of each row that bench knows."""
    lines = subprocess.run([bench, "-list"], capture_output=True, text=True, check=True).stdout.splitlines()
    table = {}
    for line in lines:
        name, _, rest = line.partition(" T=")
        words = dict(word.split("=") for word in ("T=" + rest).split())
        table[name.strip()] = [int(words[key]) for key in ("T", "d", "n", "E", "K")]
    return table


def alone(bench, name, products, row, save):
    """Measures the products alone: quack's, this library's, quack's again."""
    row["alone"] = {"quack": [], "this": {}}
    mine = row["alone"]["this"]
    for turn in range(2):
        theirs = {}
        row["alone"]["quack"].append(theirs)
        for product in FORWARD + BACKWARD:
            theirs[product] = products.alone(product)
            line = ", ".join(f"{key} {value:.4g}" for key, value in theirs[product].items())
            if turn:
                line += f"; this library's ms {mine[product]['ms']:.4g}, pj_per_flop {mine[product]['pj_per_flop']:.4g}, ratio {theirs[product]['ms'] / mine[product]['ms']:.3f}"
            print(f"  {product} alone, quack: {line}", flush=True)
            save()
        if not turn:
            kernels = ours(bench, name, "200ms", "-alone", f"{ALONE_SECONDS}s")
            mine.update((product, kernels[product]["alone"]) for product in FORWARD + BACKWARD)
            save()


def passes(bench, name, products, row, save):
    """Measures the products in passes: quack's, this library's, quack's again."""
    row["quack"] = [products.measure(rest=True)]
    row["ours"] = {"load200": times(ours(bench, name, "200ms")), "steady": times(ours(bench, name, "2s"))}
    row["quack"].append(products.measure(rest=False))
    save()
    for regime in "load200", "steady":
        cells = []
        for product in FORWARD + BACKWARD:
            peer, mine = statistics.mean(q[regime][product] for q in row["quack"]), row["ours"][regime][product]
            cells.append(f"{product} {peer:.3f} {mine:.3f} {peer / mine:.3f}")
        print(f"  {regime}: " + ", ".join(cells), flush=True)


def main(*args):
    flags = [a for a in args if a.startswith("-")]
    bench, path, *rows = [a for a in args if not a.startswith("-")]
    if pynvml:
        pynvml.nvmlInit()
    if "-few" in flags:
        choose_among_few()
    known, out = sizes(bench), {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": []}

    def save():
        with open(path, "w") as f:
            json.dump(out, f, indent=1)
    for name in rows:
        start = time.time()
        products = Products(*known[name])
        row = {"name": name, "first_s": time.time() - start, "error": products.error}
        out["rows"].append(row)
        print(f"{name} (tuning and first launches {row['first_s']:.0f} s): quack ms, this library's ms, quack's time over this library's", flush=True)
        if "-alone" not in flags:
            passes(bench, name, products, row, save)
        if pynvml:
            alone(bench, name, products, row, save)
        del products
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main(*sys.argv[1:])
