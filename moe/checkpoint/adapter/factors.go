package adapter

import (
	"fmt"
	"slices"

	"sonicmoe/internal/spec"
	"sonicmoe/moe"
)

// pair has the two factors of one weight for all experts: a (lora_A) is [E, r, in], and b (lora_B)
// is [E, out, r].
type pair struct {
	experts, rank, in, out int
	a, b                   []float32
}

func newPair(experts, rank, in, out int) *pair {
	return &pair{experts, rank, in, out, make([]float32, experts*rank*in), make([]float32, experts*out*rank)}
}

// rowB returns an expert's row of b for one output.
func (p *pair) rowB(expert, out int) []float32 { return p.b[(expert*p.out+out)*p.rank:][:p.rank] }

// rowA returns an expert's row of a.
func (p *pair) rowA(expert, row int) []float32 { return p.a[(expert*p.rank+row)*p.in:][:p.in] }

// Factors returns the factors of a layer. c is the layer's Config, as Config returns it. The factors
// of a product that the file does not adapt are zeros.
func (f *File) Factors(layer int, c moe.Config) (Factors, error) {
	want, err := f.Config(c)
	if err != nil {
		return Factors{}, err
	}
	if c != want {
		return Factors{}, fmt.Errorf("the Config is %v, must be %v, as Config returns it", c, want)
	}
	return f.factors(layer, c)
}

// factors returns the factors of a layer, padded to the rank of c.
func (f *File) factors(layer int, c moe.Config) (Factors, error) {
	tensors, ok := f.layers[layer]
	if !ok {
		return Factors{}, fmt.Errorf("layer %d has no factors, must be one of %v", layer, f.Layers())
	}
	r := reader{f, tensors, c}
	first, second, err := r.products()
	for k, name := range tensors {
		if k.expert >= c.NumExperts && err == nil {
			err = fmt.Errorf("tensor %q is of expert %d, must be of one of %d", name, k.expert, c.NumExperts)
		}
	}
	if err != nil {
		return Factors{}, fmt.Errorf("layer %d: %w", layer, err)
	}
	return lay(c, first, second), nil
}

// reader reads the factors of a layer.
type reader struct {
	*File
	tensors map[key]string
	c       moe.Config
}

// products returns the factors of gate and up together, and the factors of down. The rows of the
// first pair's b are in the order of the rows of the layer's W1, see rowOf.
func (r *reader) products() (first, second *pair, err error) {
	switch r.Layout {
	case PEFT:
		return r.peft()
	case Stacked:
		return r.halves(r.stacked)
	default:
		return r.halves(r.perExpert)
	}
}

// shapeError says that a factor has wrong extents.
func shapeError(name string, got, want []int64) error {
	return fmt.Errorf("tensor %q is %v, must be %v", name, got, want)
}

// both returns the lora_A and the lora_B of a key. ok is false if the file has neither.
func (r *reader) both(k key) (a, b tensor, ok bool, err error) {
	k.isB = false
	nameA, okA := r.tensors[k]
	k.isB = true
	nameB, okB := r.tensors[k]
	switch {
	case !okA && !okB:
		return a, b, false, nil
	case !okA:
		return a, b, false, fmt.Errorf("tensor %q has no lora_A, must have one", nameB)
	case !okB:
		return a, b, false, fmt.Errorf("tensor %q has no lora_B, must have one", nameA)
	}
	a.name, b.name = nameA, nameB
	if a.values, a.shape, err = r.values(nameA); err == nil {
		b.values, b.shape, err = r.values(nameB)
	}
	return a, b, true, err
}

// tensor is a tensor of the file.
type tensor struct {
	name   string
	values []float32
	shape  []int64
}

// layer returns the number of the layer.
func (r *reader) layer() int {
	for k := range r.tensors {
		return k.layer
	}
	return 0
}

// halves returns the factors of a file in which gate and up have factors of their own. read returns
// the factors of one weight, or nil if the file does not adapt this weight.
func (r *reader) halves(read func(product, half, int, int) (*pair, error)) (first, second *pair, err error) {
	c := r.c
	if second, err = read(down, whole, c.Intermediate, c.Hidden); err != nil {
		return nil, nil, err
	}
	u, err := read(gateUp, up, c.Hidden, c.Intermediate)
	if err != nil || !c.Activation.Gated() {
		return u, second, err
	}
	g, err := read(gateUp, gate, c.Hidden, c.Intermediate)
	if err != nil || g == nil && u == nil {
		return nil, second, err
	}
	return r.join(g, u), second, nil
}

// join returns the factors of gate and up together. If they have different lora_A, the rank doubles.
func (r *reader) join(g, u *pair) *pair {
	rank := r.rank()
	p := newPair(r.c.NumExperts, rank, r.c.Hidden, r.c.HWidth())
	for h, of := range []*pair{g, u} {
		if of == nil {
			continue
		}
		from := 0
		if r.doubled {
			from = h * of.rank
		}
		for e := range p.experts {
			for i := range of.rank {
				copy(p.rowA(e, from+i), of.rowA(e, i))
			}
			for o := range of.out {
				copy(p.rowB(e, rowOf(r.c, h, o))[from:], of.rowB(e, o))
			}
		}
	}
	return p
}

// rowOf returns the row in W1 of a row of gate (half 0) or up (half 1). With GateUp "apart" the rows
// of W3 come after the rows of W1.
func rowOf(c moe.Config, half, row int) int {
	if c.GateUp == spec.Interleaved {
		return 2*row + half
	}
	return half*c.Intermediate + row
}

// stacked returns the factors of one weight from a file in which one tensor has all experts.
func (r *reader) stacked(of product, h half, in, out int) (*pair, error) {
	k := key{layout: Stacked, layer: r.layer(), expert: -1, of: of, half: h}
	a, b, ok, err := r.both(k)
	if err != nil {
		return nil, err
	}
	rank, experts := r.settings.Rank, r.c.NumExperts
	part, parts := 0, 1
	if !ok && of == gateUp {
		k.half = whole
		if a, b, ok, err = r.both(k); err != nil {
			return nil, err
		}
		part, parts = int(h-gate), 2
	}
	if !ok {
		return nil, nil
	}
	if want := []int64{int64(experts), int64(parts * rank), int64(in)}; !slices.Equal(a.shape, want) {
		return nil, shapeError(a.name, a.shape, want)
	}
	if want := []int64{int64(experts), int64(parts * out), int64(rank)}; !slices.Equal(b.shape, want) {
		return nil, shapeError(b.name, b.shape, want)
	}
	p := newPair(experts, rank, in, out)
	for e := range experts {
		copy(p.a[e*rank*in:][:rank*in], a.values[(e*parts+part)*rank*in:])
		copy(p.b[e*out*rank:][:out*rank], b.values[(e*parts+part)*out*rank:])
	}
	return p, nil
}

// perExpert returns the factors of one weight from a file in which each expert has its own tensors.
func (r *reader) perExpert(of product, h half, in, out int) (*pair, error) {
	rank, experts := r.settings.Rank, r.c.NumExperts
	p, found := newPair(experts, rank, in, out), 0
	for e := range experts {
		a, b, ok, err := r.both(key{layout: PerExpert, layer: r.layer(), expert: e, of: of, half: h})
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		found++
		if want := []int64{int64(rank), int64(in)}; !slices.Equal(a.shape, want) {
			return nil, shapeError(a.name, a.shape, want)
		}
		if want := []int64{int64(out), int64(rank)}; !slices.Equal(b.shape, want) {
			return nil, shapeError(b.name, b.shape, want)
		}
		copy(p.a[e*rank*in:], a.values)
		copy(p.b[e*out*rank:], b.values)
	}
	if found == 0 {
		return nil, nil
	}
	return p, nil
}

// lay returns the factors in the order of the layer's tensors, padded to the layer's rank.
func lay(c moe.Config, first, second *pair) (f Factors) {
	if first == nil {
		first = newPair(c.NumExperts, 0, c.Hidden, c.HWidth())
	}
	if second == nil {
		second = newPair(c.NumExperts, 0, c.Intermediate, c.Hidden)
	}
	f.A1, f.A2 = firsts(c, first), firsts(c, second)
	n := c.Intermediate
	if c.GateUp == spec.Apart && c.Activation.Gated() {
		f.B1, f.B3 = seconds(c, first, 0, n), seconds(c, first, n, 2*n)
	} else {
		f.B1 = seconds(c, first, 0, first.out)
	}
	f.B2 = seconds(c, second, 0, second.out)
	return f
}

// firsts returns a in the layer's order: [E, r, in], or [E, in, r] with InOut.
func firsts(c moe.Config, p *pair) []float32 {
	out := make([]float32, p.experts*c.LoRARank*p.in)
	for e := range p.experts {
		for i := range p.rank {
			for k, v := range p.rowA(e, i) {
				out[index(c, e, i, k, c.LoRARank, p.in)] = v
			}
		}
	}
	return out
}

// seconds returns the rows from `from` to end-1 of b in the layer's order: [E, rows, r], or
// [E, r, rows] with InOut.
func seconds(c moe.Config, p *pair, from, end int) []float32 {
	out := make([]float32, p.experts*(end-from)*c.LoRARank)
	for e := range p.experts {
		for o := from; o < end; o++ {
			for i, v := range p.rowB(e, o) {
				out[index(c, e, o-from, i, end-from, c.LoRARank)] = v
			}
		}
	}
	return out
}

// index returns the index of an element in a factor [E, rows, columns]. With InOut the factor is
// stored as [E, columns, rows].
func index(c moe.Config, e, row, column, rows, columns int) int {
	if c.InOut {
		row, column, rows, columns = column, row, columns, rows
	}
	return (e*rows+row)*columns + column
}
