package cache

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/store"
)

func TestReadOnlyAndLayers(t *testing.T) {
	shared, _ := testCache(t)
	key, e := testEntry(1, 100)
	require.Equal(t, store.Stored, shared.Put(key, e))
	require.Equal(t, store.Stored, shared.PutChoice("a", []byte("shared")))
	setAge(t, modulePath(shared, key), 100*time.Hour)

	t.Run("read-only", func(t *testing.T) {
		c := modules{Open(Options{Dir: shared.Dir(), ReadOnly: true})}
		got, o := c.Get(key)
		assert.Equal(t, store.Hit, o)
		assert.Equal(t, e, got)
		other, otherEntry := testEntry(2, 100)
		assert.Equal(t, store.ReadOnly, c.Put(other, otherEntry))
		assert.Equal(t, store.ReadOnly, c.PutChoice("a", nil))
		assert.Equal(t, store.ReadOnly, c.Delete(key))
		assert.Equal(t, "", c.Dir())
		_, err := c.Prune(context.Background(), PruneOptions{MaxBytes: -1})
		assert.Error(t, err)
	})
	t.Run("read-only and missing", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "none")
		c, log := testCache(t, func(o *Options) { o.Dir, o.ReadOnly = dir, true })
		_, o := c.Get(key)
		assert.Equal(t, store.Disabled, o)
		assert.Len(t, log.warnings(), 1)
		assert.NoDirExists(t, dir)
	})
	t.Run("layers", func(t *testing.T) {
		c, _ := testCache(t, func(o *Options) { o.Layers = []string{shared.Dir()} })
		got, o := c.Get(key)
		assert.Equal(t, store.Hit, o)
		assert.Equal(t, e, got)
		assert.Equal(t, store.Unchanged, c.Put(key, e), "a layer has the entry")
		more := store.Entry{PTX: e.PTX, Images: []store.Image{{Producer: "driver 14000", Code: []byte("new")}}}
		assert.Equal(t, store.Stored, c.Put(key, more))
		got, _ = c.Get(key)
		assert.Len(t, got.Images, 3, "the new image does not hide the layer's images")
		assert.Equal(t, store.Stored, c.PutChoice("a", []byte("own")))
		value, _ := c.GetChoice("a")
		assert.Equal(t, "own", string(value), "the first directory wins")
		assert.Equal(t, store.Deleted, c.DeleteChoice("a"))
		value, _ = c.GetChoice("a")
		assert.Equal(t, "shared", string(value))
	})
	t.Run("a damaged first directory", func(t *testing.T) {
		c, log := testCache(t, func(o *Options) { o.Layers = []string{shared.Dir()} })
		writeFile(t, modulePath(c, key), []byte("x"))
		_, o := c.Get(key)
		assert.Equal(t, store.Hit, o)
		assert.Len(t, log.warnings(), 1)
	})
	fi, err := os.Stat(modulePath(shared, key))
	require.NoError(t, err)
	assert.Greater(t, time.Since(fi.ModTime()), 99*time.Hour, "read-only files are not touched")
}

func TestPlaces(t *testing.T) {
	home, a, b := t.TempDir(), t.TempDir(), t.TempDir()
	t.Setenv("XDG_CACHE_HOME", home)
	t.Setenv("HOME", home)
	t.Setenv("LocalAppData", home)
	standard, err := store.DefaultDir()
	require.NoError(t, err)
	assert.True(t, strings.HasPrefix(standard, home))
	list := func(dirs ...string) string { return strings.Join(dirs, string(os.PathListSeparator)) }
	for _, tc := range []struct {
		env     string
		options Options
		want    []string
	}{
		{"", Options{}, []string{standard}},
		{"", Options{Layers: []string{a}}, []string{standard, a}},
		{a, Options{}, []string{a}},
		{list(a, b), Options{}, []string{a, b}},
		{list(a, "", b), Options{}, []string{a, b}},
		{list("", b), Options{}, []string{standard, b}},
		{list(a, b), Options{Dir: b}, []string{b}},
		{"off", Options{Layers: []string{a}}, nil},
		{"off", Options{Dir: a}, []string{a}},
		{a, Options{Dir: "off"}, nil},
	} {
		t.Setenv(envDir, tc.env)
		got, err := directories(tc.options)
		assert.NoError(t, err)
		assert.Equal(t, tc.want, got, fmt.Sprintf("%+v", tc))
	}
	t.Setenv(envDir, "off")
	c := modules{Open(Options{})}
	_, o := c.Get(store.NewKey())
	assert.Equal(t, store.Disabled, o)
	assert.NoError(t, c.Err(), "a cache that is off reports no error")

	if runtime.GOOS == "linux" {
		t.Setenv(envDir, "")
		t.Setenv("XDG_CACHE_HOME", "")
		t.Setenv("HOME", "")
		c, log := testCache(t, func(o *Options) { o.Dir = "" })
		assert.Equal(t, store.Disabled, c.Put(store.NewKey(), store.Entry{}))
		assert.ErrorContains(t, c.Err(), envDir)
		assert.Len(t, log.warnings(), 1)
	}
}

func TestModes(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("this system has no file modes")
	}
	c := modules{Open(Options{Dir: filepath.Join(t.TempDir(), "new")})}
	require.Equal(t, store.Stored, c.PutChoice("a", nil))
	for path, want := range map[string]os.FileMode{
		c.Dir(): 0o700, c.top.dir: 0o700, c.top.path(fileName(store.KindChoice, choiceKey("a"))): 0o600,
	} {
		fi, err := os.Stat(path)
		require.NoError(t, err)
		assert.Equal(t, want, fi.Mode().Perm(), path)
	}
}

// TestModuleOfUseInALaterLayer checks that GetFor returns the first entry that has machine code
// of a wanted producer, even if earlier cache layers hold the module without that code.
func TestModuleOfUseInALaterLayer(t *testing.T) {
	key, e := testEntry(1, 100)
	images := map[string][]store.Image{
		"PTX":    nil,
		"driver": e.Images[:1],
		"ptxas":  e.Images[1:],
		"both":   e.Images,
	}
	for _, c := range []struct {
		places []string
		use    string
		want   int // index of the place whose entry is returned; -1 for none
	}{
		{[]string{"PTX", "ptxas"}, "ptxas 13.0.88", 1},
		{[]string{"PTX", "driver", "ptxas", "both"}, "ptxas 13.0.88", 2},
		{[]string{"driver", "PTX", "both"}, "ptxas 13.0.88", 2},
		{[]string{"ptxas", "both"}, "ptxas 13.0.88", 0},
		{[]string{"PTX", "driver"}, "driver 14000", 0},
		{[]string{"none", "driver", "PTX"}, "driver 14000", 1},
		{[]string{"damaged", "PTX"}, "driver 14000", 1},
		{[]string{"PTX", "damaged"}, "driver 14000", 0},
		{[]string{"PTX", "damaged", "both"}, "driver 13000", 2},
		{[]string{"none", "none"}, "driver 13000", -1},
	} {
		t.Run(strings.Join(c.places, ", ")+" for "+c.use, func(t *testing.T) {
			var dirs []string
			for _, place := range c.places {
				in, _ := testCache(t)
				dirs = append(dirs, in.Dir())
				switch place {
				case "none":
				case "damaged":
					writeFile(t, modulePath(in, key), []byte("damage"))
				default:
					require.Equal(t, store.Stored, in.Put(key, store.Entry{Label: place, PTX: e.PTX, Images: images[place]}))
				}
			}
			got, o := modules{Open(Options{Dir: dirs[0], Layers: dirs[1:]})}.GetFor(key, func(producer string) bool { return producer == c.use })
			if c.want < 0 {
				assert.Equal(t, store.Miss, o)
				return
			}
			assert.Equal(t, store.Hit, o)
			assert.Equal(t, c.places[c.want], got.Label)
			assert.Equal(t, len(images[got.Label]), len(got.Images))
		})
	}
}

// TestChoiceOfUseInALaterLayer checks that GetChoiceFor returns the first value that the caller
// can use, even if earlier cache layers hold other values.
func TestChoiceOfUseInALaterLayer(t *testing.T) {
	for _, c := range []struct {
		places []string
		use    string
		want   string
		o      store.Outcome
	}{
		{[]string{"stale", "valid", "other"}, "valid", "valid", store.Hit},
		{[]string{"", "stale", "valid"}, "valid", "valid", store.Hit},
		{[]string{"damaged", "stale", "valid"}, "valid", "valid", store.Hit},
		{[]string{"stale", "damaged", "other"}, "valid", "stale", store.Hit},
		{[]string{"", ""}, "valid", "", store.Miss},
		{[]string{"", "damaged"}, "valid", "", store.Damaged},
	} {
		t.Run(strings.Join(c.places, ", "), func(t *testing.T) {
			var dirs []string
			for _, place := range c.places {
				in, _ := testCache(t)
				dirs = append(dirs, in.Dir())
				switch place {
				case "":
				case "damaged":
					writeFile(t, in.top.path(fileName(store.KindChoice, choiceKey("up"))), []byte("damage"))
				default:
					require.Equal(t, store.Stored, in.PutChoice("up", []byte(place)))
				}
			}
			in := modules{Open(Options{Dir: dirs[0], Layers: dirs[1:]})}
			got, o := in.GetChoiceFor("up", func(value []byte) bool { return string(value) == c.use })
			assert.Equal(t, c.o, o)
			assert.Equal(t, c.want, string(got))
			s := in.Stats()
			assert.EqualValues(t, 1, s.Hits+s.Misses+s.Damaged, "one look")
		})
	}
}
