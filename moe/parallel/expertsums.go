package parallel

import (
	"sonicmoe/driver"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/route/training"
)

// routerBias computes the gradient of the router's biases. The owner of an expert adds the gradients
// of its logits in the order of the rows, then in the order of the tokens if all logits have gradients.
func (p *backward) routerBias(at Step) error {
	if !p.wantsRouterBias() {
		return nil
	}
	values, dense := driver.DevicePtr(0), driver.DevicePtr(0)
	if training.Sparse(p.Config) {
		values = p.at(p.b.dlogits)
	}
	if training.Dense(p.Config) || !p.of.DLogits.IsZero() || p.hasLosses() {
		var err error
		if dense, err = p.allLogits(at); err != nil {
			return err
		}
		first, _ := p.Experts()
		dense += driver.DevicePtr(4 * first)
	}
	return p.sumExperts(at, p.of.DRouterBias, values, dense)
}

// expertScales computes the gradient of the experts' scales. The owner of an expert adds the parts of its
// rows in the order of the rows.
func (p *backward) expertScales(at Step) error {
	if p.of.DExpertScale.IsZero() {
		return nil
	}
	values := p.at(p.b.dlogits)
	if err := p.move(at.moving("parts"), p.s, p.pairsOut(4, p.scales, values)); err != nil {
		return err
	}
	return p.sumExperts(at, p.of.DExpertScale, values, 0)
}

// sumExperts computes a gradient [E], the sums of each expert. values has a value for each received
// pair, or is 0. dense points to the column of this rank's first expert in values [T, E] of the tokens of
// all ranks, or is 0. Every rank gets all sums.
func (p *backward) sumExperts(at Step, to moe.Gradient, values, dense driver.DevicePtr) error {
	first, count := p.Experts()
	of := training.ExpertSumsArgs{Dense: dense, Sums: p.at(p.b.sums), Tokens: int(sum(p.tokens)), Columns: p.Config.NumExperts}
	if to.Accumulate {
		of.Add = to.Ptr + driver.DevicePtr(4*first)
	}
	if p.receives(&p.counts, p.transport.Rank()) == 0 {
		values = 0
	}
	if err := steps.ExpertSums(p.pass.experts, p.s, p.experts, values, of); err != nil {
		return err
	}
	e := Exchange{Send: of.Sums, Receive: to.Ptr, Same: true}
	for rank := range p.transport.Ranks() {
		e.SendBytes, e.ReceiveBytes = append(e.SendBytes, 4*int64(count)), append(e.ReceiveBytes, 4*int64(p.firstOf(rank+1)-p.firstOf(rank)))
	}
	return p.move(at.moving("sums"), p.s, e)
}

// allLogits gathers the gradients [T, E] of the logits of all ranks' tokens, and returns their address.
func (p *backward) allLogits(at Step) (driver.DevicePtr, error) {
	inputs, err := steps.RouterInputs(p.call, p.s, p.atHome)
	if err != nil {
		return 0, err
	}
	e := p.gather(inputs.Dense, p.at(p.b.dense), 4*int64(p.Config.NumExperts))
	return e.Receive, p.move(at.moving("logits"), p.s, e)
}

// gather returns the exchange that gives every rank a tensor of all ranks' tokens. A token has a number
// of bytes.
func (p *backward) gather(send, receive driver.DevicePtr, bytes int64) Exchange {
	e := Exchange{Send: send, Receive: receive, Same: true}
	for _, n := range p.tokens {
		e.SendBytes, e.ReceiveBytes = append(e.SendBytes, bytes*int64(p.mine)), append(e.ReceiveBytes, bytes*n)
	}
	return e
}
