package moe

import (
	"fmt"

	"sonicmoe/driver"
	"sonicmoe/moe/internal/route/training"
)

// Loads queues on s the counting of a choice: it adds to loads [E] i32 how many
// tokens chose each expert of ids [T, K] i32, the ExpertIDs of a Forward of any
// number of tokens. Micro-batches add up, each by a call; the caller zeroes loads
// before the first. Ids outside [0, E) count for nobody, and what Config.Rounding
// makes of a choice does not show. The counts are the same on every run.
//
// It needs no workspace and may be captured in a graph. A layer made
// WithoutBackward does not have it.
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
// (arXiv 2408.15664, and DeepSeek-V3, whose rate is 1e-3): of an expert with fewer
// tokens than the mean of loads [E] i32 the bias [E] f32 grows by rate, of one with
// more it falls, of one that has the mean it stays. The mean is compared exactly.
// Loads, none below 0, become 0 for the next step.
//
// It follows Loads of all of a step's micro-batches, and where ranks share a layer
// the sum of their loads. Like Loads it needs no workspace, may be captured, and is
// of layers with backward; and of those with Config.SelectionBias, whose
// Weights.SelectionBias is the bias.
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

// readyToTrain is ready, and refuses a layer without the kernels of training.
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
