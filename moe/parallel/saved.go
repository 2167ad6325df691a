package parallel

import (
	"fmt"
	"slices"

	"sonicmoe/moe"
)

// Saved is what a forward pass leaves for its backward pass. It must not change before the backward
// pass.
type Saved struct {
	// Buffer has Sizes.Saved bytes.
	moe.Buffer
	counts
}

// Counts returns the counts of the pass as words, for a program that keeps them elsewhere. They are
// the same on all ranks.
func (s *Saved) Counts() []int64 {
	list := slices.Clone(s.tokens)
	for _, part := range slices.Concat(s.counts.pairs, [][][]int64{s.rows}) {
		list = append(list, slices.Concat(part...)...)
	}
	return list
}

// savedCounts returns the number of words of Saved.Counts.
func (r *Rank) savedCounts() int {
	w := r.transport.Ranks()
	return w + (r.Chunks+1)*w*w
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
	parts := slices.Collect(slices.Chunk(slices.Collect(slices.Chunk(counted[w:], w)), w))
	s.counts.pairs, s.rows = parts[:r.Chunks], parts[r.Chunks]
	return s, nil
}
