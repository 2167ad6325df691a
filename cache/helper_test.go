package cache

import (
	"bytes"
	"context"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/store"
)

// testCache opens a cache in a new directory. The log book records the cache's warnings.
func testCache(t testing.TB, change ...func(*Options)) (modules, *logBook) {
	t.Helper()
	log := &logBook{}
	o := Options{Dir: t.TempDir(), Logger: slog.New(log)}
	for _, f := range change {
		f(&o)
	}
	return modules{Open(o)}, log
}

// logBook counts warnings.
type logBook struct {
	mu       sync.Mutex
	messages []string
}

func (b *logBook) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }
func (b *logBook) WithAttrs([]slog.Attr) slog.Handler               { return b }
func (b *logBook) WithGroup(string) slog.Handler                    { return b }
func (b *logBook) Handle(_ context.Context, r slog.Record) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.messages = append(b.messages, r.Message)
	return nil
}

func (b *logBook) warnings() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.messages
}

// randomBytes returns n bytes that depend only on the seed and n.
func randomBytes(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// testEntry returns a key and an entry of about n bytes. Both depend only on seed and n.
func testEntry(seed uint64, n int) (store.Key, store.Entry) {
	e := store.Entry{Label: "dW1 128x256", PTX: randomBytes(seed, n/2), Images: []store.Image{
		{Producer: "driver 13000", Code: randomBytes(seed+1, n/4), Log: "info: 168 registers"},
		{Producer: "ptxas 13.0.88", Code: randomBytes(seed+2, n/4)},
	}}
	return store.NewKey(e.PTX, []byte("sm_90a")), e
}

func modulePath(c modules, key store.Key) string { return c.top.path(fileName(store.KindModule, key)) }

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return bytes.Clone(b)
}

func writeFile(t testing.TB, path string, data []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, data, 0o600))
}

func setAge(t testing.TB, path string, age time.Duration) {
	t.Helper()
	then := time.Now().Add(-age)
	require.NoError(t, os.Chtimes(path, then, then))
}
