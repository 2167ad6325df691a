package moe

import (
	"sonicmoe/driver"
	"sonicmoe/jit"
)

// binding is one kernel of a Call with its parameters, kept between runs.
type binding struct {
	*jit.Binding
	label   string    // the kernel's name in Layer.Kernels
	observe *Observer // its Call's
}

func newBinding(dev driver.Device, k *loaded, label string, observe *Observer) binding {
	shape := driver.Launch{Block: driver.Dim3{X: k.Threads}, SharedBytes: k.SharedBytes, Programmatic: true, Cluster: driver.Dim3{X: k.CTAs}}
	return binding{k.fn.Bind(dev, shape), label, observe}
}

func (b *binding) ptr(name string, p driver.DevicePtr) { b.Ptr(name, p) }

func (b *binding) u32(name string, n int) { b.U32(name, uint32(n)) }

func (b *binding) tensorMap(name string, m driver.TensorMap) error { return b.TensorMap(name, m) }

// persist queues the kernel with a CTA on each SM, whole clusters only.
func (b *binding) persist(s driver.Stream, sms int) error {
	cluster := max(1, b.Shape.Cluster.X)
	return b.run(s, max(1, sms/cluster)*cluster)
}

// run queues the kernel with so many CTAs.
func (b *binding) run(s driver.Stream, ctas int) error {
	b.Shape.Grid.X = ctas
	if f := *b.observe; f != nil {
		if err := f(b.label, s); err != nil {
			return err
		}
	}
	return b.Launch(s)
}
