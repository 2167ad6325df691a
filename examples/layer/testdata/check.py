"""Makes files for the command layer, and compares the command's output with float64.

    check.py write  -weights W -input X -tokens T -hidden D -intermediate N -experts E
                    [-layout concatenated|interleaved|separate] [-seed S] [-scale STD]
                    [-backward]
    check.py verify -weights W -input X -output O -topk K
                    [-layout concatenated|interleaved] [-sample TOKENS]

PyTorch's safetensors package writes and reads the files. If torch can be imported, tensors are
torch's, on the GPU if there is one. Otherwise they are numpy's. numpy has no bf16, so their bits
are kept as uint16.

verify prints one line. Exit code 1 means that the output is wrong. If the input has the tensor do,
which -backward writes, verify also checks the gradients, for all tokens.
"""

import argparse
import sys

ROW = 6e-3  # largest relative L2 norm of a row's error
ELEMENT = 2e-2  # largest error of an element, relative to the largest element of its row
FP32_SUM = 2**-20  # largest error of an FP32 sum, relative to the sum of its terms' magnitudes
SCORE = 1e-5  # largest error of a score if the logits round in the same way
FLIPPED = 0.05  # largest share of tokens with a logit that an FP32 sum rounds to another bf16 number


class Torch:
    """Tensors are torch's, and bf16 tensors have torch's bf16 type."""

    def __init__(self):
        import torch
        from safetensors.torch import load_file, save_file

        self.m, self.load_file, self.save_file = torch, load_file, save_file
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.name = f"torch {torch.__version__} on {self.device}"
        self.bf16, self.f32, self.i32 = torch.bfloat16, torch.float32, torch.int32

    def normal(self, seed):
        generator = self.m.Generator(self.device).manual_seed(seed)

        def draw(shape, std):
            t = self.m.randn(shape, generator=generator, device=self.device, dtype=self.m.float32)
            return (t * std).to(self.m.bfloat16)

        return draw

    def save(self, path, tensors):
        self.save_file({k: t.cpu().contiguous() for k, t in tensors.items()}, path, metadata={"format": "pt"})

    def load(self, path):
        return self.load_file(path, device=self.device)

    def wide(self, t):
        return t.to(self.m.float64)

    def ids(self, t):
        return t.to(self.m.int64)

    def indices(self, list_):
        return self.m.tensor(list_, device=self.device, dtype=self.m.int64)

    def zeros(self, shape):
        return self.m.zeros(shape, device=self.device, dtype=self.m.float64)

    def order(self, logits):
        return self.m.argsort(logits, dim=1, descending=True, stable=True)

    def take(self, values, at):
        return self.m.gather(values, 1, at)

    def without(self, values, at):
        return values.scatter(1, at, -float("inf"))

    def lowest_so_far(self, values):
        return self.m.cummin(values, dim=1).values

    def largest(self, values):
        return self.m.amax(values, dim=1)

    def where(self, mask):
        return self.m.nonzero(mask, as_tuple=True)


class Numpy:
    """bf16 tensors are arrays of uint16 bits."""

    def __init__(self):
        import numpy
        import safetensors

        self.m, self.safetensors = numpy, safetensors
        self.name = f"numpy {numpy.__version__}"
        self.bf16, self.f32, self.i32 = (numpy.dtype(t) for t in ("uint16", "float32", "int32"))

    def normal(self, seed):
        generator = self.m.random.default_rng(seed)

        def draw(shape, std):
            t = generator.standard_normal(shape, dtype=self.m.float32) * self.m.float32(std)
            bits = t.view(self.m.uint32)
            return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(self.m.uint16)

        return draw

    def save(self, path, tensors):
        """Writes tensors to a file. Old versions of the package take the bytes of a tensor, and new
        ones its address."""
        arrays = {k: self.m.ascontiguousarray(t) for k, t in tensors.items()}
        if hasattr(self.safetensors, "TensorSpec"):
            entries = {
                k: self.safetensors.TensorSpec(dtype="bfloat16", shape=t.shape, data_ptr=t.ctypes.data, data_len=t.nbytes)
                for k, t in arrays.items()
            }
        else:
            entries = {k: {"dtype": "bfloat16", "shape": t.shape, "data": t.tobytes()} for k, t in arrays.items()}
        self.safetensors.serialize_file(entries, path, metadata={"format": "pt"})

    def load(self, path):
        types = {"BF16": self.bf16, "F32": self.f32, "I32": self.i32}
        with open(path, "rb") as f:
            entries = self.safetensors.deserialize(f.read())
        return {
            k: self.m.frombuffer(bytes(t["data"]), dtype=types[t["dtype"]]).reshape(t["shape"]) for k, t in entries
        }

    def wide(self, t):
        if t.dtype == self.bf16:
            t = (t.astype(self.m.uint32) << 16).view(self.m.float32)
        return t.astype(self.m.float64)

    def ids(self, t):
        return t.astype(self.m.int64)

    def indices(self, list_):
        return self.m.array(list_, dtype=self.m.int64)

    def zeros(self, shape):
        return self.m.zeros(shape)

    def order(self, logits):
        return self.m.argsort(-logits, axis=1, kind="stable")

    def take(self, values, at):
        return self.m.take_along_axis(values, at, axis=1)

    def without(self, values, at):
        values = values.copy()
        self.m.put_along_axis(values, at, -float("inf"), axis=1)
        return values

    def lowest_so_far(self, values):
        return self.m.minimum.accumulate(values, axis=1)

    def largest(self, values):
        return self.m.amax(values, axis=1)

    def where(self, mask):
        return self.m.nonzero(mask)


def backend():
    try:
        return Torch()
    except ImportError:
        return Numpy()


def write(b, a):
    draw = b.normal(a.seed)
    d, n, e = a.hidden, a.intermediate, a.experts
    weights = {"router.weight": draw((e, d), a.scale)}
    if a.layout == "separate":
        weights["experts.gate"] = draw((e, n, d), a.scale)
        weights["experts.up"] = draw((e, n, d), a.scale)
    else:
        weights["experts.gate_up"] = draw((e, 2 * n, d), a.scale)
    weights["experts.down"] = draw((e, d, n), a.scale)
    b.save(a.weights, weights)
    tokens = {"x": draw((a.tokens, d), 0.5)}
    if a.backward:
        tokens["do"] = draw((a.tokens, d), 0.2)
    b.save(a.input, tokens)
    print(f"{b.name} wrote {a.weights} and {a.input}")


def bf16_round(b, x):
    """Returns x, a float64, rounded once to the 8 significant bits of bf16, with ties to even."""
    fraction, exponent = b.m.frexp(x)
    return b.m.ldexp(b.m.round(fraction * 256) / 256, exponent)


def bf16_step(b, x):
    """Returns the distance between bf16 numbers near x, plus a little for the error of FP32
    sums."""
    _, exponent = b.m.frexp(x)
    return b.m.ldexp(b.m.ones_like(x), exponent - 8) * 1.01 + 1e-6


def softmax(b, logits):
    e = b.m.exp(logits - logits[:, :1])
    return e / e.sum(1)[:, None]


def check_outputs(b, out, weights, tokens, hidden, topk, backward):
    """Checks names, formats and shapes, and that every token has K experts that exist."""
    experts = len(weights["router.weight"])
    want = {"o": ((tokens, hidden), b.bf16), "scores": ((tokens, topk), b.f32), "experts": ((tokens, topk), b.i32)}
    if backward:
        want |= {"dx": ((tokens, hidden), b.bf16), "dscores": ((tokens, topk), b.f32)}
        want |= {"d" + name: (tuple(w.shape), b.bf16) for name, w in weights.items()}
    if set(out) != set(want):
        raise SystemExit(f"the output has {sorted(out)}, must have {sorted(want)}")
    for name, (shape, dtype) in want.items():
        if tuple(out[name].shape) != shape or out[name].dtype != dtype:
            raise SystemExit(f"{name} is {out[name].dtype} {tuple(out[name].shape)}, must be {dtype} {shape}")
    ids = b.ids(out["experts"])
    if bool(((ids < 0) | (ids >= experts)).any()):
        raise SystemExit(f"an expert is outside 0..{experts - 1}")
    for k in range(1, topk):
        if bool((ids[:, k:] == ids[:, : topk - k]).any()):
            raise SystemExit("a token has the same expert twice")


def check_routing(b, logits, ids, scores, topk):
    """Returns the scores and experts to compare the output with, and for how many tokens they were
    taken from the output.

    They are computed in float64. For a token whose FP32 sums may round to another bf16 number, they
    are taken from the output, if those are plausible.
    """
    rounded = bf16_round(b, logits)
    own = b.order(rounded)[:, :topk]
    moved = (own != ids).any(1)
    chosen = b.take(logits, ids)
    lowest = b.lowest_so_far(chosen)
    larger = b.m.maximum(abs(chosen[:, 1:]), abs(lowest[:, :-1]))
    if bool((chosen[:, 1:] > lowest[:, :-1] + bf16_step(b, larger)).any()):
        raise SystemExit("experts are not in the order of their logits")
    least = lowest[:, -1]
    if topk < logits.shape[1]:
        most = b.order(b.without(logits, ids))[:, :1]
        most = b.take(logits, most)[:, 0]
        if bool((most > least + bf16_step(b, b.m.maximum(abs(most), abs(least)))).any()):
            raise SystemExit("an expert was left out whose logit is more than a bf16 step above a chosen one")
    expected = softmax(b, b.take(rounded, ids))
    error = abs(scores - expected)
    bound = b.largest(bf16_step(b, abs(chosen)))
    if not bool((error <= SCORE + bound[:, None]).all()):
        raise SystemExit(f"a score is off by {float(error.max()):.3g}")
    differs = moved | (error > SCORE).any(1)
    count = int(differs.sum())
    if count > 1 + FLIPPED * len(ids):
        raise SystemExit(f"{count} of {len(ids)} tokens are routed otherwise or with other scores")
    exact = ~differs[:, None]
    return b.m.where(exact, expected, scores), count


def expert(b, weights, e, layout):
    """Returns gate, up and down of one expert in float64."""
    down = b.wide(weights["experts.down"][e])
    if "experts.gate" in weights:
        return b.wide(weights["experts.gate"][e]), b.wide(weights["experts.up"][e]), down
    return *halves(b.wide(weights["experts.gate_up"][e]), layout), down


def halves(w, layout):
    """Returns the rows of gate and of up in gate_up of one expert."""
    n = len(w) // 2
    return (w[0::2], w[1::2]) if layout == "interleaved" else (w[:n], w[n:])


def experts_output(b, weights, x, ids, scores, layout):
    """Returns O in float64, computed expert by expert."""
    o = b.zeros(x.shape)
    for e in range(len(weights["router.weight"])):
        rows, slots = b.where(ids == e)
        if len(rows) == 0:
            continue
        gate_w, up_w, down = expert(b, weights, e, layout)
        gate, up = x[rows] @ gate_w.T, x[rows] @ up_w.T
        y = (gate / (1 + b.m.exp(-gate)) * up) @ down.T
        o[rows] += scores[rows, slots][:, None] * y
    return o


def check_gradients(b, weights, x, do, ids, scores, out, layout):
    """Compares all gradients with float64. H is rounded to bf16, in which the layer saves it. The
    gradient of the router is computed from dscores of the output."""
    dx, dscores = b.zeros(x.shape), b.zeros(scores.shape)
    router = b.wide(weights["router.weight"])
    for e in range(len(router)):
        rows, slots = b.where(ids == e)
        gate_w, up_w, down = expert(b, weights, e, layout)
        s, da = scores[rows, slots][:, None], do[rows] @ down
        h = [x[rows] @ gate_w.T, x[rows] @ up_w.T]
        a, dgate, dup = activation_gradients(b, s, da, *(bf16_round(b, v) for v in h))
        dscores[rows, slots] = (a * da).sum(1)
        dx[rows] += dgate @ gate_w + dup @ up_w
        want = {"dexperts.down": do[rows].T @ (s * a)}
        got = {name: b.wide(out[name][e]) for name in out if name.startswith("dexperts.")}
        want["dexperts.gate"], want["dexperts.up"] = dgate.T @ x[rows], dup.T @ x[rows]
        if "dexperts.gate_up" in got:
            got["dexperts.gate"], got["dexperts.up"] = halves(got["dexperts.gate_up"], layout)
        # If an FP32 sum may round H to another bf16 number, because H lies near the middle of two,
        # the gradients for both numbers are accepted.
        sizes = [abs(x[rows]) @ abs(w).T for w in (gate_w, up_w)]
        others = [0, 0, 0]
        for sign in (-1, 1):
            near = (bf16_round(b, v + sign * FP32_SUM * size) for v, size in zip(h, sizes))
            other = activation_gradients(b, s, da, *near)
            others = [b.m.maximum(abs(o - v), 0 * v + m) for o, v, m in zip(other, (a, dgate, dup), others)]
        allow = {
            "dexperts.down": abs(do[rows]).T @ abs(s * others[0]),
            "dexperts.gate": others[1].T @ abs(x[rows]),
            "dexperts.up": others[2].T @ abs(x[rows]),
        }
        for name in want:
            check(b, f"{name} of expert {e}", got[name], want[name], allow[name])
    check(b, "dscores", b.wide(out["dscores"]), dscores)

    def logits(ds):
        return scores * (ds - (scores * ds).sum(1)[:, None])

    chosen = logits(dscores)
    own, drouter = logits(b.wide(out["dscores"])), b.zeros(router.shape)
    for k in range(ids.shape[1]):
        dx += chosen[:, k, None] * router[ids[:, k]]
        for e in range(len(router)):
            (rows,) = b.where(ids[:, k] == e)
            drouter[e] += own[rows, k] @ x[rows]
    check(b, "dx", b.wide(out["dx"]), dx)
    check(b, "drouter.weight", b.wide(out["drouter.weight"]), drouter)


def activation_gradients(b, s, da, gate, up):
    """Returns A, and the gradients of gate and up."""
    sigmoid = 1 / (1 + b.m.exp(-gate))
    silu = gate * sigmoid
    return silu * up, s * da * up * sigmoid * (1 + gate * (1 - sigmoid)), s * da * silu


def check(b, name, got, want, allow=0.0):
    """Returns the largest errors of a row and of an element, beyond the allowed error of each
    element, as text."""
    if not bool(b.m.isfinite(got).all()):
        raise SystemExit(f"{name} has numbers that are not finite")
    tiny = 1e-300  # so that a row that must be zero may have no error
    off = abs(got - want) - allow
    off = off * (off > 0)
    row = float(((off**2).sum(1) ** 0.5 / ((want**2).sum(1) ** 0.5 + tiny)).max())
    element = float((off / (b.largest(abs(want))[:, None] + tiny)).max())
    facts = (
        f"worst row of {name} {row:.3g} (at most {ROW:g}), "
        f"worst element {element:.3g} of its row's largest (at most {ELEMENT:g})"
    )
    if not (row <= ROW and element <= ELEMENT):
        raise SystemExit("wrong: " + facts)
    return facts


def verify(b, a):
    weights, tokens_in, out = b.load(a.weights), b.load(a.input), b.load(a.output)
    x = tokens_in["x"]
    tokens, hidden = x.shape
    backward = "do" in tokens_in
    check_outputs(b, out, weights, tokens, hidden, a.topk, backward)
    if tokens == 0:
        print(f"right: no tokens ({b.name})")
        return
    count = tokens if a.sample == 0 else min(a.sample, tokens)
    sample = b.indices([i * (tokens - 1) // max(count - 1, 1) for i in range(count)])
    all_x, x = b.wide(x), b.wide(x[sample])
    ids, scores = b.ids(out["experts"][sample]), b.wide(out["scores"][sample])

    logits = x @ b.wide(weights["router.weight"]).T
    scores, moved = check_routing(b, logits, ids, scores, a.topk)
    facts = check(b, "o", b.wide(out["o"][sample]), experts_output(b, weights, x, ids, scores, a.layout))
    if backward:
        do, ids, scores = b.wide(tokens_in["do"]), b.ids(out["experts"]), b.wide(out["scores"])
        check_gradients(b, weights, all_x, do, ids, scores, out, a.layout)
        facts += ", gradients too"
    print(f"right: {count} of {tokens} tokens, {facts}, {moved} tokens rounded otherwise by FP32 ({b.name})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(dest="mode", required=True)
    w, v = modes.add_parser("write"), modes.add_parser("verify")
    for p in (w, v):
        p.add_argument("-weights", required=True)
        p.add_argument("-input", required=True)
    for name in ("tokens", "hidden", "intermediate", "experts"):
        w.add_argument("-" + name, type=int, required=True)
    w.add_argument("-layout", choices=("concatenated", "interleaved", "separate"), default="concatenated")
    w.add_argument("-seed", type=int, default=1)
    w.add_argument("-scale", type=float, default=0.02, help="standard deviation of the weights")
    w.add_argument("-backward", action="store_true", help="write do, a gradient of the output, too")
    v.add_argument("-output", required=True)
    v.add_argument("-topk", type=int, required=True)
    v.add_argument("-layout", choices=("concatenated", "interleaved"), default="concatenated")
    v.add_argument("-sample", type=int, default=0, help="tokens to compare, 0 for all")
    a = parser.parse_args()
    (write if a.mode == "write" else verify)(backend(), a)


if __name__ == "__main__":
    sys.exit(main())
