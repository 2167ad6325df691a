// Package registry describes the kernels and products of a layer, one value for each. Emission,
// tuning, the cost model and benchmarks read these descriptions. The list of all kernels is in
// package kernel.
package registry

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/gemm"
	"sonicmoe/moe/internal/tiles"
)

// Layer is the input for emitting the kernels of a layer.
type Layer struct {
	spec.Config
	// Tiles has a tiling for every product of the layer.
	Tiles tiles.Choice
	// IsShared means that this layer computes the shared experts of another layer.
	// The names of its kernels then start with "shared-".
	IsShared bool
}

// KernelName returns the name of a kernel in this layer.
func (l Layer) KernelName(k Any) string {
	if l.IsShared {
		return "shared-" + k.Name()
	}
	return k.Name()
}

// Tiling returns the tiling of a product.
func (l Layer) Tiling(p *Product) gemm.Tiling { return l.Tiles[p.ID] }

// Kernel is a kernel of a layer. A is the type of its arguments.
type Kernel[A any] struct {
	// KernelName is the kernel's name in moe.Layer.Kernels: "up", "dw1-add".
	KernelName string
	// Of is the product whose tiling the kernel uses, or nil if the kernel has no tiling.
	Of *Product
	// ShownBy is the pass by whose outputs tuning checks the kernel. Only kernels of a product have
	// such a pass.
	ShownBy Pass
	// Backward means that only the backward pass launches the kernel.
	Backward bool
	// Only reports whether a layer has the kernel. nil means that every layer has it.
	Only func(c spec.Config) bool
	// Roofline has the least work of the kernel. If it is nil, the kernel has the work of its
	// product. A kernel without both is left out of rooflines.
	Roofline Works
	// From reduces a Config to the fields on which the kernel's text depends. nil keeps all fields.
	// Layers for which From returns the same Config share the emitted kernel.
	From func(c spec.Config) spec.Config
	// Emit emits the kernel for a layer. It may use the tiling of Of and the fields of Config that
	// From keeps, but not TokensHint.
	Emit func(l Layer) (*jit.Kernel[A], error)
}

// Works has functions whose results together are the work of a kernel.
type Works []func(c spec.Config, tokens int) spec.Work

// Any is a Kernel with any type of arguments. See the fields of [Kernel].
type Any interface {
	Name() string
	Product() *Product
	// Pass returns ShownBy.
	Pass() Pass
	IsBackward() bool
	// Suits reports whether a layer has the kernel.
	Suits(c spec.Config) bool
	// Work returns the least work of the kernel for rooflines. It returns nothing if rooflines
	// leave the kernel out.
	Work(c spec.Config, tokens int) []spec.Work
	// Build returns the emitted kernel for a layer. The caller must not change it.
	Build(l Layer) (Built, error)
}

// Built is an emitted kernel.
type Built interface {
	// Source returns the input of a loader. label appears in listings of a cache.
	Source(label string) jit.Source
	// NewLauncher returns a *jit.Launcher for the kernel's arguments.
	NewLauncher(f *jit.Function) Launcher
}

// Launcher is a *jit.Launcher for any type of arguments.
type Launcher interface {
	// Again queues the kernel with the arguments of its last launch, if there was one.
	Again(s driver.Stream) (launched bool, err error)
}

// Launchers has the launcher of each kernel of a call.
type Launchers map[Any]Launcher

// Launch queues a kernel on a stream. It returns an error if l has no launcher of the kernel.
func Launch[A any](l Launchers, k *Kernel[A], s driver.Stream, args A) error {
	launcher, ok := l[k].(*jit.Launcher[A])
	if !ok {
		return fmt.Errorf("moe: kernel %s is not one of the layer's %d kernels", k.Name(), len(l))
	}
	return launcher.Launch(s, args)
}

// Name implements Any.
func (k *Kernel[A]) Name() string { return k.KernelName }

// Product implements Any.
func (k *Kernel[A]) Product() *Product { return k.Of }

// Pass implements Any.
func (k *Kernel[A]) Pass() Pass { return k.ShownBy }

// IsBackward implements Any.
func (k *Kernel[A]) IsBackward() bool { return k.Backward }

// Suits implements Any.
func (k *Kernel[A]) Suits(c spec.Config) bool { return k.Only == nil || k.Only(c) }

// Work implements Any.
func (k *Kernel[A]) Work(c spec.Config, tokens int) []spec.Work {
	if k.Roofline == nil && k.Of != nil {
		return []spec.Work{k.Of.ID.Work(c, tokens)}
	}
	var list []spec.Work
	for _, work := range k.Roofline {
		list = append(list, work(c, tokens))
	}
	return list
}

// Build implements Any. Layers in which the kernel has the same text share it.
func (k *Kernel[A]) Build(l Layer) (Built, error) {
	of := k.emission(l)
	return emitted.Get(of, func() (Built, int, error) {
		b, err := k.Emit(of.layer())
		if err != nil {
			return nil, 0, fmt.Errorf("emitting the %s kernel: %w", l.KernelName(k), err)
		}
		if l.IsShared {
			b.Rename("moe_shared" + strings.TrimPrefix(b.Name, "moe"))
		}
		return built[A]{b}, len(b.Module.Entry(b.Name).Body), nil
	})
}

type built[A any] struct{ *jit.Kernel[A] }

// NewLauncher implements Built.
func (b built[A]) NewLauncher(f *jit.Function) Launcher { return b.Launcher(f) }

// Product describes the tilings of a product. A kernel refers to its product by [Kernel.Of]. The
// row of the product in spec.Products has its other properties.
type Product struct {
	ID spec.ProductID
	// Space returns the tilings that the cost model chooses from.
	Space func(driver.Target) []gemm.Tiling
	// SharedBytes returns the bytes of shared memory that a CTA needs with a tiling.
	SharedBytes func(gemm.Tiling) int
	// Clocks returns a cost model's estimate for a tiling, in clocks of one SM.
	Clocks func(m tiles.Model, p gemm.Tiling, c spec.Config, t driver.Target) float64
	// NoGroups means that the product does not order its tiles in groups, see gemm.Tiling.GroupM.
	NoGroups bool
}

// String returns the product's name.
func (p *Product) String() string { return p.ID.String() }

// Backward reports whether only the backward pass has the product.
func (p *Product) Backward() bool { return p.ID.Row().Backward }

// Estimate returns a cost model's estimate of the time with a tiling.
func (p *Product) Estimate(m tiles.Model, tiling gemm.Tiling, c spec.Config, t driver.Target) time.Duration {
	return m.Time(p.Clocks(m, tiling, c, t))
}

// Choose returns the tiling with the lowest cost in a cost model.
func (p *Product) Choose(m tiles.Model, c spec.Config, t driver.Target) gemm.Tiling {
	return tiles.Cheapest(p.Space(t), func(q gemm.Tiling) float64 { return p.Clocks(m, q, c, t) })
}

// Check returns an error if the product cannot have the tiling. The error is a [*spec.ArgError].
func (p *Product) Check(tiling gemm.Tiling, t driver.Target) error {
	return tiles.Check("Tiles of "+p.String(), tiling, p.Space(t))
}

// Alternatives lists all tilings that a search considers for a layer, each with its estimate or the
// reason why it is rejected.
func (p *Product) Alternatives(c spec.Config, t driver.Target) []tiles.Alternative {
	s := tiles.Search{Product: p.String(), Space: p.Space(t), SharedBytes: p.SharedBytes, NoGroups: p.NoGroups,
		Estimate: func(q gemm.Tiling) time.Duration { return p.Estimate(tiles.H200, q, c, t) }}
	return s.Alternatives(t)
}

// Candidates lists the tilings of Alternatives that are not rejected.
func (p *Product) Candidates(c spec.Config, t driver.Target) []gemm.Tiling {
	var list []gemm.Tiling
	for _, a := range p.Alternatives(c, t) {
		if a.Rejected == "" {
			list = append(list, a.Tiling)
		}
	}
	return list
}

// Registry lists kernels of a layer, in the order in which the passes launch them.
type Registry []Any

// Of lists the kernels that a layer has.
func (r Registry) Of(c spec.Config) (list Registry) {
	for _, k := range r {
		if k.Suits(c) {
			list = append(list, k)
		}
	}
	return list
}

// Products lists the products of the kernels, in the order of the kernels.
func (r Registry) Products() []*Product {
	var list []*Product
	for _, k := range r {
		if p := k.Product(); p != nil && !slices.Contains(list, p) {
			list = append(list, p)
		}
	}
	return list
}

// Find returns the kernel with that name, or nil.
func (r Registry) Find(name string) Any {
	for _, k := range r {
		if k.Name() == name {
			return k
		}
	}
	return nil
}

// OfProduct lists the kernels of a product. The first one is the kernel that tuning
// times.
func (r Registry) OfProduct(p *Product) []Any {
	var list []Any
	for _, k := range r {
		if k.Product() == p {
			list = append(list, k)
		}
	}
	return list
}

// FindProduct returns the product with that name. The error lists the known names.
func (r Registry) FindProduct(name string) (*Product, error) {
	id, err := spec.ParseProduct(name)
	if err != nil {
		return nil, err
	}
	return r.Product(id), nil
}

// Product returns the product of an id, or nil if no kernel has it.
func (r Registry) Product(id spec.ProductID) *Product {
	for _, k := range r {
		if p := k.Product(); p != nil && p.ID == id {
			return p
		}
	}
	return nil
}

// Check returns nil, or a [*spec.ArgError] that names the first tiling in c that its product cannot
// have on the target.
func (r Registry) Check(c tiles.Choice, t driver.Target) error {
	for _, p := range r.Products() {
		if tiling := c[p.ID]; tiling != (gemm.Tiling{}) {
			if err := p.Check(tiling, t); err != nil {
				return err
			}
		}
	}
	return nil
}

// Choose picks each product's tiling by a cost model.
func (r Registry) Choose(m tiles.Model, c spec.Config, t driver.Target) (choice tiles.Choice) {
	for _, p := range r.Products() {
		choice[p.ID] = p.Choose(m, c, t)
	}
	return choice
}

// RowsPerExpert returns the average number of rows of an expert at the layer's TokensHint, but at
// least 1. It is part of the keys of stored tilings.
func RowsPerExpert(c spec.Config) int {
	tokens := c.TokensHint
	if tokens <= 0 {
		tokens = tiles.DefaultTokens
	}
	return max(1, tokens*c.TopK/max(1, c.NumExperts))
}

// EvenLoad returns the load of the layer at its TokensHint, with the rows spread evenly over the
// experts.
func EvenLoad(c spec.Config) tiles.Load { return tiles.EvenLoad(c.TokensHint, c.TopK, c.NumExperts) }

// StoreBytes returns the bytes of shared memory for a product whose epilogue is gemm.Store.
func StoreBytes(p gemm.Tiling) int { return p.SharedBytes(gemm.StoreBytes) }

// RowStoreBytes returns the bytes of shared memory for a product with gemm.Store whose sums may
// start from a row of biases. It counts the row for layers without biases, too, so that layers with
// and without biases have the same tilings.
func RowStoreBytes(p gemm.Tiling) int { return StoreBytes(p) + p.Stages*p.RowBytes() }
