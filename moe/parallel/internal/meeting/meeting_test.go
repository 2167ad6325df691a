package meeting

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// TestMeeting checks that ranks meet, and that a rank that does not fit causes an error on every
// rank that has come.
func TestMeeting(t *testing.T) {
	for name, c := range map[string]struct {
		change   func(o *Options) // changes the options of rank 1 of 3
		stranger bool
		want     map[int]string // part of the error of each rank
	}{
		"together":        {},
		"with a stranger": {stranger: true},
		"another size":    {change: func(o *Options) { o.Ranks = 4 }, want: map[int]string{0: "rank 1 has 4 ranks, rank 0 has 3", 1: "rank 1 has 4 ranks"}},
		"another NCCL":    {change: func(o *Options) { o.Version = "NCCL 2.28.9" }, want: map[int]string{0: "rank 1 has NCCL 2.28.9, rank 0 has NCCL 2.23.4", 1: "has NCCL 2.28.9"}},
		"twice":           {change: func(o *Options) { o.Rank = 2 }, want: map[int]string{0: "rank 2 has come twice"}},
		"another token":   {change: func(o *Options) { o.Token = "else" }, want: map[int]string{0: "waiting for ranks [1]", 1: "this job has another token"}},
		"no rank":         {change: func(o *Options) { o.Rank = 3 }, want: map[int]string{1: "rank 3 of 3: want a rank from 0"}},
	} {
		t.Run(name, func(t *testing.T) {
			at := address(t)
			within := time.Minute
			if c.want != nil {
				within = time.Second / 2
			}
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			if c.stranger {
				go func() {
					for range 100 {
						if conn, err := net.Dial("tcp", at); err == nil {
							_, _ = conn.Write([]byte("GET / HTTP/1.1\r\n\r\n")) // errors of the stranger do not matter
							return
						}
						time.Sleep(5 * time.Millisecond)
					}
				}()
			}
			errs, meetings := make([]error, 3), make([]*Meeting, 3)
			var g errgroup.Group
			for i := range errs {
				o := Options{Rank: i, Ranks: 3, Address: at, Token: "job", Version: "NCCL 2.23.4"}
				if i == 1 && c.change != nil {
					c.change(&o)
				}
				g.Go(func() error {
					meetings[i], errs[i] = Meet(ctx, o, func() ([]byte, error) { return []byte("the id"), nil })
					return nil
				})
			}
			require.NoError(t, g.Wait())
			for i, err := range errs {
				switch {
				case c.want == nil:
					require.NoError(t, err)
					require.Equal(t, "the id", string(meetings[i].ID))
				case c.want[i] != "":
					require.ErrorContains(t, err, c.want[i])
				}
			}
			for _, m := range meetings {
				if m != nil {
					m.Close()
				}
			}
		})
	}
}

// TestMeetingEnds checks that a rank that closes does not break the group, and that a rank that is
// gone or aborts breaks it on all ranks.
func TestMeetingEnds(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(m *Meeting)
		by   int
		want string
	}{
		"closes":         {func(m *Meeting) { m.Close() }, 1, ""},
		"rank 0 closes":  {func(m *Meeting) { m.Close() }, 0, ""},
		"is gone":        {(*Meeting).Drop, 2, "rank 2 is gone"},
		"rank 0 is gone": {(*Meeting).Drop, 0, "rank 0 is gone"},
		"aborts":         {func(m *Meeting) { m.Abort(errors.New("rank 1 has had it")) }, 1, "rank 1 has had it"},
		"closes before Abort has sent the cause": {func(m *Meeting) {
			m.mu.Lock()
			m.cause = errors.New("rank 1 is gone")
			close(m.broken)
			m.mu.Unlock()
			m.Close()
		}, 0, "rank 1 is gone"},
		"an error in both": {func(m *Meeting) { m.Abort(errors.New("first")); m.Abort(errors.New("second")) }, 2, "first"},
	} {
		t.Run(name, func(t *testing.T) {
			at := address(t)
			meetings := make([]*Meeting, 3)
			var g errgroup.Group
			for i := range meetings {
				g.Go(func() (err error) {
					meetings[i], err = Meet(t.Context(), Options{Rank: i, Ranks: 3, Address: at}, func() ([]byte, error) { return nil, nil })
					return err
				})
			}
			require.NoError(t, g.Wait())
			c.end(meetings[c.by])
			for i, m := range meetings {
				if i == c.by {
					continue
				}
				if c.want == "" {
					select {
					case <-m.broken:
						t.Errorf("rank %d: %v", i, m.Err())
					case <-time.After(100 * time.Millisecond):
					}
					continue
				}
				select {
				case <-m.broken:
				case <-time.After(10 * time.Second):
					t.Fatalf("rank %d does not learn that the group is broken", i)
				}
				require.ErrorContains(t, m.Err(), c.want)
			}
			for _, m := range meetings {
				m.Close()
			}
		})
	}
}

// address returns a free TCP address of this host.
func address(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}
