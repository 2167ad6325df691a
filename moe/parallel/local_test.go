package parallel

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"sonicmoe/driver"
	"sonicmoe/moe"
)

// ranksOf makes a group and calls body for every rank, in goroutines. It returns the errors by
// rank.
func ranksOf(t *testing.T, ranks int, body func(i int, tr Transport, dev driver.Device) error) []error {
	list, err := devices()
	require.NoError(t, err)
	transports, err := Local(list[:ranks]...)
	require.NoError(t, err)
	errs := make([]error, ranks)
	var g errgroup.Group
	for i, tr := range transports {
		g.Go(func() error {
			errs[i] = body(i, tr, list[i])
			return nil
		})
	}
	require.NoError(t, g.Wait())
	return errs
}

// TestLocalShare checks that ranks which share another number of words or are in another step get an
// error.
func TestLocalShare(t *testing.T) {
	for name, c := range map[string]struct {
		words, chunk func(i int) int
		want         string
	}{
		"more words":    {words: func(i int) int { return i }, want: "words, this rank"},
		"another chunk": {words: func(int) int { return 1 }, chunk: func(i int) int { return i / 2 }, want: "is in another step: test"},
	} {
		t.Run(name, func(t *testing.T) {
			errs := ranksOf(t, 3, func(i int, tr Transport, _ driver.Device) error {
				at := Step{Phase: "test"}
				if c.chunk != nil {
					at.Chunk = c.chunk(i)
				}
				_, err := tr.Share(context.Background(), at, []int64{int64(i), 7}[:c.words(i)])
				return err
			})
			for _, err := range errs {
				require.ErrorContains(t, err, c.want)
			}
		})
	}
}

// TestLocalDeadline checks that a rank that never comes causes an error on the other ranks, and
// that the error names this rank. All of them return when the shortest deadline has passed.
func TestLocalDeadline(t *testing.T) {
	began := time.Now()
	errs := ranksOf(t, 4, func(i int, tr Transport, _ driver.Device) error {
		if i == 2 {
			return nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(200+10000*i)*time.Millisecond)
		defer cancel()
		_, err := tr.Share(ctx, Step{"test", 3}, nil)
		return err
	})
	for _, i := range []int{0, 1, 3} {
		require.ErrorContains(t, errs[i], "rank 0 of 4: test, chunk 3: waiting for rank 2: ")
		require.ErrorIs(t, errs[i], context.DeadlineExceeded)
	}
	require.Less(t, time.Since(began), 9*time.Second)
	_, err := Local()
	require.ErrorContains(t, err, "want one device at least")
}

// TestChunksChosen checks the number of chunks that a pass chooses, and whether it packs rows.
func TestChunksChosen(t *testing.T) {
	for _, c := range []struct {
		ranks, experts, hidden, pairs, chunks, want int
		// crowded sends all pairs from the last rank to the first.
		packs, crowded bool
	}{
		{ranks: 1, experts: 128, hidden: 2048, pairs: 131072, want: 1, packs: true},
		{ranks: 2, experts: 128, hidden: 2048, pairs: 131072, want: 4},
		{ranks: 2, experts: 128, hidden: 2048, pairs: 131071, want: 4, packs: true},
		{ranks: 2, experts: 128, hidden: 2048, pairs: 32768, want: 4, packs: true},
		{ranks: 2, experts: 128, hidden: 2048, pairs: 32767, want: 1, packs: true},
		{ranks: 8, experts: 16, hidden: 2048, pairs: 131072, want: 2, packs: true},
		{ranks: 8, experts: 128, hidden: 2048, pairs: 131072, want: 7, packs: true},
		{ranks: 4, experts: 128, hidden: 2048, pairs: 131072, want: 6, packs: true},
		{ranks: 5, experts: 7, hidden: 2048, pairs: 131072, want: 1, packs: true},
		{ranks: 2, experts: 128, hidden: 2048, pairs: 1, chunks: 3, want: 3, packs: true},
		{ranks: 4, experts: 128, hidden: 2048, pairs: 8000, chunks: 3, want: 3, packs: true, crowded: true},
		{ranks: 4, experts: 128, hidden: 2048, pairs: 8001, chunks: 3, want: 3, crowded: true},
	} {
		o := Options{Config: moe.Config{NumExperts: c.experts, Hidden: c.hidden, TopK: 8}.Normal(), Chunks: c.chunks, MaxTokens: 1000}
		p := &pass{Rank: &Rank{Options: o, transport: &local{ranks: c.ranks}, longPiece: longPiece(c.ranks)}}
		for range c.ranks {
			p.pairs = append(p.pairs, make([]int64, c.experts))
		}
		from := 0
		if c.crowded {
			from = c.ranks - 1
		}
		p.pairs[from][0] = int64(c.pairs)
		p.divide()
		require.Equal(t, c.want, p.chunks, "%+v", c)
		require.Equal(t, c.packs, p.packs, "%+v", c)
	}
}
