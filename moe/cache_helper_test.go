package moe_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/cache"
	"sonicmoe/driver/emulated"
	"sonicmoe/internal/faulty"
	"sonicmoe/internal/trial"
	"sonicmoe/jit"
	"sonicmoe/moe"
)

// smallConfig is a layer that starts and runs in milliseconds on the emulated
// device.
var smallConfig = moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2}

// newCounted returns a new emulated device that counts steps.
func newCounted(t testing.TB) *faulty.Device {
	t.Helper()
	dev, err := emulated.New(emulated.Options{})
	require.NoError(t, err)
	counted := faulty.Wrap(dev)
	t.Cleanup(func() {
		jit.Forget(counted)
		assert.NoError(t, counted.Close())
	})
	return counted
}

// warnings collects the messages of level Warn and above.
type warnings struct {
	mu   sync.Mutex
	said []string
}

func (w *warnings) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }
func (w *warnings) WithAttrs([]slog.Attr) slog.Handler           { return w }
func (w *warnings) WithGroup(string) slog.Handler                { return w }
func (w *warnings) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool {
		text += " " + a.String()
		return true
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, text)
	return nil
}

// started is the result of a start.
type started struct {
	layer    *moe.Layer
	compiled int
	warnings []string
}

// start creates a layer as in a new process: nothing is loaded, and start opens the cache again.
func start(t testing.TB, dev *faulty.Device, o cache.Options) started {
	t.Helper()
	w := &warnings{}
	o.Logger = newLogger(w)
	return startWith(t, dev, w, moe.WithCache(cache.Open(o)))
}

// startWith creates the layer without the kernels of backward and of small batches, because these
// load in the same way.
func startWith(t testing.TB, dev *faulty.Device, w *warnings, opts ...moe.Option) started {
	t.Helper()
	jit.Forget(dev)
	dev.ResetCounts()
	l, err := moe.New(context.Background(), dev, smallConfig, append(opts, moe.WithLogger(newLogger(w)), moe.WithoutBackward(), moe.WithoutDecode())...)
	require.NoError(t, err)
	return started{l, int(dev.Count(faulty.Compile)), w.said}
}

// forwardOn runs a training pass of the layer. The random tensors are the same in each call.
func forwardOn(t testing.TB, dev *faulty.Device, l *moe.Layer) trial.Results {
	t.Helper()
	tr, err := trial.New(dev, l, 16, 1, 6)
	require.NoError(t, err)
	defer func() { require.NoError(t, tr.Close()) }()
	require.NoError(t, tr.Run(context.Background(), tr.Args))
	r, err := tr.Results(true)
	require.NoError(t, err)
	return r
}

func newLogger(w *warnings) *slog.Logger { return slog.New(w) }
