package parallel

import (
	"sonicmoe/driver"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/exchange"
)

// Traffic counts what a rank has sent to other ranks and received from them in a pass.
type Traffic struct {
	// Tokens is the number of tokens that the rank's experts got. Pairs is the number of pairs of
	// such a token and one of the rank's experts. Both include the rank's own tokens.
	Tokens, Pairs int64
	// Imbalance is Pairs divided by the mean of Pairs over all ranks. It is 0 if there are no
	// pairs.
	Imbalance float64
	// SentBytes and ReceivedBytes are the bytes between this rank and others. Tokens and lists of
	// pairs go one way, rows of Y or their sums the other.
	SentBytes, ReceivedBytes int64
}

// Traffic returns the traffic of this rank's last forward pass.
func (r *Rank) Traffic() (t Traffic) {
	if r.last.rows == nil {
		return t
	}
	own, all := r.transport.Rank(), int64(0)
	for i, rows := range r.last.rows {
		t.Tokens += rows[own]
		all += r.receives(&r.last, i)
		if i != own {
			there, here := r.pairsTo(&r.last, own, i), r.pairsTo(&r.last, i, own)
			toOwner, toHome, entry := r.last.rows[own][i], here, int64(exchange.EntryBytes)
			fromOwner, fromHome := there, rows[own]
			if r.sums() {
				toHome, fromOwner, entry = rows[own], r.last.rows[own][i], entry+exchange.SlotBytes
			}
			t.SentBytes += r.rowBytes(int(toOwner+toHome)) + entry*there
			t.ReceivedBytes += r.rowBytes(int(fromHome+fromOwner)) + entry*here
		}
	}
	t.Pairs = r.receives(&r.last, own)
	if all > 0 {
		t.Imbalance = float64(t.Pairs) * float64(len(r.last.rows)) / float64(all)
	}
	return t
}

// Part returns the weights for a pass of this rank. whole has the weights of the whole layer on the
// rank's device, and the result points into them.
func (r *Rank) Part(whole moe.Weights) (w moe.Weights) {
	first, _ := r.Experts()
	for id, shape := range r.WeightShapes() {
		of := *whole.Weight(id)
		if !isHome(id) && of.Shape.Dims[0] > 0 {
			of.Ptr += driver.DevicePtr(of.Shape.Bytes() / of.Shape.Dims[0] * int64(first))
			of.Shape = shape
		}
		*w.Weight(id) = of
	}
	return w
}
