package spec

import "fmt"

// ProductID names a grouped product of a layer: one matrix product for each expert, over the
// expert's rows. A tiling is chosen for each such product. A ProductID is an index of Products.
type ProductID uint8

// These are the products, in the order in which the passes compute them.
const (
	ProductUp ProductID = iota
	ProductDown
	ProductDH
	ProductDW2
	ProductDW1
	ProductDX
)

// ProductRow describes a grouped product: a row of the table Products, which rooflines,
// tilings, tuning and benchmarks use.
type ProductRow struct {
	// Name is the product's name in options, stored choices and reports: "up".
	Name string
	// Backward reports whether only the backward pass has the product.
	Backward bool
	// Weight returns the number of elements of one expert's weight that the product reads, or
	// of the weight gradient that it writes.
	Weight func(s sizes) float64
	// Moved returns the number of elements of the other tensors that the product reads and
	// writes.
	Moved func(s sizes) float64
}

// Products is the table of grouped products. The kernels of a product are in the file of
// package kernel that has its name.
var Products = [...]ProductRow{
	ProductUp:   {Name: "up", Weight: sizes.w1, Moved: func(s sizes) float64 { return s.t*s.d + s.r*(s.h+s.n) }},
	ProductDown: {Name: "down", Weight: sizes.w2, Moved: func(s sizes) float64 { return s.r * (s.n + s.d) }},
	ProductDH:   {Name: "dh", Backward: true, Weight: sizes.w2, Moved: func(s sizes) float64 { return s.t*s.d + s.r*(2*s.h+s.n) }},
	ProductDW2:  {Name: "dw2", Backward: true, Weight: sizes.w2, Moved: func(s sizes) float64 { return s.t*s.d + s.r*s.n }},
	ProductDW1:  {Name: "dw1", Backward: true, Weight: sizes.w1, Moved: func(s sizes) float64 { return s.t*s.d + s.r*s.h }},
	ProductDX:   {Name: "dx", Backward: true, Weight: sizes.w1, Moved: func(s sizes) float64 { return s.r * (s.h + s.d) }},
}

// Row returns the product's row of the table.
func (id ProductID) Row() *ProductRow { return &Products[id] }

// String returns the product's name: "up".
func (id ProductID) String() string {
	if int(id) < len(Products) {
		return Products[id].Name
	}
	return name("ProductID", nil, id)
}

// ParseProduct returns the product with a name. The error is an [*ArgError] that lists the
// names.
func ParseProduct(name string) (ProductID, error) {
	var names []string
	for id, p := range Products {
		if p.Name == name {
			return ProductID(id), nil
		}
		names = append(names, p.Name)
	}
	return 0, &ArgError{Field: "product", Got: name, Want: fmt.Sprintf("one of %v", names)}
}

// isGradient reports whether the product computes the gradient of a weight. Packed weights have
// no gradients.
func (id ProductID) isGradient() bool { return id == ProductDW1 || id == ProductDW2 }

// Work returns the product's work.
func (id ProductID) Work(c Config, tokens int) Work { return id.work(c.sizes(tokens)) }

func (id ProductID) work(s sizes) Work {
	p := id.Row()
	weight := p.Weight(s)
	return Work{p.Name, 2 * s.r * weight, 2*p.Moved(s) + s.e*weight*s.weightBytes}
}

func productsFLOPs(s sizes, backward bool) (sum float64) {
	for _, w := range productsWork(s, backward) {
		sum += w.FLOPs
	}
	return sum
}

// productsWork returns the work of the products of a forward or a backward pass.
func productsWork(s sizes, backward bool) (list []Work) {
	for id, p := range Products {
		if p.Backward == backward && !(s.packed && ProductID(id).isGradient()) {
			list = append(list, ProductID(id).work(s))
		}
	}
	return list
}
