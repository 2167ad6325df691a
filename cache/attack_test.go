package cache

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/attack"
	"sonicmoe/internal/child"
	"sonicmoe/internal/store"
)

// Every part of an entry in these attacks follows from the entry's number and its producers.
// Each reader therefore knows the bytes that a hit must have.
const attackKeys = 24

var attackProducers = []string{"a 1", "bb 2", "ccc 3", "dddd 4"}

func attackKey(n int) store.Key { return store.NewKey([]byte("attack"), []byte{byte(n)}) }

func attackEntry(n int, producers ...string) store.Entry {
	e := store.Entry{Label: fmt.Sprint("attack ", n), PTX: randomBytes(uint64(n), 3000+100*n)}
	for i, p := range attackProducers {
		if slices.Contains(producers, p) {
			e.Images = append(e.Images, store.Image{Producer: p, Code: randomBytes(uint64(100*n+i), 2000+10*n), Log: p})
		}
	}
	return e
}

// wrong returns an error unless all parts of an entry have the right bytes.
func wrong(n int, e store.Entry) error {
	if e.PTX == nil || !attackEntry(n, attackProducers...).Covers(e) {
		return fmt.Errorf("wrong hit of entry %d", n)
	}
	return nil
}

// hits counts the hits among the first keys entries and choices. A hit with wrong bytes is an
// error.
func hits(c modules, keys int) (n int, err error) {
	for k := range keys {
		if e, o := c.Get(attackKey(k)); o == store.Hit {
			if err := wrong(k, e); err != nil {
				return n, err
			}
			n++
		}
		if v, ok := c.Cache.GetChoice(fmt.Sprint("choice ", k)); ok && string(v) != fmt.Sprint(k*k) {
			return n, fmt.Errorf("wrong hit of choice %d: %q", k, v)
		}
	}
	return n, nil
}

func fillAttacked(t testing.TB, c modules, from, to int) {
	t.Helper()
	for k := from; k < to; k++ {
		require.Equal(t, store.Stored, c.Put(attackKey(k), attackEntry(k, attackProducers[:1+k%4]...)))
		require.NoError(t, c.Cache.PutChoice(fmt.Sprint("choice ", k), fmt.Append(nil, k*k)))
	}
}

// weather does what users of a cache do, in random order, until the process is killed. It exits
// with an error if an operation fails.
func weather(c modules) {
	r := rand.New(rand.NewPCG(uint64(os.Getpid()), 1))
	bundle, ctx := filepath.Join(c.Dir(), "..", fmt.Sprint(os.Getpid(), ".tar")), context.Background()
	os.Stdout.WriteString("ready\n")
	for {
		k := r.IntN(attackKeys)
		err := error(nil)
		switch do := r.IntN(100); {
		case do < 40:
			_, err = hits(c, 1+r.IntN(attackKeys))
		case do < 65:
			if c.Put(attackKey(k), attackEntry(k, attackProducers[r.IntN(4)])) == store.Failed {
				err = c.Err()
			}
		case do < 70:
			unlock := c.Lock(ctx, attackKey(k))
			c.Put(attackKey(k), attackEntry(k, attackProducers[r.IntN(4)]))
			unlock()
		case do < 80:
			err = c.Cache.PutChoice(fmt.Sprint("choice ", k), fmt.Append(nil, k*k))
		case do < 85:
			_, err = c.ExportFile(ctx, bundle)
		case do < 90:
			if _, e := os.Stat(bundle); e == nil {
				_, err = c.ImportFile(ctx, bundle, BundleOptions{})
			}
		case do < 95:
			_, err = c.Prune(ctx, PruneOptions{MaxBytes: int64(100 << 10 * r.IntN(3))})
		default:
			var v VerifyReport
			if v, err = c.Verify(ctx); err == nil && len(v.Damaged) > 0 {
				err = fmt.Errorf("damaged: %v", v.Damaged)
			}
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(2)
		}
	}
}

// TestKilledUsersAtRandom kills processes that read, write, prune, export and import, at random
// moments. No process may meet a damaged file, a wrong hit or an error, and no damaged file may
// be left.
func TestKilledUsersAtRandom(t *testing.T) {
	c, log := testCache(t, func(o *Options) { o.Dir = filepath.Join(o.Dir, "cache") })
	r := rand.New(rand.NewPCG(1, 2))
	exe, err := os.Executable()
	require.NoError(t, err)
	type process struct {
		*exec.Cmd
		said *bytes.Buffer
	}
	start := func() process {
		p := process{exec.Command(exe), &bytes.Buffer{}}
		p.Env, p.Stdout, p.Stderr = child.Env("weather:"+c.Dir()), p.said, p.said
		require.NoError(t, p.Start())
		return p
	}
	end := func(p process) {
		require.NoError(t, p.Process.Kill())
		_ = p.Wait()
		assert.Equal(t, -1, p.ProcessState.ExitCode(), "it ended by itself: %s", p.said)
	}
	list := make([]process, attack.Rounds(3, 8))
	for i := range list {
		list[i] = start()
	}
	for range attack.Rounds(10, 250) {
		time.Sleep(time.Duration(5+r.IntN(60)) * time.Millisecond)
		i := r.IntN(len(list))
		end(list[i])
		list[i] = start()
	}
	for _, p := range list {
		end(p)
	}
	v, err := c.Verify(t.Context())
	require.NoError(t, err)
	assert.Empty(t, v.Damaged)
	_, err = hits(c, attackKeys)
	assert.NoError(t, err)
	assert.Empty(t, log.warnings())
}

// spoil returns an altered copy of a file. Some bytes may come from another file, whose content is
// the parameter other.
func spoil(r *rand.Rand, file, other []byte) []byte {
	b := bytes.Clone(file)
	at := r.IntN(len(b))
	switch r.IntN(7) {
	case 0, 1:
		for range 1 + r.IntN(8) {
			b[r.IntN(len(b))] ^= 1 << r.IntN(8)
		}
	case 2:
		b = b[:at]
	case 3:
		clear(b[at:min(len(b), at+1+r.IntN(4096))])
	case 4:
		b = append(b, randomBytes(r.Uint64(), 1+r.IntN(64))...)
	case 5:
		copy(b[at:], other[min(at, len(other)):])
	default:
		b[r.IntN(min(60, len(b)))] = byte(r.IntN(256))
	}
	return b
}

// TestSpoiltFiles alters a stored file, or puts another entry in its place. Reading must then
// give a miss.
func TestSpoiltFiles(t *testing.T) {
	c, _ := testCache(t, func(o *Options) { o.MaxBytes = -1 })
	fillAttacked(t, c, 0, attackKeys)
	r := rand.New(rand.NewPCG(1, 3))
	var files [attackKeys][]byte
	for k := range files {
		files[k] = readFile(t, modulePath(c, attackKey(k)))
	}
	try := func(k int, how string, put func(path string) error) {
		path := modulePath(c, attackKey(k))
		require.NoError(t, os.Remove(path))
		require.NoError(t, put(path))
		_, o := c.Get(attackKey(k))
		require.NotEqual(t, store.Hit, o, "entry %d, %s", k, how)
		_ = os.Remove(path)
		writeFile(t, path, files[k])
	}
	for i := range attack.Rounds(300, 10_000) {
		k := r.IntN(attackKeys)
		bad := spoil(r, files[k], files[r.IntN(attackKeys)])
		if !bytes.Equal(bad, files[k]) {
			try(k, fmt.Sprint("alteration ", i), func(path string) error { return os.WriteFile(path, bad, 0o600) })
		}
	}
	for a := range attack.Rounds(4, attackKeys) {
		for b := range attackKeys {
			if a == b {
				continue
			}
			from := modulePath(c, attackKey(a))
			try(b, "copy", func(path string) error { return os.WriteFile(path, files[a], 0o600) })
			try(b, "link", func(path string) error { return os.Link(from, path) })
			try(b, "symbolic link", func(path string) error { return os.Symlink(from, path) })
		}
	}
	n, err := hits(c, attackKeys)
	require.NoError(t, err)
	assert.Equal(t, attackKeys, n, "the right files are hits again")
}

// TestSpoiltBundles alters a bundle. No check may accept the bundle, and neither an import nor
// a reader in place may give a wrong hit.
func TestSpoiltBundles(t *testing.T) {
	const keys = 6
	full, _ := testCache(t)
	fillAttacked(t, full, 0, keys)
	var whole bytes.Buffer
	_, err := full.Export(t.Context(), &whole)
	require.NoError(t, err)
	r := rand.New(rand.NewPCG(1, 4))
	for i := range attack.Rounds(60, 4000) {
		bad := spoil(r, whole.Bytes(), whole.Bytes()[r.IntN(whole.Len()/2):])
		if bytes.Equal(bad, whole.Bytes()) {
			continue
		}
		_, err := checkBytes(t.Context(), bytes.NewReader(bad))
		require.ErrorIs(t, err, ErrBundle, "alteration %d", i)
		if i%10 == 0 {
			into, _ := testCache(t)
			_, err := into.Import(t.Context(), io.MultiReader(bytes.NewReader(bad)))
			require.ErrorIs(t, err, ErrBundle, "alteration %d", i)
			_, err = hits(into, keys)
			require.NoError(t, err, "alteration %d", i)
		}
		path := filepath.Join(t.TempDir(), "bundle.tar")
		writeFile(t, path, bad)
		layer, _ := testCache(t, func(o *Options) { o.Layers = []string{path} })
		_, err = hits(layer, keys)
		require.NoError(t, err, "alteration %d", i)
	}
}

// TestBundleRewrittenWhileRead writes one bundle over another while both are read and imported.
// Misses are allowed, wrong hits are not.
func TestBundleRewrittenWhileRead(t *testing.T) {
	const keys = 12
	var bundles [2][]byte
	for i := range bundles {
		c, _ := testCache(t)
		fillAttacked(t, c, 4*i, 4*i+8)
		var b bytes.Buffer
		_, err := c.Export(t.Context(), &b)
		require.NoError(t, err)
		bundles[i] = b.Bytes()
	}
	live := filepath.Join(t.TempDir(), "live.tar")
	writeFile(t, live, bundles[0])
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(attack.Rounds(300, 20_000))*time.Millisecond)
	defer cancel()
	var writer sync.WaitGroup
	defer writer.Wait()
	writer.Go(func() {
		f, err := os.OpenFile(live, os.O_RDWR, 0)
		if !assert.NoError(t, err) {
			return
		}
		defer f.Close()
		for i := 0; ctx.Err() == nil; i++ {
			_, err := f.WriteAt(bundles[i%2], 0)
			assert.NoError(t, err)
		}
	})
	for ctx.Err() == nil {
		layer, _ := testCache(t, func(o *Options) { o.Layers = []string{live} })
		_, err := hits(layer, keys)
		require.NoError(t, err)
		into, _ := testCache(t)
		_, _ = into.ImportFile(ctx, live, BundleOptions{})
		_, err = hits(into, keys)
		require.NoError(t, err)
	}
}
