//go:build linux && (amd64 || arm64)

package nccl

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
		change   func(o *Options, version *int) // changes the options of rank 1 of 3
		stranger bool
		want     map[int]string // part of the error of each rank
	}{
		"together":        {},
		"with a stranger": {stranger: true},
		"another size":    {change: func(o *Options, _ *int) { o.Ranks = 4 }, want: map[int]string{0: "rank 1 has 4 ranks, rank 0 has 3", 1: "rank 1 has 4 ranks"}},
		"another NCCL":    {change: func(_ *Options, v *int) { *v = 22809 }, want: map[int]string{0: "rank 1 has NCCL 2.28.9, rank 0 has 2.23.4", 1: "has NCCL 2.28.9"}},
		"twice":           {change: func(o *Options, _ *int) { o.Rank = 2 }, want: map[int]string{0: "rank 2 has come twice"}},
		"another token":   {change: func(o *Options, _ *int) { o.Token = "else" }, want: map[int]string{0: "waiting for ranks [1]", 1: "this job has another token"}},
		"no rank":         {change: func(o *Options, _ *int) { o.Rank = 3 }, want: map[int]string{1: "rank 3 of 3: want a rank from 0"}},
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
			errs, meetings := make([]error, 3), make([]*meeting, 3)
			var g errgroup.Group
			for i := range errs {
				o, version := Options{Rank: i, Ranks: 3, Address: at, Token: "job"}, 22304
				if i == 1 && c.change != nil {
					c.change(&o, &version)
				}
				g.Go(func() error {
					meetings[i], errs[i] = meet(ctx, o, version, func() ([]byte, error) { return []byte("the id"), nil })
					return nil
				})
			}
			require.NoError(t, g.Wait())
			for i, err := range errs {
				switch {
				case c.want == nil:
					require.NoError(t, err)
					require.Equal(t, "the id", string(meetings[i].id))
				case c.want[i] != "":
					require.ErrorContains(t, err, c.want[i])
				}
			}
			for _, m := range meetings {
				if m != nil {
					m.close()
				}
			}
		})
	}
}

// die closes the connections without a message, like a process that was killed.
func (m *meeting) die() {
	m.mu.Lock()
	m.ending = true
	m.mu.Unlock()
	m.hangUp()
}

// TestMeetingEnds checks that a rank that closes does not break the group, and that a rank that is
// gone or aborts breaks it on all ranks.
func TestMeetingEnds(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(m *meeting)
		by   int
		want string
	}{
		"closes":           {func(m *meeting) { m.close() }, 1, ""},
		"rank 0 closes":    {func(m *meeting) { m.close() }, 0, ""},
		"is gone":          {(*meeting).die, 2, "rank 2 is gone"},
		"rank 0 is gone":   {(*meeting).die, 0, "rank 0 is gone"},
		"aborts":           {func(m *meeting) { m.abort(errors.New("rank 1 has had it")) }, 1, "rank 1 has had it"},
		"an error in both": {func(m *meeting) { m.abort(errors.New("first")); m.abort(errors.New("second")) }, 2, "first"},
	} {
		t.Run(name, func(t *testing.T) {
			at := address(t)
			meetings := make([]*meeting, 3)
			var g errgroup.Group
			for i := range meetings {
				g.Go(func() (err error) {
					meetings[i], err = meet(t.Context(), Options{Rank: i, Ranks: 3, Address: at}, 22304, func() ([]byte, error) { return nil, nil })
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
						t.Errorf("rank %d: %v", i, m.err())
					case <-time.After(100 * time.Millisecond):
					}
					continue
				}
				<-m.broken
				require.ErrorContains(t, m.err(), c.want)
			}
			for _, m := range meetings {
				m.close()
			}
		})
	}
}

// TestFromEnv checks the options from the variables of each launcher.
func TestFromEnv(t *testing.T) {
	for name, c := range map[string]struct {
		env  map[string]string
		want Options
		err  string
	}{
		"torchrun": {map[string]string{"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "host7", "MASTER_PORT": "29400", "TORCHELASTIC_RUN_ID": "run", "SLURM_PROCID": "9", "SLURM_NTASKS": "10"},
			Options{Rank: 3, Ranks: 4, Local: 1, Address: "host7:29401", Token: "run"}, ""},
		"Open MPI": {map[string]string{"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
			Options{Rank: 1, Ranks: 2, Local: 1, Address: "127.0.0.1:29501"}, ""},
		"MPICH": {map[string]string{"PMI_RANK": "0", "PMI_SIZE": "2", "MASTER_ADDR": "::1"}, Options{Ranks: 2, Address: "[::1]:29501"}, ""},
		"Slurm": {map[string]string{"SLURM_PROCID": "5", "SLURM_NTASKS": "16", "SLURM_LOCALID": "5", "SLURM_NODELIST": "gpu[07-09,12],other", "SLURM_JOB_ID": "77"},
			Options{Rank: 5, Ranks: 16, Local: 5, Address: "gpu07:29501", Token: "77"}, ""},
		"Slurm, one host": {map[string]string{"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_NODELIST": "gpu3,gpu4"}, Options{Ranks: 1, Address: "gpu3:29501"}, ""},
		"none":            {nil, Options{}, "tried torchrun (RANK, WORLD_SIZE), Open MPI ("},
		"no number":       {map[string]string{"RANK": "one", "WORLD_SIZE": "2"}, Options{}, `RANK is "one", want a number`},
		"no such rank":    {map[string]string{"RANK": "2", "WORLD_SIZE": "2"}, Options{}, "rank 2 of 2: want a rank"},
		"no port":         {map[string]string{"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "65535"}, Options{}, `MASTER_PORT is "65535"`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := FromEnv(func(v string) string { return c.env[v] })
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}
