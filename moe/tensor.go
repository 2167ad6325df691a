package moe

import (
	"fmt"

	"sonicmoe/driver"
	"sonicmoe/internal/spec"
)

// Tensor is a dense row-major tensor in device memory. The zero value means
// none.
type Tensor struct {
	Ptr   driver.DevicePtr
	Shape spec.Shape
}

// Dense describes a tensor of up to three dimensions at p.
func Dense(p driver.DevicePtr, t Type, dims ...int) Tensor {
	s := spec.Shape{Type: t, Rank: len(dims)}
	for i, d := range dims {
		if i < len(s.Dims) {
			s.Dims[i] = int64(d)
		}
	}
	return Tensor{Ptr: p, Shape: s}
}

// IsZero reports whether the tensor is absent.
func (t Tensor) IsZero() bool { return t == Tensor{} }

// Buffer is plain device memory.
type Buffer struct {
	Ptr   driver.DevicePtr
	Bytes int64
}

// alignment is what TMA and 16-byte accesses need of every buffer.
const alignment = 16

// missing is what an absent tensor is called.
const missing = "missing"

// span is a checked argument: its name, where it lies, whether it is written.
type span struct {
	field   string
	from    driver.DevicePtr
	bytes   int64
	written bool
}

// argCheck collects the arguments of a call and keeps the first error. It
// lives in the Call, so checking allocates only for errors.
type argCheck struct {
	spans [64]span
	n     int
	err   error
}

func (c *argCheck) reset() { c.n, c.err = 0, nil }

func (c *argCheck) fail(field, got, want string) {
	if c.err == nil {
		c.err = &ArgError{Field: field, Got: got, Want: want}
	}
}

// tensor checks one argument against the shape that it must have.
func (c *argCheck) tensor(field string, t Tensor, want spec.Shape, written bool) {
	switch {
	case c.err != nil:
	case t.IsZero():
		c.fail(field, missing, want.String())
	case t.Shape != want:
		c.fail(field, t.Shape.String(), want.String())
	default:
		c.add(field, t.Ptr, want.Bytes(), alignment, written)
	}
}

// weights checks the experts' weights, the shared ones' too.
func (c *argCheck) weights(w *Weights, want spec.Shapes) {
	for _, t := range [...]struct {
		field string
		got   Tensor
		want  spec.Shape
	}{{"W1", w.W1, want.W1}, {"W3", w.W3, want.W3}, {"W2", w.W2, want.W2}, {"B1", w.B1, want.B1}, {"B3", w.B3, want.B3}, {"B2", w.B2, want.B2},
		{"SharedW1", w.SharedW1, want.SharedW1}, {"SharedW3", w.SharedW3, want.SharedW3}, {"SharedW2", w.SharedW2, want.SharedW2}, {"SharedGate", w.SharedGate, want.SharedGate}} {
		c.weight(t.field, t.got, t.want)
	}
}

// routerWeights checks those of the router, of which a backward pass does not look
// at the bias of logits and that of the choice.
func (c *argCheck) routerWeights(w *Weights, want spec.Shapes, forward bool) {
	c.tensor("Router", w.Router, want.Router, false)
	if forward {
		c.weight("RouterBias", w.RouterBias, want.RouterBias)
		c.weight("SelectionBias", w.SelectionBias, want.SelectionBias)
	}
	c.weight("ExpertScale", w.ExpertScale, want.ExpertScale)
}

// weight checks a weight that not every layer has.
func (c *argCheck) weight(field string, got Tensor, want spec.Shape) {
	switch {
	case !want.IsZero():
		c.tensor(field, got, want, false)
	case !got.IsZero():
		c.fail(field, got.Shape.String(), "none: the layer has no such weight")
	}
}

func (c *argCheck) add(field string, p driver.DevicePtr, bytes int64, align driver.DevicePtr, written bool) {
	switch {
	case c.err != nil || bytes == 0:
	case p == 0:
		c.fail(field+".Ptr", "0", fmt.Sprintf("the address of %d bytes", bytes))
	case p%align != 0:
		c.fail(field+".Ptr", fmt.Sprintf("%#x", uint64(p)), fmt.Sprintf("a multiple of %d", align))
	case p+driver.DevicePtr(bytes) < p:
		c.fail(field+".Ptr", fmt.Sprintf("%#x", uint64(p)), fmt.Sprintf("the address of %d bytes below 2^64", bytes))
	default:
		c.spans[c.n] = span{field, p, bytes, written}
		c.n++
	}
}

// overlaps refuses written arguments that share bytes with any other.
func (c *argCheck) overlaps() error {
	for i := 0; i < c.n && c.err == nil; i++ {
		for j := i + 1; j < c.n; j++ {
			a, b := &c.spans[i], &c.spans[j]
			if (a.written || b.written) && a.from < b.from+driver.DevicePtr(b.bytes) && b.from < a.from+driver.DevicePtr(a.bytes) {
				c.fail(b.field, fmt.Sprintf("%#x with %d bytes", uint64(b.from), b.bytes),
					fmt.Sprintf("apart from %s, which is %#x with %d bytes", a.field, uint64(a.from), a.bytes))
				break
			}
		}
	}
	return c.err
}
