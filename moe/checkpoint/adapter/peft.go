package adapter

import (
	"fmt"
	"slices"
	"strings"
)

// peft returns the factors of a file of PEFT's target_parameters. The names of such factors do not
// tell the weight that they adapt, so peft finds the weights by the extents. PEFT before 0.19.1 took
// the second extent of each weight for its inputs. In its files, most lora_A have the outputs as columns.
func (r *reader) peft() (first, second *pair, err error) {
	var found []wrapper
	for _, inner := range []bool{true, false} {
		a, b, ok, err := r.both(key{layout: PEFT, layer: r.layer(), expert: -1, inner: inner})
		if err != nil {
			return nil, nil, err
		}
		if ok {
			found = append(found, wrapper{a, b})
		}
	}
	// A module has the weight of up before the weight of down, so PEFT wraps it first.
	orders := [][]product{{gateUp, down}}
	switch {
	case len(found) == 1:
		orders = [][]product{{gateUp}, {down}}
	case r.c.Activation.Gated():
		orders = append(orders, []product{down, gateUp})
	}
	var fits []reading
	for _, order := range orders {
		for _, swapped := range []bool{false, true} {
			if r.fits(found, reading{order, swapped}) {
				fits = append(fits, reading{order, swapped})
			}
		}
	}
	switch {
	case len(fits) == 0:
		e, c, t := int64(r.c.NumExperts*r.settings.Rank), r.c, found[0]
		return nil, nil, fmt.Errorf("tensors %q and %q are %v and %v, must be [%d %d] and [%d %d], or [%d %d] and [%d %d]", t.a.name, t.b.name, t.a.shape, t.b.shape,
			e, c.Hidden, c.HWidth(), e, e, c.Intermediate, c.Hidden, e)
	case len(fits) > 1:
		return nil, nil, fmt.Errorf("the extents of tensor %q do not tell whether its columns are inputs or outputs, and peft_version in %s is %q, must be 0.19.1 or later: from there on they are inputs", found[0].a.name, settingsFile, r.settings.Version)
	}
	var pairs [2]*pair
	for i, which := range fits[0].order {
		pairs[which] = r.peftPair(found[i], which, fits[0].swapped)
	}
	return pairs[gateUp], pairs[down], nil
}

// wrapper has the two factors of one wrapper of PEFT.
type wrapper struct{ a, b tensor }

// reading is a way to read the wrappers of a layer: the weight of each wrapper, and whether the
// columns of lora_A are outputs.
type reading struct {
	order   []product
	swapped bool
}

// extents returns the inputs and the outputs of a product.
func (r *reader) extents(of product) (in, out int) {
	if of == down {
		return r.c.Intermediate, r.c.Hidden
	}
	return r.c.Hidden, r.c.HWidth()
}

// fits reports whether the version of the file and the extents of its tensors allow a reading.
func (r *reader) fits(found []wrapper, of reading) bool {
	if of.swapped && r.settings.readsInputs() {
		return false
	}
	wide := int64(r.c.NumExperts * r.settings.Rank)
	for i, which := range of.order {
		in, out := r.extents(which)
		if of.swapped {
			in, out = out, in
		}
		f := found[i]
		if !r.isTarget(which) || !slices.Equal(f.a.shape, []int64{wide, int64(in)}) || !slices.Equal(f.b.shape, []int64{int64(out), wide}) {
			return false
		}
	}
	return true
}

// isTarget reports whether target_parameters lists the weight of a product, or is empty.
func (r *reader) isTarget(of product) bool {
	isDown := func(name string) bool { return strings.HasSuffix(name, "down_proj") }
	isUp := func(name string) bool { return strings.HasSuffix(name, "up_proj") }
	return len(r.settings.Parameters) == 0 || slices.ContainsFunc(r.settings.Parameters, []func(string) bool{isUp, isDown}[of])
}

// peftPair returns the factors of a weight. If swapped, the columns of lora_A are outputs.
func (r *reader) peftPair(f wrapper, of product, swapped bool) *pair {
	in, out := r.extents(of)
	experts, rank := r.c.NumExperts, r.settings.Rank
	p := newPair(experts, rank, in, out)
	if !swapped {
		copy(p.a, f.a.values)
	}
	for e := range experts {
		for i := range rank {
			for o := range out {
				if swapped {
					p.rowB(e, o)[i] = f.a.values[(e*rank+i)*out+o]
				} else {
					p.rowB(e, o)[i] = f.b.values[(o*rank+i)*experts+e]
				}
			}
			for k := 0; swapped && k < in; k++ {
				p.rowA(e, i)[k] = f.b.values[(k*rank+i)*experts+e]
			}
		}
	}
	return p
}
