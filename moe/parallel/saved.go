package parallel

import (
	"fmt"
	"slices"

	"sonicmoe/moe"
)

// Saved is what a forward pass leaves for its backward pass. It must not change before the backward
// pass.
type Saved struct {
	// Buffer has at least the bytes that the tokens of the pass need on this rank. Sizes.Saved bytes
	// are enough for every pass.
	moe.Buffer
	// Allocate, if Buffer is empty, allocates it. Forward calls Allocate when it knows how many bytes
	// the pass needs. If the ranks get similar numbers of tokens, these are far less than
	// Sizes.Saved bytes.
	Allocate func(bytes int64) (moe.Buffer, error)
	counts
}

// Counts returns the counts of the pass as words, for a program that keeps them elsewhere. They are
// the same on all ranks.
func (s *Saved) Counts() []int64 {
	list := slices.Clone(s.tokens)
	return append(append(list, slices.Concat(s.pairs...)...), slices.Concat(s.rows...)...)
}

// savedCounts returns the number of words of Saved.Counts.
func (r *Rank) savedCounts() int {
	w := r.transport.Ranks()
	return w * (1 + r.Config.NumExperts + w)
}

// Restore returns a Saved with the buffer and the Counts of an earlier one.
func (r *Rank) Restore(b moe.Buffer, counted []int64) (*Saved, error) {
	if len(counted) != r.savedCounts() {
		return nil, &moe.ArgError{Field: "counts", Got: fmt.Sprintf("%d words", len(counted)), Want: fmt.Sprintf("%d (Sizes.SavedCounts)", r.savedCounts())}
	}
	if slices.Min(counted) < 0 || slices.Max(counted) > int64(r.windowPairs()) {
		return nil, &moe.ArgError{Field: "counts", Got: "other words", Want: "the counts that a forward pass of this group has saved"}
	}
	w := r.transport.Ranks()
	s := &Saved{Buffer: b}
	s.tokens = slices.Clone(counted[:w])
	pairs, rows := counted[w:len(counted)-w*w], counted[len(counted)-w*w:]
	s.pairs, s.rows = slices.Collect(slices.Chunk(pairs, r.Config.NumExperts)), slices.Collect(slices.Chunk(rows, w))
	return s, nil
}
