package moe

import (
	"encoding/binary"
	"fmt"

	"sonicmoe/driver"
)

// binding is one kernel's packed parameters, kept between calls.
type binding struct {
	*loaded
	dev     driver.Device
	buf     []byte
	offsets map[string]int
	maps    map[string]*driver.TensorMap // as encoded in buf
	launch  driver.Launch
	label   string    // the kernel's name in Layer.Kernels
	observe *Observer // its Call's
}

func newBinding(dev driver.Device, k *loaded, label string, observe *Observer) binding {
	b := binding{loaded: k, dev: dev, label: label, observe: observe, buf: make([]byte, k.params), offsets: map[string]int{}, maps: map[string]*driver.TensorMap{}}
	for _, p := range k.Module.Entry(k.Name).Params {
		b.offsets[p.Name] = p.Offset
		if p.Bytes == len(driver.EncodedTensorMap{}) {
			b.maps[p.Name] = new(driver.TensorMap)
		}
	}
	b.launch = driver.Launch{Block: driver.Dim3{X: k.Threads}, SharedBytes: k.SharedBytes, Programmatic: true}
	return b
}

func (b *binding) at(name string) []byte {
	o, ok := b.offsets[name]
	if !ok {
		panic(fmt.Sprintf("kernel %s has no parameter %s", b.Name, name)) // a mistake of this package, met by every test
	}
	return b.buf[o:]
}

func (b *binding) ptr(name string, p driver.DevicePtr) {
	binary.LittleEndian.PutUint64(b.at(name), uint64(p))
}

func (b *binding) u32(name string, n int) {
	binary.LittleEndian.PutUint32(b.at(name), uint32(n))
}

// tensorMap encodes m into the parameters unless it is there already.
func (b *binding) tensorMap(name string, m driver.TensorMap) error {
	old := b.maps[name]
	if *old == m {
		return nil
	}
	e, err := b.dev.EncodeTensorMap(m)
	if err != nil {
		return fmt.Errorf("tensor map %s of kernel %s: %w", name, b.Name, err)
	}
	copy(b.at(name), e[:])
	*old = m
	return nil
}

// run queues the kernel with so many CTAs.
func (b *binding) run(s driver.Stream, ctas int) error {
	b.launch.Grid.X = ctas
	if f := *b.observe; f != nil {
		if err := f(b.label, s); err != nil {
			return err
		}
	}
	if err := s.Launch(b.fn.Function, &b.launch, b.buf); err != nil {
		return fmt.Errorf("launching kernel %s: %w", b.Name, b.fn.Explain(err))
	}
	return nil
}
