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
	"sonicmoe/internal/faulty"
	"sonicmoe/jit"
	"sonicmoe/ptx"
)

var errInjected = errors.New("injected")

// newDevice is an emulated device that counts, forgotten when the test ends.
func newDevice(t testing.TB) *faulty.Device {
	t.Helper()
	dev, err := emulated.New(emulated.Options{})
	require.NoError(t, err)
	counted := faulty.Wrap(dev)
	t.Cleanup(func() { jit.Forget(counted) })
	return counted
}

// adder stores n+step at out. Another step is another kernel. storeAt is
// where the store stands in this file, as errors name it.
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

// lineAbove is the line before the caller's, "jit/kernel_test.go:57".
func lineAbove() string {
	_, _, line, _ := runtime.Caller(1)
	return fmt.Sprintf("jit/kernel_test.go:%d", line-1)
}

// load is Load without a cache.
func load(ctx context.Context, dev driver.Device, s jit.Source) (*jit.Function, error) {
	return jit.Of(dev).Load(ctx, nil, s, driver.CompileOptions{})
}
