package moe_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"sonicmoe/driver"
	"sonicmoe/moe"
	"sonicmoe/moe/trial"
)

// user is one goroutine's part: its own call, buffers and workspace of a layer
// and on a stream that it shares with others.
type user struct {
	name   string
	trial  *trial.Trial
	stream driver.Stream
	want   [2][32]byte // of a training pass and of an inference pass, alone
}

func newUser(t testing.TB, name string, l *moe.Layer, tokens int, s driver.Stream) user {
	tr, err := trial.New(testDevice(t), l, tokens, uint64(len(name)+tokens), 6)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	u := user{name: name, trial: tr, stream: s}
	for i, f := range u.passes() {
		u.want[i], err = digest(limited(t, time.Minute), tr, s, f)
		require.NoError(t, err)
	}
	return u
}

func (u user) passes() [2]moe.Forward { return [2]moe.Forward{u.trial.Args, u.trial.Inference()} }

// hammer runs the user's passes so often; every one must give the bits that it
// gave alone.
func (u user) hammer(ctx context.Context, rounds int) error {
	for round := range rounds {
		f := round % 2
		got, err := digest(ctx, u.trial, u.stream, u.passes()[f])
		if err != nil {
			return fmt.Errorf("%s, round %d: %w", u.name, round, err)
		}
		if got != u.want[f] {
			return fmt.Errorf("%s, round %d: other bits than alone", u.name, round)
		}
	}
	return nil
}

func hammer(t *testing.T, users []user, rounds int) {
	g, ctx := errgroup.WithContext(limited(t, 4*time.Minute))
	for _, u := range users {
		g.Go(func() error { return u.hammer(ctx, rounds) })
	}
	require.NoError(t, g.Wait())
}

func newStream(t testing.TB) driver.Stream {
	s, err := testDevice(t).NewStream()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// Four layers of different widths on four streams, two goroutines to each.
func TestManyLayersAtOnce(t *testing.T) {
	var users []user
	for i, c := range []struct {
		tokens int
		config moe.Config
	}{
		{12, moe.Config{Hidden: 128, Intermediate: 64, Experts: 4, TopK: 2}},
		{9, moe.Config{Hidden: 192, Intermediate: 128, Experts: 8, TopK: 3, GateUp: moe.Interleaved}},
		{30, moe.Config{Hidden: 256, Intermediate: 64, Experts: 2, TopK: 1}},
		{5, moe.Config{Hidden: 320, Intermediate: 192, Experts: 3, TopK: 2, Logits: moe.LogitsF32}},
	} {
		l, err := moe.New(context.Background(), testDevice(t), c.config, moe.WithCache(nil))
		require.NoError(t, err)
		s := newStream(t)
		for g := range 2 {
			// The two have different inputs, so that mixing them up shows.
			users = append(users, newUser(t, fmt.Sprintf("layer %d goroutine %d", i, g), l, c.tokens+g, s))
		}
	}
	hammer(t, users, rounds(3))
}

// Two calls of one layer, each on its own stream with its own workspace.
func TestTwoCallsOfOneLayer(t *testing.T) {
	l, err := moe.New(context.Background(), testDevice(t), moe.Config{Hidden: 128, Intermediate: 64, Experts: 4, TopK: 2}, moe.WithCache(nil))
	require.NoError(t, err)
	hammer(t, []user{newUser(t, "one", l, 20, newStream(t)), newUser(t, "two", l, 70, newStream(t))}, rounds(6))
}
