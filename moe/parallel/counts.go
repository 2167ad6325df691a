package parallel

import (
	"encoding/binary"
	"fmt"

	"sonicmoe/moe"
)

// counts has the counts of a pass, which all ranks share. rows[i][j] is the number of tokens that
// rank i sends to rank j. pairs[i][e] is the number of pairs of tokens of rank i with expert e.
// tokens[i] is the number of tokens of rank i.
type counts struct {
	rows, pairs [][]int64
	tokens      []int64
}

// count chooses the experts if routed, sorts pairs by expert and rows by rank, and shares the counts
// with all ranks.
func (p *pass) count(at Step, routed bool) error {
	experts := p.Config.NumExperts
	words := make([]int64, experts+p.transport.Ranks()+1)
	words[len(words)-1] = int64(p.mine)
	if p.mine > 0 {
		err := p.span(Span{Name: "route"}, p.s, func() error {
			if routed {
				if err := p.call.Route(p.s, p.home); err != nil {
					return err
				}
			}
			return steps.Split(p.call, p.s, p.split, p.home.Workspace.Ptr)
		})
		if err != nil {
			return err
		}
		if err := p.readCounts(words); err != nil {
			return err
		}
	}
	all, err := p.transport.Share(p.ctx, at, words)
	if err != nil {
		return err
	}
	for _, of := range all {
		p.pairs, p.rows, p.tokens = append(p.pairs, of[:experts]), append(p.rows, of[experts:len(of)-1]), append(p.tokens, of[len(of)-1])
	}
	p.divide()
	p.last = p.counts
	if p.args.Saved != nil {
		p.args.Saved.counts = p.counts
	}
	if err := p.fits(); err != nil {
		return err
	}
	if p.received, err = p.place(p.args.Saved, part(p.args.Workspace, p.w.window)); p.received.sharedH != 0 {
		p.home.SharedH = p.savedSharedH()
	}
	return err
}

// savedSharedH returns the H of the shared experts.
func (p *pass) savedSharedH() moe.Tensor {
	return moe.Tensor{Ptr: p.received.sharedH, Shape: p.sharedH(p.mine)}
}

// readCounts reads from the device how many pairs go to each expert, and how many rows go to each
// rank.
func (p *pass) readCounts(words []int64) error {
	each := p.Config.NumExperts + 1
	raw := make([]byte, 8*each)
	if err := p.s.CopyToHost(raw, p.split.PairOffsets); err != nil {
		return err
	}
	count := func(i int) int64 {
		return int64(binary.LittleEndian.Uint32(raw[4*(i+1):])) - int64(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	for i := range words[:len(words)-1] {
		if words[i] = count(i); i >= each-1 {
			words[i] = count(i + 1) // the offsets of rows follow those of pairs
		}
	}
	return nil
}

// fits returns an error if any rank would receive more than its window has room for. All ranks find
// the same error, because all have the same counts.
func (p *pass) fits() error {
	c := p.Config
	for to := range p.transport.Ranks() {
		experts := p.firstOf(to+1) - p.firstOf(to)
		rows, pairs := sum(column(p.rows, to)), p.receives(&p.counts, to)
		if room := int64(p.windowRows()); rows > room || pairs > room*int64(min(c.TopK, experts)) {
			return fmt.Errorf("rank %d gets %d tokens with %d pairs, its window has room for %d and %d: the experts of a token must differ",
				to, rows, pairs, room, room*int64(min(c.TopK, experts)))
		}
	}
	return nil
}
