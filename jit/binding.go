package jit

import (
	"fmt"
	"strings"

	"sonicmoe/driver"
	"sonicmoe/ptx"
)

// Binding is a function with its packed parameters, which are set by name and
// stay from launch to launch. Setting and launching allocate nothing but what
// the device does to encode a tensor map, when that has changed. It belongs to
// one goroutine at a time.
//
// A parameter set wrongly is an error of every later Launch, which queues
// nothing.
type Binding struct {
	// Shape is the shape of the next launch.
	Shape driver.Launch

	fn     *Function
	dev    driver.Device
	packed []byte
	params map[string]*bound
	wrong  error // the first mistake in setting
}

// bound is a parameter, with the map that was encoded last.
type bound struct {
	ptx.Param
	tensorMap driver.TensorMap
	encoded   bool
}

// Bind makes a binding with all parameters zero, for launches on dev, the
// device that the function was loaded for.
func (f *Function) Bind(dev driver.Device, shape driver.Launch) *Binding {
	b := &Binding{Shape: shape, fn: f, dev: dev, params: map[string]*bound{}}
	for _, p := range f.params {
		b.params[p.Name] = &bound{Param: p}
		b.packed = append(b.packed, make([]byte, p.Offset+p.Bytes-len(b.packed))...)
	}
	return b
}

// Params are the function's parameters in their order. They are not to be
// changed.
func (f *Function) Params() []ptx.Param { return f.params }

// Ptr sets a 64-bit parameter to an address.
func (b *Binding) Ptr(name string, p driver.DevicePtr) { put(b, name, p) }

// U32 sets a 32-bit parameter.
func (b *Binding) U32(name string, v uint32) { put(b, name, v) }

// F32 sets a 32-bit parameter to a float.
func (b *Binding) F32(name string, v float32) { put(b, name, v) }

// TensorMap encodes a map into a parameter unless it is there already. An
// error is the device's, and leaves the parameter as it was.
func (b *Binding) TensorMap(name string, m driver.TensorMap) error {
	p := b.params[name]
	if p == nil || p.Bytes != len(driver.EncodedTensorMap{}) {
		b.mistake(name, m)
		return nil
	}
	if p.encoded && p.tensorMap == m {
		return nil
	}
	e, err := b.dev.EncodeTensorMap(m)
	if err != nil {
		return fmt.Errorf("tensor map %s of kernel %s: %w", name, b.fn.name, err)
	}
	put(b, name, e)
	p.tensorMap, p.encoded = m, true
	return nil
}

// Set sets a parameter to a driver.DevicePtr, driver.TensorMap, uint32,
// float32 or, from 0 to 2^32-1, int. It is for where speed does not count:
// it may allocate.
func (b *Binding) Set(name string, value any) error {
	switch v := value.(type) {
	case driver.DevicePtr:
		b.Ptr(name, v)
	case driver.TensorMap:
		if err := b.TensorMap(name, v); err != nil {
			return err
		}
	case uint32:
		b.U32(name, v)
	case float32:
		b.F32(name, v)
	case int:
		if int(uint32(v)) != v {
			b.fail("parameter %s is %d, must be from 0 to 2^32-1", name, v)
			break
		}
		b.U32(name, uint32(v))
	default:
		b.fail("parameter %s is a %T, must be a driver.DevicePtr, driver.TensorMap, uint32, float32 or int", name, value)
	}
	return b.wrong
}

// put writes a parameter where it belongs.
func put[P driver.Param](b *Binding, name string, value P) {
	p := b.params[name]
	if p == nil {
		b.mistake(name, value)
		return
	}
	end := p.Offset + p.Bytes
	// The cap keeps a wrong type's bytes from the parameter after it.
	if n := len(driver.AppendParam(b.packed[:p.Offset:end], value)); n != end {
		b.mistake(name, value)
	}
}

// mistake is that of a value which no parameter of the name can have.
func (b *Binding) mistake(name string, value any) {
	if p := b.params[name]; p != nil {
		b.fail("parameter %s has %d bytes, a %T has not", name, p.Bytes, value)
		return
	}
	b.fail("there is no parameter %s, only %s", name, b.names())
}

func (b *Binding) fail(format string, args ...any) {
	if b.wrong == nil {
		b.wrong = &driver.Error{Op: "parameters of kernel " + b.fn.name, Name: "invalid value",
			Text: fmt.Sprintf(format, args...), Kernel: b.fn.name, Kind: driver.ErrInvalid}
	}
}

func (b *Binding) names() string {
	var list []string
	for _, p := range b.fn.params {
		list = append(list, p.Name)
	}
	return strings.Join(list, ", ")
}

// Launch queues the kernel on s with the present shape and parameters. Errors
// name the kernel and, of an emulated device, the Go line at fault.
func (b *Binding) Launch(s driver.Stream) error {
	err := b.wrong
	if err == nil {
		err = s.Launch(b.fn.Function, &b.Shape, b.packed)
	}
	if err != nil {
		return fmt.Errorf("launching kernel %s: %w", b.fn.name, b.fn.Explain(err))
	}
	return nil
}
