package moe

import (
	"encoding/binary"
	"fmt"

	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/moe/internal/fragments"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/kernel/decode"
)

// This file has the code for packed weights in a pass.

// unpack queues the kernel that unpacks packed weights, after a plan. It changes the addresses in w
// to the addresses of the values in the workspace at p. It does nothing for plain weights. With beside
// the kernel leaves room on each SM for the kernel after it.
func (q *queue) unpack(w *Weights, p driver.DevicePtr, places indices, beside bool) {
	if to, packed := q.unpacked(w, p, places); packed {
		to.Beside = beside
		launch(q, kernel.UnpackKernel, to)
	}
}

// unpacked changes the addresses in w to the addresses of unpacked values, and returns the arguments
// of the kernel that unpacks. packed reports whether the layer has packed weights.
func (q *queue) unpacked(w *Weights, p driver.DevicePtr, places indices) (to kernel.UnpackArgs, packed bool) {
	if !spec.IsPacked(q.layer.of.Config) {
		return to, false
	}
	to = kernel.UnpackArgs{
		W1: w.W1.Ptr, W3: w.W3.Ptr, W2: w.W2.Ptr, W1Scale: w.W1Scale.Ptr, W3Scale: w.W3Scale.Ptr, W2Scale: w.W2Scale.Ptr,
		W1Zero: w.W1Zero.Ptr, W3Zero: w.W3Zero.Ptr, W2Zero: w.W2Zero.Ptr, W1Global: w.W1Global.Ptr, W3Global: w.W3Global.Ptr, W2Global: w.W2Global.Ptr,
		Offsets: at(p, places.offsets), Ready: at(p, places.ready), ToW1: at(p, places.w1), ToW3: at(p, places.w3), ToW2: at(p, places.w2),
	}
	w.W1.Ptr, w.W3.Ptr, w.W2.Ptr = to.ToW1, to.ToW3, to.ToW2
	return to, true
}

// besides reports whether the up-projection of a pass runs next to the kernel that unpacks: in large
// batches without a list, if H is not kept. The plan of a small batch may come from choose.ChooseKernel,
// which does not set the counters of Unpack to 0.
func (q *queue) besides(n work, f *ForwardArgs, w pieces) bool {
	small := &q.layer.smallBatch
	return kernel.HasBeside(q.layer.of.Config) && !n.list && n.tokens >= small.besideFrom && !small.decodes(n.tokens) && q.keptH(f, w) == 0
}

// checkNoPacked refuses gradients of packed weights.
func (c *Call) checkNoPacked(g *WeightGradients) {
	p := spec.PackingOf(c.layer.of.Config)
	if p == nil {
		return
	}
	for _, id := range spec.ExpertWeights {
		if d := g.Gradient(id); spec.Row(id).Type == spec.OfCodes && !d.IsZero() {
			c.check.fail(spec.Row(id).GradientID.String(), d.Shape.String(), fmt.Sprintf("none: %v is packed (%s), and packed weights have no gradients; DX and DScores have", id, p.Name))
		}
	}
}

// refusedBytes is the size of the count of refused values, which follows the units.
const refusedBytes = 16

// unitsBytes is the size of the units and of the count of refused values.
func (l *Layer) unitsBytes() int64 {
	if spec.IsPlain(l.of.Config) || spec.HasLoRA(l.of.Config) {
		return 0
	}
	return fragments.W1(l.of.Config).Bytes() + fragments.W2(l.of.Config).Bytes() + refusedBytes
}

// units returns the addresses of the units of W1 and of W2.
func (l *Layer) units(of Buffer) (first, second driver.DevicePtr) {
	return of.Ptr, at(of.Ptr, fragments.W1(l.of.Config).Bytes())
}

// readsUnits reports whether the products of a pass read units.
func (q *queue) readsUnits(n work, f *ForwardArgs) bool {
	return f.Units.Bytes > 0 && !n.list && n.tokens <= q.layer.smallBatch.unitsUpTo
}

// checkUnits checks the buffer Units of a pass, unless the buffer is zero. Weights without units
// must have no such buffer.
func (c *Call) checkUnits(b Buffer) {
	if b == (Buffer{}) {
		return
	}
	need := c.layer.unitsBytes()
	switch {
	case need == 0:
		c.check.fail("Units", fmt.Sprintf("%d bytes", b.Bytes), "none: only packed weights have units, and those of a layer with LoRARank only with LoRAAdapters")
	case b.Bytes < need:
		c.check.fail("Units", fmt.Sprintf("%d bytes", b.Bytes), fmt.Sprintf("at least %d bytes (Layer.Sizes, Units)", need))
	default:
		c.check.add("Units", b.Ptr, need, workspaceAlignment, false)
	}
}

// Arrange writes the units of packed weights, for ForwardArgs.Units. They are the same codes and
// scales in the order in which the kernels for small batches read them. Arrange waits for the
// stream. It returns an error with the number of values that units cannot represent. These are codes
// that are NaN, zero points above 15, and scales that are infinite, NaN or too large: above 2^1 in
// "mxfp4", above 2^7 in "fp8-ue8m0", from 2^8 on in "fp8" and "fp8-tensor", from 2^2 on in "nvfp4",
// and from 2^-1 on for INT4 in bf16 layers. Scales of "fp8", "fp8-tensor" and "nvfp4" (with the
// global scale) below 2^-90, but not 0, are refused, too. Passes without units can have such values.
//
// A graph can capture Arrange, to arrange weights that change in place. Arrange then waits for
// nothing and checks no values. After a launch of the graph, the number of such values is a u32 in
// the last 16 bytes of the Sizes.Units bytes, and passes over the units are right if it is 0.
func (c *Call) Arrange(s driver.Stream, w Weights, to Buffer) error {
	if err := c.ready(s); err != nil {
		return err
	}
	defer c.end()
	need := c.layer.unitsBytes()
	if need == 0 {
		return &ArgError{Field: "Layer", Got: "without units", Want: "one of packed weights, and with LoRARank only with LoRAAdapters"}
	}
	want := &c.laid(c.layer.work(0)).shapes
	c.check.weights(spec.ExpertWeights, &w, want)
	if to.Bytes < need {
		c.check.fail("Units", fmt.Sprintf("%d bytes", to.Bytes), fmt.Sprintf("at least %d bytes (Layer.Sizes, Units)", need))
	} else {
		c.check.add("Units", to.Ptr, need, workspaceAlignment, true)
	}
	switch {
	case c.check.overlaps() != nil:
		return c.check.overlaps()
	case !c.layer.smallBatch.decodes(1):
		return &ArgError{Field: "Units", Got: "wanted", Want: "none: the layer has no kernels for small batches (WithoutDecode)"}
	}
	first, second := c.layer.units(to)
	refused := at(to.Ptr, c.layer.unitsBytes()-refusedBytes)
	if err := s.Fill32(refused, 0, 1); err != nil {
		return err
	}
	q := c.queue(s)
	launch(q, decode.ArrangeKernel, fragments.ArrangeArgs{
		W1: w.W1.Ptr, W3: w.W3.Ptr, W2: w.W2.Ptr, W1Scale: w.W1Scale.Ptr, W3Scale: w.W3Scale.Ptr, W2Scale: w.W2Scale.Ptr,
		W1Zero: w.W1Zero.Ptr, W3Zero: w.W3Zero.Ptr, W2Zero: w.W2Zero.Ptr, W1Global: w.W1Global.Ptr, W3Global: w.W3Global.Ptr, W2Global: w.W2Global.Ptr, Units1: first, Units2: second, Refused: refused,
	})
	if q.err != nil {
		return q.err
	}
	if capturing, err := isCapturing(s); err != nil || capturing {
		return err
	}
	var count [4]byte
	if err := s.CopyToHost(count[:], refused); err != nil {
		return err
	}
	if n := binary.LittleEndian.Uint32(count[:]); n != 0 {
		return &ArgError{Field: "Weights", Got: fmt.Sprintf("packed with %d values that units cannot hold", n), Want: "packed with finite codes, zero points up to 15, and scales in the range that Call.Arrange documents"}
	}
	return nil
}
