package moe

import (
	"cmp"
	"fmt"

	"sonicmoe/driver"
	"sonicmoe/internal/spec"
)

// Arena allocates device memory for tensors, keeps the first error, and frees
// everything at once. New memory has unspecified content. After an error an arena
// returns zero Tensors, and Err returns the error. One goroutine at a time may use
// an arena. A nil arena has no memory, and its Err says so.
type Arena struct {
	dev   driver.Device
	owned []driver.DevicePtr
	err   error
}

// NewArena returns an arena on a device.
func NewArena(dev driver.Device) *Arena {
	a := &Arena{dev: dev}
	if dev == nil {
		a.err = &ArgError{Field: "device", Got: "nil", Want: "an open device"}
	}
	return a
}

// Err returns the arena's first error.
func (a *Arena) Err() error {
	if a == nil {
		return &ArgError{Field: "Arena", Got: "nil", Want: "made by NewArena"}
	}
	return a.err
}

// Free frees all memory, also after an error. The arena is then empty and may be
// used again.
func (a *Arena) Free() error {
	if a == nil {
		return nil
	}
	var first error
	failed := 0
	for _, p := range a.owned {
		if err := a.dev.Free(p); err != nil {
			first = cmp.Or(first, err)
			failed++
		}
	}
	all := len(a.owned)
	a.owned = nil
	if a.dev != nil {
		a.err = nil
	}
	if first != nil {
		return fmt.Errorf("%d of %d allocations were not freed, the first: %w", failed, all, first)
	}
	return nil
}

// Buffer allocates a buffer of the given number of bytes. A buffer of 0 bytes has
// an address too.
func (a *Arena) Buffer(bytes int64) Buffer {
	switch {
	case a == nil:
		return Buffer{}
	case a.err == nil && a.dev == nil:
		a.err = &ArgError{Field: "Arena", Got: "of no device", Want: "made by NewArena"}
	case a.err == nil && bytes < 0:
		a.err = argErrorf("bytes", bytes, "0 or more")
	}
	if a.err != nil {
		return Buffer{}
	}
	p, err := a.dev.Alloc(max(bytes, 1))
	if err != nil {
		a.err = fmt.Errorf("allocating %d bytes: %w", bytes, err)
		return Buffer{}
	}
	a.owned = append(a.owned, p)
	return Buffer{Ptr: p, Bytes: bytes}
}

// Tensor allocates a tensor. For the zero Shape it returns the zero Tensor.
func (a *Arena) Tensor(s Shape) Tensor {
	if s.IsZero() {
		return Tensor{}
	}
	b := a.Buffer(s.Bytes())
	if a.Err() != nil {
		return Tensor{}
	}
	return Tensor{Ptr: b.Ptr, Shape: s}
}

// Like allocates a tensor with the type and extents of another.
func (a *Arena) Like(t Tensor) Tensor { return a.Tensor(t.Shape) }

// Weights allocates the weights of a layer.
func (a *Arena) Weights(l *Layer) Weights {
	var w Weights
	s := l.Config().Shapes(0)
	for _, id := range spec.Weights {
		*w.Weight(id) = a.Tensor(s.Of(id))
	}
	return w
}

// Gradients allocates the gradients of a layer's weights in one type: the layer's
// or F32. DRouterBias and DExpertScale are always F32.
func (a *Arena) Gradients(l *Layer, t Type) WeightGradients {
	var g WeightGradients
	s := l.Config().Gradients(0, t)
	for _, id := range spec.WeightGradients {
		g.Gradient(spec.Row(id).Of).Tensor = a.Tensor(s.Of(id))
	}
	return g
}

// ForwardArgs allocates the input, outputs and routing of a pass over the given
// number of tokens, and the tensors that backward needs if the layer has a backward
// pass. The caller sets Weights and Workspace, and Logits if they are wanted but
// not needed.
func (a *Arena) ForwardArgs(l *Layer, tokens int) ForwardArgs {
	if _, err := l.Sizes(tokens); err != nil {
		a.fail(err)
		return ForwardArgs{}
	}
	s := l.Shapes(tokens)
	f := ForwardArgs{X: a.Tensor(s.X), AdapterIDs: a.Tensor(s.AdapterIDs), O: a.Tensor(s.O), Routing: Routing{Scores: a.Tensor(s.Scores), ExpertIDs: a.Tensor(s.ExpertIDs)}}
	if l.hasBackward() {
		f.H, f.SharedH = a.Tensor(s.H), a.Tensor(s.SharedH)
		f.LoraU = a.Tensor(s.LoraU)
		if l.of.SavesLogits() {
			f.Logits = a.Tensor(s.Logits)
		}
	}
	return f
}

// RoutingList allocates a list of the given entries, [Layer.RoundedRows] for a pass that
// rounds.
func (a *Arena) RoutingList(l *Layer, entries int) RoutingList {
	s := l.Config().ListShapes(0, entries)
	return RoutingList{Tokens: a.Tensor(s.ExpertIDs), ExpertIDs: a.Tensor(s.ExpertIDs), Scores: a.Tensor(s.Scores)}
}

// Workspace allocates one workspace for all passes over up to the given number of
// tokens, of layers that run one after another.
func (a *Arena) Workspace(tokens int, layers ...*Layer) Buffer {
	var most int64
	for _, l := range layers {
		s, err := l.Sizes(tokens)
		if err != nil {
			a.fail(err)
			return Buffer{}
		}
		most = max(most, s.Workspace)
		if l.hasBackward() {
			most = max(most, s.BackwardWorkspace)
		}
	}
	return a.Buffer(most)
}

// fail keeps the first error.
func (a *Arena) fail(err error) {
	if a != nil && a.err == nil {
		a.err = err
	}
}
