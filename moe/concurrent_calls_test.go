package moe_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/driver/open"
	"sonicmoe/internal/num"
	"sonicmoe/internal/spec"
	"sonicmoe/internal/trial"
	"sonicmoe/jit"
	"sonicmoe/moe"
)

// user is the state of one goroutine: its own call, buffers and workspace of a layer, and a stream.
// Other users may have the same stream.
type user struct {
	name   string
	trial  *trial.Trial
	stream driver.Stream
	want   [2][32]byte // the digests of a training pass and an inference pass without other users
}

func newUser(t testing.TB, name string, dev driver.Device, l *moe.Layer, tokens int, s driver.Stream) user {
	tr, err := trial.New(dev, l, tokens, uint64(len(name)+tokens), 6)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	u := user{name: name, trial: tr, stream: s}
	for i, f := range u.passes() {
		u.want[i], err = digest(limited(t, time.Minute), tr, s, f)
		require.NoError(t, err)
	}
	return u
}

func (u user) passes() [2]moe.ForwardArgs {
	return [2]moe.ForwardArgs{u.trial.Args, u.trial.Inference()}
}

// hammer runs the user's passes repeatedly. Every pass must have the bits that it has without other
// users.
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
	g, ctx := errgroup.WithContext(limited(t, time.Hour))
	for _, u := range users {
		g.Go(func() error { return u.hammer(ctx, rounds) })
	}
	require.NoError(t, g.Wait())
}

func newStream(t testing.TB, dev driver.Device) driver.Stream {
	s, err := dev.NewStream()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// sizedConfig is a layer and the number of tokens of a pass.
type sizedConfig struct {
	tokens int
	config moe.Config
}

// fourWidths returns four layers that differ in every size. Under the race detector they are as
// small as possible, so that a round takes only a third of a second.
func fourWidths() []sizedConfig {
	if raceDetector {
		return []sizedConfig{
			{1, moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 3, TopK: 1}},
			{1, moe.Config{Hidden: 192, Intermediate: 64, NumExperts: 4, TopK: 1, GateUp: spec.Interleaved}},
			{1, moe.Config{Hidden: 256, Intermediate: 64, NumExperts: 2, TopK: 1}},
			{1, moe.Config{Hidden: 128, Intermediate: 128, NumExperts: 2, TopK: 1, Logits: moe.F32}},
		}
	}
	return []sizedConfig{
		{12, moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2}},
		{9, moe.Config{Hidden: 192, Intermediate: 128, NumExperts: 8, TopK: 3, GateUp: spec.Interleaved}},
		{30, moe.Config{Hidden: 256, Intermediate: 64, NumExperts: 2, TopK: 1}},
		{5, moe.Config{Hidden: 320, Intermediate: 192, NumExperts: 3, TopK: 2, Logits: moe.F32}},
	}
}

// TestManyLayersAtOnce runs four layers of different widths on four streams, with two goroutines
// for each. All 1,000 rounds run only on a GPU, or in a long run with a -timeout of an hour.
func TestManyLayersAtOnce(t *testing.T) {
	dev := testDevice(t)
	var users []user
	for i, c := range fourWidths() {
		l := newLayer(t, dev, c.config, moe.WithoutBackward())
		s := newStream(t, dev)
		for g := range 2 {
			// The users of a layer have different inputs, so that the test detects mixed buffers.
			users = append(users, newUser(t, fmt.Sprintf("layer %d goroutine %d", i, g), dev, l, c.tokens+g, s))
		}
	}
	hammer(t, users, rounds(3))
}

// TestTwoCallsOfOneLayer runs two calls of one layer, each on its own stream with
// its own workspace.
func TestTwoCallsOfOneLayer(t *testing.T) {
	dev := testDevice(t)
	l := newLayer(t, dev, moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2}, moe.WithoutBackward())
	hammer(t, []user{newUser(t, "one", dev, l, 20, newStream(t, dev)), newUser(t, "two", dev, l, 70, newStream(t, dev))}, rounds(6))
}

// everyDevice returns all GPUs of the driver, or two emulated devices if the tests run without a
// GPU.
func everyDevice(t testing.TB) (list []driver.Device) {
	if onGPU() {
		var err error
		list, err = open.All(context.Background(), "cuda")
		require.NoError(t, err)
	} else {
		for range 2 {
			dev, err := emulated.New(emulated.Options{})
			require.NoError(t, err)
			list = append(list, dev)
		}
	}
	t.Cleanup(func() {
		for _, dev := range list {
			jit.Forget(dev)
			require.NoError(t, dev.Close())
		}
	})
	return list
}

// TestSeveralDevices runs the same layer on all devices at once. First each device has one
// goroutine. Then one goroutine queues on all devices before it waits.
func TestSeveralDevices(t *testing.T) {
	devices := everyDevice(t)
	if len(devices) < 2 {
		t.Skip("the driver shows one GPU; this test needs two at least")
	}
	var users []user
	for i, dev := range devices {
		l := newLayer(t, dev, faultConfig, moe.WithoutBackward())
		users = append(users, newUser(t, fmt.Sprintf("device %d", i), dev, l, 20+i, newStream(t, dev)))
	}
	hammer(t, users, rounds(4))
	ctx := limited(t, time.Minute)
	for range min(rounds(4), 100) {
		for _, u := range users {
			require.NoError(t, u.trial.Poison())
			require.NoError(t, u.trial.Stream().Synchronize(ctx))
			require.NoError(t, u.trial.Call().Forward(u.stream, u.trial.Args))
		}
		for _, u := range users {
			require.NoError(t, u.stream.Synchronize(ctx))
			got, err := hashed(u.trial, true)
			require.NoError(t, err)
			require.Equal(t, u.want[0], got, u.name)
		}
	}
	a, b := users[0], users[1]
	require.ErrorIs(t, a.trial.Call().Forward(b.stream, a.trial.Args), driver.ErrInvalid, "a stream of another device")
}

// TestConcurrentCalls runs one layer on several goroutines, each with its own call
// and buffers.
func TestConcurrentCalls(t *testing.T) {
	dev := testDevice(t)
	l := newLayer(t, dev, tiny, moe.WithoutBackward())
	var g errgroup.Group
	for i := range 4 {
		tr, err := trial.New(dev, l, 40+30*i, uint64(i), 6)
		require.NoError(t, err)
		defer tr.Close()
		alone := forward(t, tr, tr.Args)
		g.Go(func() error {
			for range 3 {
				if err := tr.Run(testContext(t), tr.Args); err != nil {
					return err
				}
				r, err := tr.Results(true)
				if err != nil {
					return err
				}
				if fmt.Sprint(r) != fmt.Sprint(alone) {
					return fmt.Errorf("%d tokens: other bits beside other calls", tr.Tokens)
				}
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
}

// TestCallInUse checks that if two goroutines use a call at the same time, one of them gets an
// error, and the pass of the other is complete.
func TestCallInUse(t *testing.T) {
	tr := trialOn(t, testDevice(t), tiny, 10)
	inside, leave := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(inside); <-leave })
	tr.Call().Observe(func(string, driver.Stream) error { once(); return nil })
	done := make(chan error)
	go func() { done <- tr.Call().Forward(tr.Stream(), tr.Args) }()
	<-inside
	err := tr.Call().Forward(tr.Stream(), tr.Args)
	wantArgError(t, err, "Call")
	assert.ErrorContains(t, err, "in use")
	close(leave)
	require.NoError(t, <-done)
	tr.Call().Observe(nil)
	require.NoError(t, tr.Run(testContext(t), tr.Args))
}

// TestConcurrentBackwards checks that concurrent calls of a layer, each on its own stream, do not
// affect each other.
func TestConcurrentBackwards(t *testing.T) {
	var g errgroup.Group
	l := trialOn(t, testDevice(t), tiny, 1).Layer
	for i := range 3 {
		tr, err := trial.New(testDevice(t), l, 40+30*i, uint64(i), 6)
		require.NoError(t, err)
		defer tr.Close()
		withBackward(t, tr, moe.F32)
		require.NoError(t, tr.RunBackward(testContext(t), tr.Back))
		alone := gradients(t, tr, tr.Back)
		g.Go(func() error {
			for range rounds(2) {
				if err := tr.RunBackward(testContext(t), tr.Back); err != nil {
					return err
				}
				for name, of := range wanted(&tr.Back) {
					got, err := tr.Rows(*of, 1, nil)
					if err != nil {
						return err
					}
					if !slices.Equal(got.Bits, alone[name].Bits) || !bytes.Equal(num.Bytes(got.F32), num.Bytes(alone[name].F32)) {
						return fmt.Errorf("%d tokens: other bits of %s beside other calls", tr.Tokens, name)
					}
				}
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
}
