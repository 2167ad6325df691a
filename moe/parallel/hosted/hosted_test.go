package hosted

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"sonicmoe/driver/emulated"
	"sonicmoe/moe/parallel"
	"sonicmoe/moe/parallel/internal/transporttest"
)

// mail carries bytes between the goroutines of a test, as a process group does between processes.
// Element [i][j] carries what rank i sends to rank j.
type mail [][]chan []byte

func newMail(ranks int) mail {
	m := make(mail, ranks)
	for i := range m {
		for range ranks {
			m[i] = append(m[i], make(chan []byte, 1))
		}
	}
	return m
}

// exchange returns the Exchange of a rank.
func (m mail) exchange(rank int) Exchange {
	return func(ctx context.Context, send []byte, sendBytes []int64, receive []byte, receiveBytes []int64) error {
		for to, n := range sendBytes {
			m[rank][to] <- bytes.Clone(send[:n])
			send = send[n:]
		}
		for from, n := range receiveBytes {
			select {
			case got := <-m[from][rank]:
				if int64(len(got)) != n {
					return fmt.Errorf("%d bytes of rank %d, want %d", len(got), from, n)
				}
				receive = receive[copy(receive, got):]
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}
}

// group runs body for each rank of a group, and returns the errors by rank.
func group(t *testing.T, ranks int, body func(tr parallel.Transport) error) []error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	at, post := l.Addr().String(), newMail(ranks)
	require.NoError(t, l.Close())
	errs := make([]error, ranks)
	var g errgroup.Group
	for i := range ranks {
		g.Go(func() error {
			tr, err := Connect(t.Context(), Options{Rank: i, Ranks: ranks, Address: at, Exchange: post.exchange(i)})
			if err == nil {
				err = errors.Join(body(tr), tr.Close())
			}
			errs[i] = err
			return nil
		})
	}
	require.NoError(t, g.Wait())
	return errs
}

// TestConforms checks the transport for groups of several sizes.
func TestConforms(t *testing.T) {
	for _, ranks := range []int{1, 2, 5} {
		for _, err := range group(t, ranks, func(tr parallel.Transport) error {
			dev, err := emulated.New(emulated.Options{})
			if err != nil {
				return err
			}
			return transporttest.Conforms(t.Context(), tr, dev)
		}) {
			require.NoError(t, err)
		}
	}
}

// TestFaults checks that a fault of rank 1 is an error of all other ranks, which names the fault.
func TestFaults(t *testing.T) {
	share := func(tr parallel.Transport, within time.Duration, words ...int64) error {
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		_, err := tr.Share(ctx, parallel.Step{Phase: "counts"}, words)
		return err
	}
	for name, c := range map[string]struct {
		body   func(tr parallel.Transport) error // runs on rank 1
		within time.Duration
		want   string
	}{
		"killed":         {func(tr parallel.Transport) error { tr.(*transport).Drop(); return nil }, time.Minute, "counts: rank 1 is gone"},
		"aborts":         {func(tr parallel.Transport) error { tr.Abort(errors.New("rank 1 broke")); return nil }, time.Minute, "rank 1 broke"},
		"sleeps":         {func(tr parallel.Transport) error { time.Sleep(time.Second); return nil }, time.Second / 4, "deadline exceeded"},
		"another length": {func(tr parallel.Transport) error { _ = share(tr, time.Minute, 1, 2); return nil }, time.Minute, "bytes of rank"},
		"another step": {func(tr parallel.Transport) error {
			_, _ = tr.Share(context.Background(), parallel.Step{Phase: "router"}, []int64{1})
			return nil
		}, time.Minute, "another step"},
		"wrong size": {func(tr parallel.Transport) error {
			return tr.Move(context.Background(), parallel.Step{Phase: "dispatch"}, nil, parallel.Exchange{SendBytes: []int64{0, 16, 0}, ReceiveBytes: []int64{0, 32, 0}})
		}, time.Minute, "rank 1 sends 16 bytes to itself and expects 32"},
	} {
		t.Run(name, func(t *testing.T) {
			errs := group(t, 3, func(tr parallel.Transport) error {
				if tr.Rank() == 1 {
					return c.body(tr)
				}
				err := share(tr, c.within, 1)
				if again := share(tr, time.Minute, 1); again == nil {
					return errors.New("the group is whole")
				}
				return err
			})
			for _, i := range []int{0, 2} {
				var of *parallel.Error
				require.ErrorAs(t, errs[i], &of)
				require.Equal(t, i, of.Rank)
			}
			require.ErrorContains(t, errors.Join(errs[0], errs[2]), c.want)
		})
	}
	_, err := Connect(t.Context(), Options{Ranks: 1})
	require.ErrorContains(t, err, "Exchange is nil")
}
