package autotune_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/autotune"
	"sonicmoe/cache"
	"sonicmoe/jit"
)

var key = autotune.Key{Subject: "copy", GPU: "NVIDIA H200", SMs: 132, Bucket: autotune.BucketOf(1536)}

func digestOf(t testing.TB) func(point) (string, error) {
	return func(p point) (string, error) {
		s, err := copierSource(p)
		if err != nil {
			return "", err
		}
		return autotune.Digest([]jit.Source{s}), nil
	}
}

func TestPick(t *testing.T) {
	digest := digestOf(t)
	chosen := point{Threads: 64}
	now, err := digest(chosen)
	require.NoError(t, err)
	encode := func(p point, digest string) []byte {
		value, err := autotune.Encode(p, digest)
		require.NoError(t, err)
		return value
	}
	for name, c := range map[string]struct {
		stored []byte
		origin autotune.Origin
		says   string
	}{
		"nothing stored":      {nil, autotune.CostModel, ""},
		"valid":               {encode(chosen, now), autotune.Tuned, ""},
		"another digest":      {encode(chosen, "0123456789abcdef"), autotune.Stale, "tune again"},
		"point that is gone":  {encode(point{64, refused}, now), autotune.Stale, "no such kernel"},
		"no JSON":             {[]byte("half a rec"), autotune.Unreadable, "unreadable"},
		"of another version":  {[]byte(`{"Version":2,"Point":{"Threads":64}}`), autotune.Unreadable, "version 2"},
		"a field twice":       {append(encode(chosen, now)[:1:1], []byte(`"Version":1,`+string(encode(chosen, now)[1:]))...), autotune.Unreadable, "the field Version stands twice"},
		"of another point":    {[]byte(`{"Version":1,"Point":"fast"}`), autotune.Unreadable, "unreadable"},
		"empty":               {[]byte{}, autotune.Unreadable, "unreadable"},
		"JSON of other sorts": {[]byte(`[]`), autotune.Unreadable, "unreadable"},
	} {
		t.Run(name, func(t *testing.T) {
			disk, file := cache.Open(cache.Options{Dir: t.TempDir()}), autotune.NewFile()
			if c.stored != nil {
				require.NoError(t, disk.PutChoice(key.String(), c.stored))
				require.NoError(t, file.PutChoice(key.String(), c.stored))
			}
			for _, store := range []autotune.Store{disk, file} {
				got, origin, err := autotune.Pick(store, key, digest)
				assert.Equal(t, c.origin, origin)
				if c.says != "" {
					assert.ErrorContains(t, err, c.says)
				} else {
					assert.NoError(t, err)
				}
				if origin == autotune.Tuned {
					assert.Equal(t, chosen, got)
				} else {
					assert.Zero(t, got)
				}
			}
		})
	}
}

// TestPickBehindAStaleChoice checks that an old choice in a directory does not hide a newer one
// in a bundle. If all choices are stale, the error explains the first.
func TestPickBehindAStaleChoice(t *testing.T) {
	digest, chosen := digestOf(t), point{Threads: 64}
	now, err := digest(chosen)
	require.NoError(t, err)
	for _, c := range []struct {
		places [][2]string // for each place, the digest stored with the point of 32 threads, and that with the chosen point
		origin autotune.Origin
		says   string
	}{
		{[][2]string{{"old", ""}, {"", now}}, autotune.Tuned, ""},
		{[][2]string{{"", ""}, {"", "older"}, {"", now}}, autotune.Tuned, ""},
		{[][2]string{{"", now}, {"old", ""}}, autotune.Tuned, ""},
		{[][2]string{{"old", ""}, {"", "older"}}, autotune.Stale, "tuned with old;"},
		{[][2]string{{"", ""}, {"", ""}}, autotune.CostModel, ""},
	} {
		var dirs []string
		for _, place := range c.places {
			in := cache.Open(cache.Options{Dir: t.TempDir()})
			dirs = append(dirs, in.Dir())
			for i, p := range []point{{Threads: 32}, chosen} {
				if place[i] == "" {
					continue
				}
				value, err := autotune.Encode(p, place[i])
				require.NoError(t, err)
				require.NoError(t, in.PutChoice(key.String(), value))
			}
		}
		got, origin, err := autotune.Pick(cache.Open(cache.Options{Dir: dirs[0], Layers: dirs[1:]}), key, digest)
		assert.Equal(t, c.origin, origin, "%v", c.places)
		if c.says != "" {
			assert.ErrorContains(t, err, c.says)
		} else {
			assert.NoError(t, err)
		}
		if origin == autotune.Tuned {
			assert.Equal(t, chosen, got)
		}
	}
}

// TestFile checks that a choice is not found for another bucket, GPU or number of SMs, and that
// all readers of one file pick the same point.
func TestFile(t *testing.T) {
	digest := digestOf(t)
	now, err := digest(base)
	require.NoError(t, err)
	value, err := autotune.Encode(base, now)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "choices.json")
	f := autotune.NewFile()
	require.NoError(t, f.PutChoice(key.String(), value))
	require.NoError(t, f.WriteFile(path))
	first, err := os.ReadFile(path)
	require.NoError(t, err)
	for range 3 { // each iteration reads the file as one of three ranks does
		rank, err := autotune.ReadFile(t.Context(), path)
		require.NoError(t, err)
		p, origin, err := autotune.Pick(rank, key, digest)
		require.NoError(t, err)
		assert.Equal(t, autotune.Tuned, origin)
		assert.Equal(t, base, p)
		for _, other := range []autotune.Key{
			{Subject: "copy", GPU: "NVIDIA H200", SMs: 132, Bucket: key.Bucket + 1},
			{Subject: "copy", GPU: "NVIDIA H200", SMs: 114, Bucket: key.Bucket},
			{Subject: "copy", GPU: "NVIDIA H100", SMs: 132, Bucket: key.Bucket},
			{Subject: "move", GPU: "NVIDIA H200", SMs: 132, Bucket: key.Bucket},
		} {
			_, origin, _ := autotune.Pick(rank, other, digest)
			assert.Equal(t, autotune.CostModel, origin, other)
		}
		require.NoError(t, rank.WriteFile(path))
		again, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.Equal(t, string(first), string(again), "the same choices, the same bytes")
	}
	_, err = autotune.ReadFile(t.Context(), path+".gone")
	assert.True(t, errors.Is(err, os.ErrNotExist))
}

func TestBuckets(t *testing.T) {
	for _, c := range []struct {
		rows int
		want string
	}{{0, "1-32"}, {1, "1-32"}, {32, "1-32"}, {33, "33-128"}, {128, "33-128"}, {512, "129-512"}, {1536, "513-2048"}, {2048, "513-2048"}, {2049, "2049 and more"}, {1 << 40, "2049 and more"}} {
		assert.Equal(t, c.want, autotune.BucketOf(c.rows).String(), c.rows)
	}
	assert.Equal(t, "Bucket(9)", autotune.Bucket(9).String())
	assert.Equal(t, "tuned copy on NVIDIA H200, 132 SMs, 513-2048 rows an expert", key.String())
}

func TestGain(t *testing.T) {
	gain, noise := autotune.Gain([]float64{2, 2, 2, 2}, []float64{1, 1, 1, 1})
	assert.InDelta(t, 0.5, gain, 1e-12)
	assert.InDelta(t, 0, noise, 1e-12)
	// A slowdown of both points in the same round is not noise.
	gain, noise = autotune.Gain([]float64{10, 20, 10, 30}, []float64{9, 18, 9, 27})
	assert.InDelta(t, 0.1, gain, 1e-12)
	assert.InDelta(t, 0, noise, 1e-12)
	_, few := autotune.Gain([]float64{1, 1, 1, 1}, []float64{.8, .9, 1, 1.1})
	_, many := autotune.Gain([]float64{1, 1, 1, 1, 1, 1, 1, 1}, []float64{.8, .8, .9, .9, 1, 1, 1.1, 1.1})
	assert.Less(t, many, few, "more rounds, less noise")
	// The ratios are 1, 1.1, 1.3 and 1.7, and the median lies between 1.1 and 1.3. The quartiles
	// 1.075 and 1.4 give a standard deviation. The standard error of the median of the four ratios
	// is 1.253 / √4 times the standard deviation.
	gain, noise = autotune.Gain([]float64{1, 1, 1, 1}, []float64{1.7, 1, 1.3, 1.1})
	assert.InDelta(t, -0.2, gain, 1e-12)
	assert.InDelta(t, 2*1.253*(0.325/1.349)/2, noise, 1e-12)
}
