package main

import (
	"errors"

	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/moe"
	"sonicmoe/moe/trial"
)

// deviceWeight is a weight on a device: bf16 for the layer, FP32 to add up
// gradients and steps in.
type deviceWeight struct {
	layer, grad        moe.Tensor
	main, mean, square driver.DevicePtr
	update             *jit.Binding
}

// newWeight puts a weight, given as bf16 bits, on the device. A frozen one has
// no more than these.
func (d *device) newWeight(shape moe.Shape, bits []uint16) (w deviceWeight, err error) {
	if err := d.tensors(slot{&w.layer, shape}); err != nil {
		return w, err
	}
	if err := d.put(w.layer, trial.Bytes(bits)); err != nil || d.frozen {
		return w, err
	}
	shape.Type = moe.F32
	if err := d.tensors(slot{&w.grad, shape}); err != nil {
		return w, err
	}
	for _, p := range []*driver.DevicePtr{&w.main, &w.mean, &w.square} {
		if *p, err = d.alloc(shape.Bytes()); err != nil {
			return w, err
		}
	}
	err = errors.Join(d.stream.CopyToDevice(w.main, trial.Bytes(singles(widen(bits)))),
		d.stream.Fill32(w.mean, 0, shape.Elements()), d.stream.Fill32(w.square, 0, shape.Elements()))
	n := int(shape.Elements())
	w.update = d.adam.Bind(d.dev, driver.Launch{
		Grid: driver.Dim3{X: (n + adamThreads - 1) / adamThreads}, Block: driver.Dim3{X: adamThreads}})
	for name, p := range map[string]driver.DevicePtr{"weight": w.layer.Ptr, "main": w.main, "mean": w.mean, "square": w.square, "grad": w.grad.Ptr} {
		w.update.Ptr(name, p)
	}
	w.update.U32("n", uint32(n))
	return w, err
}

// step queues the optimizer's kernel.
func (w *deviceWeight) step(s driver.Stream, a adam) error {
	rate, square := a.scales()
	w.update.F32("rate", float32(rate))
	w.update.F32("squareScale", float32(square))
	return w.update.Launch(s)
}
