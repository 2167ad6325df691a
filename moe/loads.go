package moe

import (
	"fmt"

	"sonicmoe/driver"
	"sonicmoe/moe/internal/route/training"
)

// Loads queues on s a count of the tokens of each expert: it adds to loads [E] i32 the number of
// tokens that chose each expert. ids [T, K] i32 are the ExpertIDs of a Forward with any number of
// tokens. Call it once for each micro-batch; the caller sets loads to zero before the first one.
// Ids outside [0, E) are not counted, and rounding does not change the counts. The counts are the
// same on every run.
//
// It needs no workspace, and a graph may capture it. A layer without a backward pass does not have it.
func (c *Call) Loads(s driver.Stream, ids, loads Tensor) error {
	if err := c.readyToTrain(s); err != nil {
		return err
	}
	defer c.end()
	of := c.layer.of.Config
	t, err := c.layer.tokensOf("ids", ids, I32, of.TopK)
	if err != nil {
		return err
	}
	c.check.tensor("ids", ids, TensorAt(0, I32, t, of.TopK).Shape, false)
	c.check.tensor("loads", loads, TensorAt(0, I32, of.NumExperts).Shape, true)
	if err := c.check.overlaps(); err != nil || t == 0 {
		return err
	}
	q := c.queue(s)
	launch(q, training.LoadsKernel, training.LoadsArgs{ExpertIDs: ids.Ptr, Loads: loads.Ptr, TokenRanges: c.ranges(t)})
	return q.err
}

// UpdateSelectionBias queues on s a step of auxiliary-loss-free load balancing
// (arXiv 2408.15664, and DeepSeek-V3, with rate 1e-3). The bias [E] f32 of an
// expert grows by rate if its load is below the mean of loads [E] i32, falls by
// rate if it is above, and stays if it equals the mean. The comparison is exact.
// Loads must not be negative; they become 0 for the next step.
//
// Call it after Loads of all micro-batches of a step. If ranks share a layer, loads
// must be the sum over the ranks. It needs no workspace, and a graph may capture
// it. The layer must have a backward pass and Config.SelectionBias; the bias is
// Weights.SelectionBias.
func (c *Call) UpdateSelectionBias(s driver.Stream, loads, bias Tensor, rate float32) error {
	if err := c.readyToTrain(s); err != nil {
		return err
	}
	defer c.end()
	of := c.layer.of.Config
	if !of.SelectionBias {
		c.check.fail("Config.SelectionBias", "false", "true: the layer chooses experts without a bias, there is none to update")
	}
	if rate-rate != 0 {
		c.check.fail("rate", fmt.Sprint(rate), "a finite step, such as 1e-3")
	}
	c.check.tensor("loads", loads, TensorAt(0, I32, of.NumExperts).Shape, true)
	c.check.tensor("bias", bias, TensorAt(0, F32, of.NumExperts).Shape, true)
	if err := c.check.overlaps(); err != nil {
		return err
	}
	q := c.queue(s)
	launch(q, training.BalanceBiasKernel, training.BalanceBiasArgs{Loads: loads.Ptr, Bias: bias.Ptr, Rate: rate})
	return q.err
}

// readyToTrain reserves the call like ready, and refuses a layer without backward
// kernels.
func (c *Call) readyToTrain(s driver.Stream) error {
	if err := c.ready(s); err != nil {
		return err
	}
	err := c.layer.trains()
	if err != nil {
		c.end()
	}
	return err
}
