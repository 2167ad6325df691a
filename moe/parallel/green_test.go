//go:build linux && (amd64 || arm64)

package parallel

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/drivertest"
	"sonicmoe/moe"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
)

// partOfGPU is a device whose streams run on some of the multiprocessors of a GPU, by a green context
// of CUDA. Its memory is the GPU's.
type partOfGPU struct {
	gpu.Device
	green  uintptr // a CUgreenCtx
	stream func(raw *uintptr, green uintptr, flags uint32, priority int32) int32
}

// NewStream returns a stream of the green context. The test does not destroy the stream.
func (d *partOfGPU) NewStream() (driver.Stream, error) {
	raw := new(uintptr)
	if r := d.stream(raw, d.green, 1, 0); r != 0 { // 1 is CU_STREAM_NON_BLOCKING
		return nil, fmt.Errorf("cuGreenCtxStreamCreate: %d", r)
	}
	return d.WrapStream(*raw), nil
}

// Reach implements Peer: all parts of a GPU have the same memory.
func (d *partOfGPU) Reach(driver.Device) (bool, error) { return true, nil }

// resource is a CUdevResource. Only the driver knows its fields.
type resource [144 / 8]uint64

// partsOfGPU divides the multiprocessors of the first GPU into n parts.
func partsOfGPU(t *testing.T, dev driver.Device, n int) (list []driver.Device) {
	handle, err := purego.Dlopen("libcuda.so.1", purego.RTLD_NOW)
	require.NoError(t, err)
	var (
		get    func(dev int32, to *resource, kind int32) int32
		split  func(to *resource, groups *uint32, from, rest *resource, flags, least uint32) int32
		desc   func(to *uintptr, of *resource, n uint32) int32
		create func(to *uintptr, desc uintptr, dev int32, flags uint32) int32
		stream func(raw *uintptr, green uintptr, flags uint32, priority int32) int32
	)
	for name, f := range map[string]any{
		"cuDeviceGetDevResource": &get, "cuDevSmResourceSplitByCount": &split, "cuDevResourceGenerateDesc": &desc, "cuGreenCtxCreate": &create,
		"cuGreenCtxStreamCreate": &stream,
	} {
		if _, err := purego.Dlsym(handle, name); err != nil {
			t.Skipf("the driver has no green contexts: %v", err)
		}
		purego.RegisterLibFunc(f, handle, name)
	}
	const multiprocessors, defaultStream = 1, 1 // CU_DEV_RESOURCE_TYPE_SM, CU_GREEN_CTX_DEFAULT_STREAM
	all, rest, parts, groups := new(resource), new(resource), make([]resource, n), uint32(n)
	require.Zero(t, get(0, all, multiprocessors), "cuDeviceGetDevResource")
	least := uint32(dev.Target().SMs / n / 8 * 8)
	require.Zero(t, split(&parts[0], &groups, all, rest, 0, least), "cuDevSmResourceSplitByCount")
	require.EqualValues(t, n, groups)
	for i := range parts {
		of, green := new(uintptr), new(uintptr)
		require.Zero(t, desc(of, &parts[i], 1), "cuDevResourceGenerateDesc")
		require.Zero(t, create(green, *of, 0, defaultStream), "cuGreenCtxCreate")
		// The first word of the resource's union is the number of multiprocessors.
		t.Logf("part %d has %d multiprocessors", i, *(*uint32)(unsafe.Add(unsafe.Pointer(&parts[i]), 96)))
		list = append(list, &partOfGPU{dev.(gpu.Device), *green, stream})
	}
	return list
}

// TestPartsOfGPU runs groups whose ranks are disjoint parts of one GPU, many times. It checks the
// bits of each pass, and that the timeline of a pass shows exchanges next to products.
func TestPartsOfGPU(t *testing.T) {
	if drivertest.Name() != "cuda" {
		t.Skip("emulated devices have no green contexts")
	}
	passes := 100
	if kt.Long() {
		passes = 1000
	}
	for _, ranks := range []int{2, 4} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			c := testCase{config: moe.Config{Hidden: 2048, Intermediate: 768, NumExperts: 32, TopK: 4}}
			for i := range ranks {
				c.tokens = append(c.tokens, 2048-32*i)
			}
			all, err := devices()
			require.NoError(t, err)
			tr := c.oneGPU(t, all[0])
			want, err := tr.Results(false)
			require.NoError(t, err)
			members := joinOn(t, partsOfGPU(t, all[0], ranks), c, Options{Chunks: 3, Layer: forwardOnly})
			for pass := range passes {
				got := forward(t, c, members, tr, want)
				require.True(t, slices.Equal(want.O, got.O), "pass %d", pass)
			}
			beside := make([]bool, ranks)
			require.NoError(t, each(members, func(i int, m *member) error {
				m.Trace(true)
				if err := m.Forward(context.Background(), m.stream, m.args); err != nil {
					return err
				}
				spans, err := m.Spans(context.Background(), m.stream)
				for _, a := range spans {
					for _, b := range spans {
						beside[i] = beside[i] || a.Side && !b.Side && a.From < b.To && b.From < a.To
					}
				}
				if i == 0 {
					for _, s := range spans {
						t.Logf("%-12s %d side %-5v %8.3f to %8.3f ms", s.Name, s.Chunk, s.Side, s.From.Seconds()*1e3, s.To.Seconds()*1e3)
					}
				}
				return err
			}))
			require.NotContains(t, beside, false)
		})
	}
}
