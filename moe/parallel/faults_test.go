package parallel

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/moe"
)

// TestJoinRefuses checks that Join returns an error on every rank if the ranks differ, or if a
// group cannot run the layer.
func TestJoinRefuses(t *testing.T) {
	good := Options{Config: small, MaxTokens: 8, Deadline: deadline, Layer: []moe.Option{moe.WithoutCache()}}
	for name, c := range map[string]struct {
		change func(o *Options) // changes the options of rank 1
		all    bool             // changes the options of all ranks
		want   string
	}{
		"MaxTokens":   {func(o *Options) { o.MaxTokens = 9 }, false, "another MaxTokens: 9, this rank has 8"},
		"Chunks":      {func(o *Options) { o.Chunks = 2 }, false, "another number of chunks: 2, this rank has 0"},
		"sums":        {func(o *Options) { o.PartialSums = true }, false, "another PartialSums: 1, this rank has 0"},
		"many chunks": {func(o *Options) { o.Chunks = 4 }, true, "Chunks is 4, must be 0 to 3"},
		"width":       {func(o *Options) { o.Config.Hidden = 80 }, false, "another Config: d=80"},
		"activation":  {func(o *Options) { o.Config.Activation = spec.ReGLU }, false, "act=reglu"},
		"wrong alone": {func(o *Options) { o.Config.Hidden = 7 }, false, "Config.Hidden"},
		"lists":       {func(o *Options) { o.Config.Lists = true }, true, "Config.Lists"},
		"table":       {func(o *Options) { o.Config.LoRARank, o.Config.LoRAAdapters = 8, 2 }, true, "a group takes no table of adapters"},
		"rounding":    {func(o *Options) { o.Config.Rounding.Rule = spec.RoundNearest }, true, "a group does not round"},
		"experts":     {func(o *Options) { o.Config.NumExperts, o.Config.TopK = 2, 2 }, true, "so that each rank has an expert"},
		"no tokens":   {func(o *Options) { o.MaxTokens = 0 }, true, "MaxTokens is 0"},
	} {
		t.Run(name, func(t *testing.T) {
			list, err := devices()
			require.NoError(t, err)
			transports, err := Local(list[:3]...)
			require.NoError(t, err)
			var g errgroup.Group
			errs := make([]error, 3)
			for i := range errs {
				o := good
				if i == 1 || c.all {
					c.change(&o)
				}
				g.Go(func() error {
					_, errs[i] = Join(context.Background(), list[i], transports[i], o)
					return nil
				})
			}
			require.NoError(t, g.Wait())
			named := false
			for i, err := range errs {
				var of *Error
				require.ErrorAs(t, err, &of)
				require.Equal(t, i, of.Rank)
				require.Equal(t, "join", of.Step.Phase)
				named = named || errContains(err, c.want)
			}
			require.True(t, named, "%v", errs)
		})
	}
}

func errContains(err error, text string) bool { return strings.Contains(err.Error(), text) }

// between is a transport that calls its field share before Share, and its field move before Move.
// If the field returns an error, the call of the transport returns this error.
type between struct {
	Transport
	share func(at Step, words []int64) error
	move  func(at Step, list []Exchange) error
}

func (b between) Share(ctx context.Context, at Step, words []int64) ([][]int64, error) {
	if b.share != nil {
		if err := b.share(at, words); err != nil {
			return nil, err
		}
	}
	return b.Transport.Share(ctx, at, words)
}

func (b between) Move(ctx context.Context, at Step, s driver.Stream, list ...Exchange) error {
	if b.move != nil {
		if err := b.move(at, list); err != nil {
			return err
		}
	}
	return b.Transport.Move(ctx, at, s, list...)
}

// errDead ends a rank without notice to the other ranks, like a killed process.
var errDead = errors.New("dead")

// TestPassFaults checks that a fault of one rank returns an error on all ranks, and that the errors
// of the other ranks name the fault.
func TestPassFaults(t *testing.T) {
	dieAt := func(phase string) func(at Step, _ []Exchange) error {
		return func(at Step, _ []Exchange) error {
			if at.Phase == phase {
				return errDead
			}
			return nil
		}
	}
	for name, c := range map[string]struct {
		of   between
		args func(a *Args)
		// want is part of the errors of the other ranks. missing reports whether these errors come
		// from the deadline.
		want    string
		missing bool
	}{
		"dead before the counts":   {of: between{share: func(Step, []int64) error { return errDead }}, want: "counts: waiting for rank 1", missing: true},
		"dead before the dispatch": {of: between{move: dieAt("dispatch")}, want: "dispatch: waiting for rank 1", missing: true},
		"dead before the return":   {of: between{move: dieAt("return")}, want: "return, chunk 0: waiting for rank 1", missing: true},
		"wrong count": {of: between{move: func(_ Step, list []Exchange) error {
			list[0].SendBytes[2]--
			return nil
		}}, want: "rank 1 sends"},
		"wrong expectation": {of: between{move: func(at Step, list []Exchange) error {
			list[len(list)-1].ReceiveBytes[0]++
			return nil
		}}, want: "rank 1 of 3: dispatch: rank 0 sends"},
		"fewer exchanges": {of: between{move: func(_ Step, list []Exchange) error {
			list[3] = Exchange{SendBytes: make([]int64, 3), ReceiveBytes: make([]int64, 3)}
			return nil
		}}, want: "rank 1"},
		"too many rows": {of: between{share: func(_ Step, words []int64) error {
			words[2] += 1000
			return nil
		}}, want: "its window has room for"},
		"another step":    {of: between{share: func(_ Step, _ []int64) error { return nil }}, args: func(a *Args) { a.X.Shape.Dims[1]++ }, want: "rank 1 of 3: counts: X is"},
		"workspace":       {args: func(a *Args) { a.Workspace.Bytes-- }, want: "Rank.Sizes"},
		"weights":         {args: func(a *Args) { a.W2.Shape.Dims[0]++ }, want: "W2 is"},
		"too many tokens": {args: func(a *Args) { a.X.Shape.Dims[0] = 100 }, want: "Options.MaxTokens"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.missing {
				t.Parallel() // the cases wait for their deadlines together
			}
			of := testCase{config: small, tokens: []int{9, 8, 7}}
			devs, err := devices()
			require.NoError(t, err)
			tr, members := of.oneGPU(t, devs[0]), join(t, of, Options{Layer: forwardOnly})
			if c.missing {
				for _, m := range members {
					m.Deadline = 3 * time.Second
				}
			}
			errs := make([]error, 3)
			require.NoError(t, each(members, func(i int, m *member) error {
				if err := m.fill(tr, []int{0, 9, 17}[i], of.tokens[i]); err != nil {
					return err
				}
				if i == 1 {
					if c.args != nil {
						c.args(&m.args)
					}
					c.of.Transport = m.transport
					m.transport = c.of
				}
				errs[i] = m.pass(&m.args, c.missing && i == 1)
				return nil
			}))
			named := 0
			for i, err := range errs {
				require.Error(t, err, "rank %d", i)
				if i != 1 {
					var of *Error
					require.ErrorAs(t, err, &of)
					require.Equal(t, []int{i, 3}, []int{of.Rank, of.Ranks})
					if errContains(err, c.want) {
						named++
					}
				}
			}
			require.Equal(t, 2, named, "%v", errs)
			for _, m := range members { // the group stays broken
				require.Error(t, m.pass(&m.args, false))
			}
		})
	}
}

// pass runs a forward pass. If the rank dies, its error does not reach the other ranks.
func (m *member) pass(a *Args, dies bool) error {
	if dies {
		m.transport = mute{m.transport}
	}
	return m.Forward(context.Background(), m.stream, *a)
}

// mute is a transport that tells the other ranks nothing about an error.
type mute struct{ Transport }

func (mute) Abort(error) {}
