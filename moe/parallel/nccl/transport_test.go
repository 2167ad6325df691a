//go:build linux && (amd64 || arm64)

package nccl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/open"
	"sonicmoe/internal/drivertest"
	"sonicmoe/moe/parallel"
	"sonicmoe/moe/parallel/internal/transporttest"
)

// TestConforms checks the transport for groups of several sizes, in both ways.
func TestConforms(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			for _, ranks := range []int{1, 2, 3, 5} {
				for _, err := range ranksOf(t, ranks, way, func(tr parallel.Transport, dev driver.Device) error {
					if got, want := tr.(*transport).direct != nil, ranks > 1 && !way.OnlyNCCL; got != want {
						return fmt.Errorf("direct is %v, want %v", got, want)
					}
					return errors.Join(transporttest.Conforms(t.Context(), tr, dev), tr.Close())
				}) {
					require.NoError(t, err)
				}
			}
		})
	}
}

// TestFaults checks that, if rank 1 fails, every other rank returns an error that names rank 1, and
// aborts its communicator.
func TestFaults(t *testing.T) {
	share := func(tr parallel.Transport, within time.Duration) error {
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		_, err := tr.Share(ctx, parallel.Step{Phase: "counts", Chunk: 3}, []int64{1})
		return err
	}
	for name, c := range map[string]struct {
		// body runs on rank 1. The other ranks call Share.
		body func(tr parallel.Transport) error
		// within is the deadline of the other ranks.
		within time.Duration
		want   []string // parts of the errors of ranks 0 and 2
	}{
		"killed": {func(tr parallel.Transport) error {
			tr.(*transport).Drop()
			return errors.New("killed")
		}, time.Minute, []string{"rank 0 of 3: counts, chunk 3: rank 1 is gone", "rank 2 of 3: counts, chunk 3: rank 1 is gone"}},
		"aborts": {func(tr parallel.Transport) error {
			tr.Abort(errors.New("rank 1 broke"))
			return errors.New("broke")
		}, time.Minute, []string{"rank 0 of 3: counts, chunk 3: rank 1 broke", "rank 2 of 3: counts, chunk 3: rank 1 broke"}},
		"sleeps": {func(tr parallel.Transport) error {
			<-tr.(*transport).Broken()
			return share(tr, time.Minute)
		}, time.Second / 4, []string{context.DeadlineExceeded.Error(), context.DeadlineExceeded.Error()}},
	} {
		forWays(t, name, func(t *testing.T, way Options) {
			before := aborts(t)
			errs := ranksOf(t, 3, way, func(tr parallel.Transport, _ driver.Device) error {
				err := share(tr, time.Minute) // returns when all ranks have joined
				if err != nil {
					return err
				}
				if tr.Rank() == 1 {
					err = c.body(tr)
				} else {
					err = share(tr, c.within)
				}
				if tr.Rank() != 1 && tr.Err() == nil {
					err = errors.New("the group is whole")
				}
				return errors.Join(err, tr.Close())
			})
			require.Error(t, errs[1])
			require.ErrorContains(t, errs[0], c.want[0])
			require.ErrorContains(t, errs[2], c.want[1])
			require.GreaterOrEqual(t, aborts(t)-before, int32(2))
		})
	}
}

// forWays runs a test in both ways.
func forWays(t *testing.T, name string, test func(t *testing.T, way Options)) {
	for by, way := range ways {
		t.Run(name+", "+by, func(t *testing.T) { test(t, way) })
	}
}

// TestCallsFail checks that a failing function of NCCL returns an error on its rank, with the
// function's name and NCCL's text.
func TestCallsFail(t *testing.T) {
	for f, code := range map[function]int{commInitRank: 3, groupStart: 1, groupEnd: 2, allGather: 6, send: 1, recv: 5, commAsyncError: 2, getUniqueID: 2} {
		t.Run(names[f], func(t *testing.T) {
			fail(t, fakeNCCL, names[f], code)
			errs := ranksOf(t, 2, Options{OnlyNCCL: true}, func(tr parallel.Transport, dev driver.Device) error {
				ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
				defer cancel()
				s, err := dev.NewStream()
				if err != nil {
					return err
				}
				at, err := dev.Alloc(64)
				if err != nil {
					return err
				}
				step := parallel.Step{Phase: "fault"}
				if _, err = tr.Share(ctx, step, []int64{1}); err == nil {
					eight := []int64{8, 8}
					err = tr.Move(ctx, step, s, parallel.Exchange{Send: at, Receive: at + 32, SendBytes: eight, ReceiveBytes: eight})
				}
				return errors.Join(err, tr.Close())
			})
			named := errs[0]
			if f == getUniqueID {
				require.Error(t, errs[1])
			}
			require.ErrorContains(t, named, fmt.Sprintf("%s: as the test asked: the last error (%d)", names[f], code))
		})
	}
}

// TestLibrary checks that Connect refuses an unusable library and gives the reason.
func TestLibrary(t *testing.T) {
	dev := device(t)
	for name, c := range map[string]struct{ library, want string }{
		"absent":  {"/nowhere/libnccl.so.2", "tried /nowhere/libnccl.so.2 ("},
		"old":     {standIn(t, fakeNCCL, "-DOLD"), "is NCCL 2.22.5, 2.23.0 or newer is needed"},
		"lacking": {standIn(t, fakeNCCL, "-DNO_RECV"), "lacks ncclRecv: it is not NCCL 2.23.0 or newer"},
		"another": {standIn(t, fakeCUDA), "lacks ncclGetVersion, "},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Connect(t.Context(), dev, Options{Ranks: 1, Library: c.library})
			require.ErrorContains(t, err, c.want)
		})
	}
	t.Setenv(envLibrary, "/nowhere/else.so")
	_, err := openLibrary("")
	require.ErrorContains(t, err, "tried /nowhere/else.so (")
	require.ErrorContains(t, err, envLibrary)
	t.Setenv(envLibrary, "")
	t.Setenv("VIRTUAL_ENV", t.TempDir())
	require.Equal(t, "libnccl.so.2", places("")[0])
}

// TestOneGPU loads NCCL itself, makes a communicator of one rank, and runs its exchanges. It checks
// that an abort ends the group.
func TestOneGPU(t *testing.T) {
	if drivertest.Name() != "cuda" {
		t.Skip("NCCL needs a GPU")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dev, err := open.Device(ctx, "cuda")
	require.NoError(t, err)
	defer dev.Close()
	tr, err := Connect(ctx, dev, Options{Rank: 0, Ranks: 1, Address: "127.0.0.1:0"})
	require.NoError(t, err)
	s, err := dev.NewStream()
	require.NoError(t, err)
	defer s.Close()
	memory, err := dev.Alloc(64)
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Free(memory)) }()
	for round := range 3 {
		at := parallel.Step{Phase: "test", Chunk: round}
		words, err := tr.Share(ctx, at, []int64{7, int64(round)})
		require.NoError(t, err)
		require.Equal(t, [][]int64{{7, int64(round)}}, words)
		sent, got := bytes.Repeat([]byte{byte(round + 1)}, 32), make([]byte, 32)
		require.NoError(t, s.CopyToDevice(memory, sent))
		require.NoError(t, tr.Move(ctx, at, s, parallel.Exchange{Send: memory, Receive: memory + 32, SendBytes: []int64{32}, ReceiveBytes: []int64{32}}))
		require.NoError(t, s.CopyToHost(got, memory+32))
		require.Equal(t, sent, got)
	}
	tr.Abort(errors.New("the program stops"))
	_, err = tr.Share(ctx, parallel.Step{Phase: "test"}, nil)
	require.ErrorContains(t, err, "the program stops")
	require.NoError(t, tr.Close())
}
