package parallel

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/drivertest"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
	"sonicmoe/ptx/emu"
)

// An emulated device runs work when it is queued, so a missing wait between streams has no effect.
// The types of this file queue work, and run it in a random order that streams and events allow.

// order has the queued work of all streams of a test.
type order struct {
	mu      sync.Mutex
	random  *rand.Rand
	streams []*looseStream
}

// task is a piece of work of a stream. It may run when the function ready returns true.
type task struct {
	ready func() bool
	run   func() error
}

func always() bool { return true }

// runUntil runs tasks until the function done returns true. The caller holds the lock.
func (o *order) runUntil(done func() bool) error {
	for !done() {
		var able []*looseStream
		for _, s := range o.streams {
			if len(s.tasks) > 0 && s.tasks[0].ready() {
				able = append(able, s)
			}
		}
		if len(able) == 0 {
			return errors.New("streams wait for each other")
		}
		s := slices.MaxFunc(able, func(a, b *looseStream) int { return cmp.Compare(a.rank, b.rank) })
		if o.random.IntN(8) == 0 {
			s = able[o.random.IntN(len(able))]
		}
		next := s.tasks[0]
		s.tasks = s.tasks[1:]
		if err := next.run(); err != nil {
			return err
		}
	}
	return nil
}

// looseDevice is the device of one rank. All ranks of a test have the memory of one emulated device.
type looseDevice struct {
	gpu.Device
	*order
	// waits is the number of calls of Wait of the rank's streams. The call with the number drop, from
	// 1, has no effect.
	waits, drop int
}

// Reach implements Peer.
func (d *looseDevice) Reach(driver.Device) (bool, error) { return true, nil }

func (d *looseDevice) NewStream() (driver.Stream, error) {
	s, err := d.Device.NewStream()
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	loose := &looseStream{Stream: s.(gpu.Stream), dev: d, rank: d.random.Float64()}
	d.streams = append(d.streams, loose)
	return loose, nil
}

func (d *looseDevice) NewEvent() (driver.Event, error) { return &looseEvent{order: d.order}, nil }

type looseStream struct {
	gpu.Stream
	dev   *looseDevice
	tasks []task
	// Mostly the stream with the largest random rank runs, so that a stream may run far ahead of others.
	rank float64
}

func (s *looseStream) add(run func() error) error {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	s.tasks = append(s.tasks, task{always, run})
	return nil
}

func (s *looseStream) Launch(f gpu.Function, l *gpu.Launch, params []byte) error {
	launch, copied := *l, slices.Clone(params)
	return s.add(func() error { return s.Stream.Launch(f, &launch, copied) })
}

func (s *looseStream) Copy(dst, src driver.DevicePtr, n int64) error {
	return s.add(func() error { return s.Stream.Copy(dst, src, n) })
}

func (s *looseStream) Fill32(dst driver.DevicePtr, value uint32, count int64) error {
	return s.add(func() error { return s.Stream.Fill32(dst, value, count) })
}

func (s *looseStream) CopyToDevice(dst driver.DevicePtr, src []byte) error {
	copied := bytes.Clone(src)
	return s.add(func() error { return s.Stream.CopyToDevice(dst, copied) })
}

func (s *looseStream) CopyToHost(dst []byte, src driver.DevicePtr) error {
	err := s.add(func() error { return s.Stream.CopyToHost(dst, src) })
	return errors.Join(err, s.Synchronize(context.Background()))
}

func (s *looseStream) Synchronize(context.Context) error {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	return s.dev.runUntil(func() bool { return len(s.tasks) == 0 })
}

func (s *looseStream) Wait(e driver.Event) error {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	if s.dev.waits++; s.dev.waits == s.dev.drop {
		return nil
	}
	if passed := e.(*looseEvent).passed; passed != nil {
		s.tasks = append(s.tasks, task{func() bool { return *passed }, func() error { return nil }})
	}
	return nil
}

// looseEvent is an event. passed, unless nil, reports whether the latest Record has run.
type looseEvent struct {
	*order
	passed *bool
}

func (e *looseEvent) Record(s driver.Stream) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	passed := new(bool)
	e.passed = passed
	of := s.(*looseStream)
	of.tasks = append(of.tasks, task{always, func() error {
		*passed = true
		return nil
	}})
	return nil
}

func (e *looseEvent) Done() (bool, error) { return e.passed == nil || *e.passed, nil }
func (e *looseEvent) Synchronize(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.runUntil(func() bool { return e.passed == nil || *e.passed })
}
func (e *looseEvent) Since(driver.Event) (time.Duration, error) { return 0, nil }
func (e *looseEvent) Close() error                              { return nil }

// loose returns a device for each rank of a case, all with the memory of dev.
func loose(c testCase, dev driver.Device, seed uint64) (list []driver.Device) {
	of := &order{random: rand.New(rand.NewPCG(seed, 39))}
	for range c.tokens {
		list = append(list, &looseDevice{Device: dev.(gpu.Device), order: of})
	}
	return list
}

func orderCases() []testCase {
	adapted := small
	adapted.LoRARank, adapted.LoRAAlpha, adapted.SharedExperts = 8, 4, 1
	return []testCase{{name: "order", config: small, tokens: []int{20, 0, 17}}, {name: "order", config: small, tokens: []int{30, 40}},
		{name: "order", config: adapted, tokens: []int{20, 17}, losses: moe.Losses{Balance: 1, Sequence: 37}}}
}

// TestOrder checks that passes have the bits of one device in whatever order the streams run.
func TestOrder(t *testing.T) {
	if drivertest.Name() != "emulated" {
		t.Skip("a GPU has an order of its own")
	}
	seeds := 4
	if kt.Long() {
		seeds = 100
	} else if testing.Short() {
		seeds = 1
	}
	for _, c := range orderCases() {
		for seed := range seeds {
			chunks := c.chunks(seed + 2)
			t.Run(fmt.Sprintf("%s seed %d", c, seed), func(t *testing.T) {
				all, err := devices()
				require.NoError(t, err)
				c.devices = loose(c, all[1], uint64(seed))
				backwardBits(t, c, chunks, seed%3 == 1, seed%2 == 0)
			})
		}
	}
}

// spareWaits are the waits of TestMissingWaits without which the results stay right, because a later
// wait covers them.
var spareWaits = map[int]string{
	3:  "the other rank has counted, so its stream has read what the pass before has sent",
	8:  "the same",
	12: "the copies of the last chunk come later on this stream of copies",
	13: "the same", 14: "the same",
	15: "the exchange of the last chunk also waits for the other rank",
	17: "the other rank has counted, so its stream has read what the pass before has sent",
	25: "the exchange of the last chunk has waited for the second stream of products",
}

// TestMissingWaits leaves out one wait of rank 1 in a forward pass. It checks that for each wait that
// is not spare the results of some order of the streams are not the results of one device, or that a
// kernel fails.
func TestMissingWaits(t *testing.T) {
	if drivertest.Name() != "emulated" {
		t.Skip("a GPU has an order of its own")
	}
	c := testCase{config: moe.Config{Hidden: 16, Intermediate: 16, NumExperts: 40, TopK: 4}, tokens: []int{20, 30}}
	all, err := devices()
	require.NoError(t, err)
	tr := c.oneGPU(t, all[0])
	want, err := tr.Results(false)
	require.NoError(t, err)
	const most = 300 // the number of orders to try
	var dev driver.Device
	const waits = 26
	for drop := 1; drop <= waits; drop++ {
		if spareWaits[drop] != "" || testing.Short() && drop%5 != 1 {
			continue
		}
		seed, right := uint64(0), true
		for ; right && seed < most; seed++ {
			if dev == nil {
				dev, err = emulated.New(emulated.Options{Timing: emu.Early})
				require.NoError(t, err)
			}
			list := loose(c, dev, seed)
			right, err = c.rightWithout(list, drop, tr, want.O)
			if err != nil { // a kernel failed, and the device is broken
				right, dev = false, nil
			}
			if made := list[1].(*looseDevice).waits; err == nil {
				require.Equal(t, waits, made)
			}
		}
		require.False(t, right, "nothing is wrong without wait %d", drop)
	}
}

// rightWithout reports whether a forward pass of two ranks has the wanted results if a wait of rank 1
// has no effect.
func (c testCase) rightWithout(list []driver.Device, drop int, tr *trial.Trial, want []uint16) (bool, error) {
	transports, err := Local(list...)
	if err != nil {
		return false, err
	}
	var g errgroup.Group
	right := [2]bool{}
	for i, dev := range list {
		g.Go(func() error {
			o := Options{Config: c.config, MaxTokens: slices.Max(c.tokens), Chunks: 2, Layer: []moe.Option{moe.WithoutCache(), moe.WithoutBackward()}}
			r, err := Join(context.Background(), dev, transports[i], o)
			if err != nil {
				return err
			}
			r.longPiece = 0
			m, from := &member{Rank: r, dev: dev, memory: moe.NewArena(dev)}, i*c.tokens[0]
			if err := m.fill(tr, from, c.tokens[i]); err != nil {
				return err
			}
			if err := m.stream.Synchronize(context.Background()); err != nil {
				return err
			}
			if i == 1 {
				dev.(*looseDevice).startDropping(drop)
			}
			if err := m.Forward(context.Background(), m.stream, m.args); err != nil {
				return err
			}
			// Later work of the stream may overwrite everything that the pass has sent.
			if err := m.stream.Fill32(m.args.Workspace.Ptr, 0xffffffff, m.args.Workspace.Bytes/4); err != nil {
				return err
			}
			got := make([]uint16, c.tokens[i]*c.config.Hidden)
			err = moe.Read(m.stream, m.args.O, got)
			right[i] = slices.Equal(got, want[from*c.config.Hidden:][:len(got)])
			return err
		})
	}
	err = g.Wait()
	return right[0] && right[1], err
}

// TestMissingWaitsOfMove leaves out one wait of rank 1 in two Moves, and checks that for each wait some order
// of the streams has wrong bytes.
func TestMissingWaitsOfMove(t *testing.T) {
	dev, err := emulated.New(emulated.Options{Timing: emu.Early})
	require.NoError(t, err)
	const waits = 2 * 8 // in each Move two for the other rank, and two for each of three lanes
	for drop := range waits + 1 {
		seed, right := uint64(0), true
		for ; right && seed < 300; seed++ {
			list := loose(testCase{tokens: make([]int, 2)}, dev, seed)
			right = movedRight(t, list, drop)
			require.Equal(t, waits, list[1].(*looseDevice).waits)
		}
		require.Equal(t, drop == 0, right, "wait %d", drop)
	}
}

// movedRight runs two Moves of two ranks, and reports whether both ranks receive the right bytes. A wait of
// rank 1 has no effect. Each rank overwrites what it has sent and received.
func movedRight(t *testing.T, list []driver.Device, drop int) bool {
	const pieces, size = 9, 16 // each of the four streams gets two or three
	transports, err := Local(list...)
	require.NoError(t, err)
	var g errgroup.Group
	right := [2]bool{}
	for own, dev := range list {
		memory, err := dev.Alloc(4 * pieces * size)
		require.NoError(t, err)
		defer func() { require.NoError(t, dev.Free(memory)) }()
		g.Go(func() error {
			s, err := dev.NewStream()
			if err != nil {
				return err
			}
			if own == 1 {
				dev.(*looseDevice).startDropping(drop)
			}
			part := func(i int) driver.DevicePtr { return memory + driver.DevicePtr(i*pieces*size) }
			var all []Exchange
			for i := range driver.DevicePtr(pieces) {
				e := Exchange{Send: part(0) + i*size, Receive: part(1) + i*size, SendBytes: []int64{size, size}, ReceiveBytes: []int64{size, size}, InPlace: true}
				e.SendBytes[own], e.ReceiveBytes[own] = 0, 0
				all = append(all, e)
			}
			fill := func(i, value int) error { return s.Fill32(part(i), uint32(value), pieces*size/4) }
			for turn := range 2 {
				err := errors.Join(fill(0, 10*turn+own+1), fill(1, 100), transports[own].Move(context.Background(), Step{Phase: "test", Chunk: turn}, s, all...),
					s.Copy(part(2+turn), part(1), pieces*size), fill(0, 101), fill(1, 102))
				if err != nil {
					return err
				}
			}
			got := make([]byte, 2*pieces*size)
			err = s.CopyToHost(got, part(2))
			right[own] = slices.Equal(got, append(bytes.Repeat([]byte{byte(2 - own), 0, 0, 0}, pieces*size/4), bytes.Repeat([]byte{byte(12 - own), 0, 0, 0}, pieces*size/4)...))
			return err
		})
	}
	require.NoError(t, g.Wait())
	return right[0] && right[1]
}

// startDropping makes the call of Wait with this number, from now on, have no effect.
func (d *looseDevice) startDropping(drop int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waits, d.drop = 0, drop
}
