package jit_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/faulty"
	"sonicmoe/jit"
	"sonicmoe/ptx"
)

var errInjected = errors.New("injected")

// newDevice returns an emulated device that counts calls. When the test ends, the device's loader
// is forgotten.
func newDevice(t testing.TB) *faulty.Device {
	t.Helper()
	dev, err := emulated.New(emulated.Options{})
	require.NoError(t, err)
	counted := faulty.Wrap(dev)
	t.Cleanup(func() { jit.Forget(counted) })
	return counted
}

// adder returns a kernel that stores n+step at out. Kernels with different steps have different
// text. storeAt is the Go line that emits the store, as errors name it.
func adder(t testing.TB, step int) (s jit.Source, storeAt string) {
	t.Helper()
	k := ptx.NewKernel("adder")
	k.SetLaunchBounds(32, 1)
	out, n := k.ParamPtr("out"), k.ParamU32("n")
	sum := n.AddI(step)
	ptx.StGlobal(out, sum)
	storeAt = lineAbove()
	m, err := k.Build()
	require.NoError(t, err)
	return jit.Source{Module: m, Name: "adder", SharedBytes: 1024, Label: fmt.Sprint("adder ", step)}, storeAt
}

// lineAbove returns the line before the caller's line, such as "jit/kernel_test.go:57".
func lineAbove() string {
	_, _, line, _ := runtime.Caller(1)
	return fmt.Sprintf("jit/kernel_test.go:%d", line-1)
}

// load calls Load without a cache.
func load(ctx context.Context, dev driver.Device, s jit.Source) (*jit.Function, error) {
	return jit.Of(dev).Load(ctx, nil, s, gpu.CompileOptions{})
}
