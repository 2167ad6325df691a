package main

import (
	"errors"

	"sonicmoe/driver"
	"sonicmoe/internal/num"
	"sonicmoe/jit"
	"sonicmoe/moe"
)

// deviceWeight is a weight on a device. It has a bf16 copy for the layer, and FP32 tensors for
// the sum of the gradients and for Adam.
type deviceWeight struct {
	layer, grad        moe.Tensor
	main, mean, square driver.DevicePtr
	update             *jit.Launcher[adamArgs]
}

// newWeight copies a weight, given as bf16 bits, to the device. If the weight learns, it also
// allocates the tensors for training.
func (d *device) newWeight(shape moe.Shape, bits []uint16, learns bool) (w deviceWeight, err error) {
	w.layer = d.memory.Tensor(shape)
	if err := errors.Join(d.memory.Err(), d.put(w.layer, num.Bytes(bits))); err != nil || !learns {
		return w, err
	}
	shape.Type = moe.F32
	w.grad = d.memory.Tensor(shape)
	w.main, w.mean, w.square = d.memory.Tensor(shape).Ptr, d.memory.Tensor(shape).Ptr, d.memory.Tensor(shape).Ptr
	if err := d.memory.Err(); err != nil {
		return w, err
	}
	err = errors.Join(d.stream.CopyToDevice(w.main, num.Bytes(singles(widen(bits)))),
		d.stream.Fill32(w.mean, 0, shape.Elements()), d.stream.Fill32(w.square, 0, shape.Elements()))
	w.update = d.adamKernel.Launcher(d.adam)
	return w, err
}

// step queues the optimizer's kernel.
func (w *deviceWeight) step(s driver.Stream, a adam) error {
	rate, square := a.scales()
	return w.update.Launch(s, adamArgs{
		Weight: w.layer.Ptr, Main: w.main, Mean: w.mean, Square: w.square, Grad: w.grad.Ptr,
		Rate: float32(rate), SquareScale: float32(square), N: int(w.grad.Shape.Elements()),
	})
}
