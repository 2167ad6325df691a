package emu

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"path"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// foreignRun is the test of one kernel of ../testdata/foreign. Its twin is a Go function that
// computes the same.
type foreignRun struct {
	*program
	rng     *rand.Rand
	dropped bool // a line of the kernel is dropped: the twin ends after the launch, without a comparison
	source  []byte
}

// put allocates a buffer in the emulator's memory and fills it with the values.
func put[T any](r *foreignRun, v []T) uint64 {
	b, err := binary.Append(nil, binary.LittleEndian, v)
	require.NoError(r.t, err)
	a, err := r.mem.Alloc(int64(len(b)))
	require.NoError(r.t, err)
	require.NoError(r.t, r.mem.Write(a, b))
	return a
}

// get reads n values from a buffer.
func get[T any](r *foreignRun, a uint64, n int) []T {
	v := make([]T, n)
	b := make([]byte, binary.Size(v))
	require.NoError(r.t, r.mem.Read(b, a))
	require.NoError(r.t, binary.Read(bytes.NewReader(b), binary.LittleEndian, v))
	return v
}

// draw returns n random values.
func draw[T any](n int, value func() T) []T {
	v := make([]T, n)
	for i := range v {
		v[i] = value()
	}
	return v
}

func (r *foreignRun) f32s(n int) []float32 {
	return draw(n, func() float32 { return float32(r.rng.NormFloat64()) })
}
func (r *foreignRun) f64s(n int) []float64 { return draw(n, r.rng.NormFloat64) }
func (r *foreignRun) u32s(n int) []uint32  { return draw(n, r.rng.Uint32) }
func (r *foreignRun) i64s(n int) []int64 {
	return draw(n, func() int64 { return int64(r.rng.Uint64() >> r.rng.IntN(60)) })
}

// foreignFindings lists the findings that correct foreign kernels have. The atomicCAS loop of the
// programming guide begins with an ordinary load, which races with the atomics.
var foreignFindings = map[string]string{
	"atomics_atomics": "with ld.global (line 77) in lanes 1-31, and nothing orders these lanes of the warp",
}

// seedsOfTwins returns the number of random orders in which a correct kernel must have no finding.
func seedsOfTwins() int {
	if os.Getenv("SONICMOE_LONG") != "" {
		return 100
	}
	return 1
}

// launchWith launches the kernel with the parameters, in several orders, and looks for races.
func (r *foreignRun) launchWith(grid, block [3]int, params ...any) {
	r.t.Helper()
	b := make([]byte, r.kernel.ParamBytes())
	require.Len(r.t, params, len(r.kernel.Params()))
	for i, p := range r.kernel.Params() {
		v, err := binary.Append(nil, binary.LittleEndian, params[i])
		require.NoError(r.t, err)
		require.Len(r.t, v, p.Bytes, p.Name)
		copy(b[p.Offset:], v)
	}
	r.launch.Grid, r.launch.Block, r.launch.Params = grid, block, b
	if r.dropped {
		r.checkDropped()
	}
	before := r.mem.snapshot()
	err := r.kernel.Check(context.Background(), r.mem, r.launch, seedsOfTwins())
	if want := foreignFindings[path.Base(r.t.Name())]; want != "" {
		require.ErrorContains(r.t, err, want)
		r.mem.restore(before)
		err = r.run()
	}
	require.NoError(r.t, err)
	r.onForeign(before)
}

// near checks that floats are equal up to the given number of units in the last place of FP32.
func near(t *testing.T, want, got []float32, places float64) {
	t.Helper()
	for i := range want {
		if w, g := float64(want[i]), float64(got[i]); math.Abs(w-g) > places*0x1p-23*math.Max(math.Abs(w), 1e-3) || w != w != (g != g) {
			t.Fatalf("element %d is %v, want %v", i, g, w)
		}
	}
}

func x(n int) [3]int { return [3]int{n} }

// each compares every element of a buffer with the value that the twin computes.
func each[T any](r *foreignRun, out uint64, n int, twin func(i int) T) {
	r.t.Helper()
	want := make([]T, n)
	for i := range want {
		want[i] = twin(i)
	}
	assert.Equal(r.t, want, get[T](r, out, n))
}

func TestForeignKernels(t *testing.T) {
	for name, twin := range foreignTwins {
		t.Run(name, func(t *testing.T) {
			file, entry, _ := bytes.Cut([]byte(name), []byte(" "))
			text, err := os.ReadFile("../testdata/foreign/" + string(file) + ".ptx")
			require.NoError(t, err)
			m, err := Load(text)
			require.NoError(t, err)
			k, err := m.Kernel(string(entry))
			require.NoError(t, err)
			twin(t, &foreignRun{program: &program{t: t, kernel: k, mem: NewMemory(1 << 24)}, rng: rand.New(rand.NewPCG(7, uint64(len(name)))), source: text})
		})
	}
}
