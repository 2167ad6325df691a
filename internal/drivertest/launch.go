package drivertest

import (
	"math"
	"strconv"
	"sync"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
)

// addends returns inputs a and b of the kernel scaled_add whose sums are exact, and the result
// a + 0.5*b.
func addends(n, seed int) (a, b, sum []uint32) {
	for i := range n {
		x, y := float32(i%1000+seed), float32((i*7+seed)%512)
		a, b = append(a, math.Float32bits(x)), append(b, math.Float32bits(y))
		sum = append(sum, math.Float32bits(x+0.5*y))
	}
	return a, b, sum
}

func testLaunch(b *bench) {
	f := b.function("add.ptx", "scaled_add")
	for _, n := range []int{1, 127, 128, 1000} {
		x, y, sum := addends(n, n)
		out := b.alloc(4 * (n + 1))
		require.NoError(b, gpu.Enqueue(b.stream, f, line(n), pack(out, b.put(x), b.put(y), uint32(n), float32(0.5))))
		got := b.get(out, n+1)
		require.Equal(b, append(sum, poison), got, "n = %d", n)
	}
}

func testParamsAreCopied(b *bench) {
	f := b.function("count.ptx", "poke")
	out := b.alloc(4 * 64)
	params := pack(out, uint32(0))
	for i := range uint32(64) {
		copy(params, pack(out+driver.DevicePtr(4*i), 1000+i))
		require.NoError(b, gpu.Enqueue(b.stream, f, &gpu.Launch{}, params))
	}
	clear(params)
	for i, w := range b.get(out, 64) {
		require.Equal(b, uint32(1000+i), w, "word %d", i)
	}
}

func testSharedMemory(b *bench) {
	const words, ctas = 200 << 10 / 4, 2
	f := b.function("shared.ptx", "reverse")
	require.NoError(b, f.AllowSharedBytes(4*words))
	out := b.alloc(4 * words * ctas)
	l := &gpu.Launch{Grid: gpu.Dim3{X: ctas}, Block: gpu.Dim3{X: 256}, SharedBytes: 4 * words}
	require.NoError(b, gpu.Enqueue(b.stream, f, l, pack(out, uint32(words))))
	for i, w := range b.get(out, words*ctas) {
		if want := uint32(3*(words-1-i%words) + i/words); w != want {
			require.Equal(b, want, w, "word %d", i)
		}
	}
}

func testTooMuchShared(b *bench) {
	f := b.function("shared.ptx", "reverse")
	limit := b.dev.Target().SharedBytesPerCTA
	out := b.alloc(4)
	require.ErrorIs(b, f.AllowSharedBytes(limit+1), driver.ErrInvalid)
	require.ErrorIs(b, f.AllowSharedBytes(-1), driver.ErrInvalid)
	for _, bytes := range []int{200 << 10, limit + 1} {
		err := gpu.Enqueue(b.stream, f, &gpu.Launch{SharedBytes: bytes}, pack(out, uint32(1)))
		require.ErrorIs(b, err, driver.ErrInvalid, "%d bytes were not allowed", bytes)
		assert.Contains(b, err.Error(), strconv.Itoa(bytes), "the error must name the size asked for")
	}
	require.NoError(b, f.AllowSharedBytes(limit))
	require.NoError(b, gpu.Enqueue(b.stream, f, &gpu.Launch{SharedBytes: limit}, pack(out, uint32(1))))
	assert.Equal(b, []uint32{0}, b.get(out, 1))
}

func testWrongLaunches(b *bench) {
	f := b.function("shared.ptx", "facts") // the kernel allows at most 128 threads
	for name, l := range map[string]gpu.Launch{
		"negative grid":              {Grid: gpu.Dim3{X: -1}},
		"grid too high":              {Grid: gpu.Dim3{Y: 65536}},
		"negative block":             {Block: gpu.Dim3{Y: -1}},
		"more than 1024 threads":     {Block: gpu.Dim3{X: 1025}},
		"more than 1024 together":    {Block: gpu.Dim3{X: 64, Y: 32}},
		"more than .maxntid":         {Block: gpu.Dim3{X: 256}},
		"negative shared memory":     {SharedBytes: -4},
		"negative cluster":           {Cluster: gpu.Dim3{X: -2}},
		"cluster of 17":              {Grid: gpu.Dim3{X: 17}, Cluster: gpu.Dim3{X: 17}},
		"grid no whole of a cluster": {Grid: gpu.Dim3{X: 3}, Cluster: gpu.Dim3{X: 2}},
	} {
		require.ErrorIs(b, gpu.Enqueue(b.stream, f, &l, pack(b.alloc(1024))), driver.ErrInvalid, name)
	}
	// The device must still work after the refused launch.
	out := b.alloc(512)
	require.NoError(b, gpu.Enqueue(b.stream, f, &gpu.Launch{Block: gpu.Dim3{X: 128}}, pack(out)))
	assert.Equal(b, uint32(127), b.get(out, 1)[0])
}

// testProgrammatic launches pairs of kernels. The second kernel of a pair may start before the
// first ends; its result must still be right.
func testProgrammatic(b *bench) {
	const n, rounds = 1024, 20
	m := b.load("pdl.ptx")
	first, err := m.Function("first")
	require.NoError(b, err)
	second, err := m.Function("second")
	require.NoError(b, err)
	early := line(n)
	early.Programmatic = true
	for range rounds {
		x, y := b.alloc(4*n), b.alloc(4*n)
		require.NoError(b, gpu.Enqueue(b.stream, first, line(n), pack(x)))
		require.NoError(b, gpu.Enqueue(b.stream, second, early, pack(x, y)))
		for i, w := range b.get(y, n) {
			require.Equal(b, uint32(2*(i+1)), w, "word %d", i)
		}
	}
}

func testCluster(b *bench) {
	const ctas = 6
	f := b.function("cluster.ptx", "exchange")
	out := b.alloc(8 * ctas)
	l := &gpu.Launch{Grid: gpu.Dim3{X: ctas}, Block: gpu.Dim3{X: 32}, Cluster: gpu.Dim3{X: 2}}
	require.NoError(b, gpu.Enqueue(b.stream, f, l, pack(out)))
	got := b.get(out, 2*ctas)
	for cta := range uint32(ctas) {
		assert.Equal(b, []uint32{cta % 2, 100 + (cta ^ 1)}, got[2*cta:2*cta+2], "CTA %d", cta)
	}
}

func testMaxActiveClusters(b *bench) {
	sms := b.dev.Target().SMs
	f := b.function("shared.ptx", "reverse")
	require.NoError(b, f.AllowSharedBytes(200<<10))
	count := func(l gpu.Launch) int {
		n, err := b.dev.MaxActiveClusters(f, l)
		require.NoError(b, err)
		return n
	}
	block := gpu.Dim3{X: 128}
	assert.Equal(b, sms, count(gpu.Launch{Grid: gpu.Dim3{X: 512}, Block: block, SharedBytes: 200 << 10}), "one CTA fills an SM")
	assert.GreaterOrEqual(b, count(gpu.Launch{Grid: gpu.Dim3{X: 512}, Block: block}), 2*sms)
	pairs := count(gpu.Launch{Grid: gpu.Dim3{X: 512}, Block: block, Cluster: gpu.Dim3{X: 2}, SharedBytes: 200 << 10})
	assert.Positive(b, pairs)
	assert.LessOrEqual(b, pairs, sms/2)
}

// testGoroutines lets goroutines launch on streams of their own. No goroutine may affect the
// result of another.
func testGoroutines(b *bench) {
	const n, workers, rounds = 512, 8, 10
	f := b.function("add.ptx", "scaled_add")
	type work struct {
		stream       driver.Stream
		out          driver.DevicePtr
		params, want []byte
		got          []byte
		err          error
	}
	works := make([]work, workers)
	for i := range works {
		x, y, sum := addends(n, 31*i)
		w := &works[i]
		w.stream, w.out, w.want, w.got = b.newStream(), b.alloc(4*n), encode(sum), make([]byte, 4*n)
		w.params = pack(w.out, b.put(x), b.put(y), uint32(n), float32(0.5))
	}
	require.NoError(b, b.stream.Synchronize(b.Context()))
	var all sync.WaitGroup
	for i := range works {
		w := &works[i]
		all.Go(func() {
			for range rounds {
				if w.err = gpu.Enqueue(w.stream, f, line(n), w.params); w.err != nil {
					return
				}
			}
			w.err = w.stream.CopyToHost(w.got, w.out)
		})
	}
	all.Wait()
	for i, w := range works {
		require.NoError(b, w.err, "goroutine %d", i)
		require.Equal(b, w.want, w.got, "goroutine %d", i)
	}
}
