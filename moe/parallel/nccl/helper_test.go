//go:build linux && (amd64 || arm64)

package nccl

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"sonicmoe/driver"
	"sonicmoe/driver/cuda"
	"sonicmoe/internal/outside"
	"sonicmoe/moe/parallel"
)

// built has the paths of the stand-in libraries built so far, by source and flags.
var built = map[string]string{}

// standIn builds a stand-in library from C source and returns its path.
func standIn(t *testing.T, source string, flags ...string) string {
	cc, key := outside.CC(t), fmt.Sprint(source, flags)
	if built[key] == "" {
		dir, err := os.MkdirTemp("", "standin")
		require.NoError(t, err)
		path := filepath.Join(dir, "lib.so")
		args := append([]string{"-shared", "-fPIC", "-pthread", "-Wno-unused", "-Wl,--build-id=none", "-o", path, source}, flags...)
		out, err := exec.Command(cc, args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
		built[key] = path
	}
	return built[key]
}

func TestMain(m *testing.M) {
	status := m.Run()
	for _, path := range built {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(status)
}

const fakeNCCL, fakeCUDA = "testdata/fakenccl.c", "../../../driver/cuda/testdata/fakecuda.c"

// fail makes the named function of a stand-in, fakeNCCL or fakeCUDA, return an error code until the
// test ends.
func fail(t *testing.T, source, name string, code int) {
	handle, err := purego.Dlopen(standIn(t, source), purego.RTLD_NOW)
	require.NoError(t, err)
	var set func(*byte, uintptr)
	purego.RegisterLibFunc(&set, handle, "fake_fail")
	text := append([]byte(name), 0)
	set(unsafe.SliceData(text), uintptr(code))
	runtime.KeepAlive(text)
	t.Cleanup(func() { set(unsafe.SliceData([]byte{0}), 0) })
}

// aborts returns the number of communicators that were aborted.
func aborts(t *testing.T) int32 {
	handle, err := purego.Dlopen(standIn(t, fakeNCCL), purego.RTLD_NOW)
	require.NoError(t, err)
	var count func() int32
	purego.RegisterLibFunc(&count, handle, "fake_aborts")
	return count()
}

// address returns a free TCP address of this host.
func address(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// device opens a GPU of the stand-in for the CUDA driver.
func device(t *testing.T) driver.Device {
	dev, err := cuda.Open(t.Context(), 0, cuda.Options{Library: standIn(t, fakeCUDA)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return dev
}

// ways are the two ways in which the ranks of a host move bytes.
var ways = map[string]Options{"direct": {}, "by NCCL": {OnlyNCCL: true}}

// ranksOf connects ranks and calls body for each of them, in goroutines. It returns the errors by
// rank. If rank 0 does not connect, the other ranks stop waiting for it after half a second.
func ranksOf(t *testing.T, ranks int, way Options, body func(tr parallel.Transport, dev driver.Device) error) []error {
	at, lib, dev := address(t), standIn(t, fakeNCCL), device(t)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	errs := make([]error, ranks)
	var g errgroup.Group
	for i := range ranks {
		g.Go(func() error {
			tr, err := Connect(ctx, dev, Options{Rank: i, Ranks: ranks, Address: at, Token: t.Name(), Library: lib, OnlyNCCL: way.OnlyNCCL})
			switch {
			case err == nil:
				err = body(tr, dev)
			case i == 0:
				time.AfterFunc(time.Second/2, cancel)
			}
			errs[i] = err
			return nil
		})
	}
	require.NoError(t, g.Wait())
	return errs
}
