package parallel

import (
	"sonicmoe/internal/spec"
	"sonicmoe/jit/schedule"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/exchange"
	"sonicmoe/moe/internal/kernel/dh"
)

// This file sends the rows of dO to the owners, which compute dH. In a large pass a rank first computes dH
// for its own tokens' rows, while rows of other ranks arrive. Then it computes dH for the rows of each group
// of other ranks, while the rows of the next group arrive.

// inPortions reports whether the pass divides the rows of dH. The products of an adapter have all rows at once.
func (p *backward) inPortions() bool { return !p.small && !spec.HasLoRA(p.Config) }

// backwardPlan makes the uploads of a backward pass.
func (p *backward) backwardPlan() (u plan) {
	u.shifts = u.add(p.shifts(p.dxRows())...)
	if !p.inPortions() {
		return u
	}
	portionOf := p.portionsOfHomes()
	tables := make([][]uint32, p.groups+1)
	for expert := range len(p.madeBefore) - 1 {
		p.addRows(tables, expert, portionOf)
	}
	u.own[0] = u.upload(tables[0])
	for _, table := range tables[1:] {
		u.others = append(u.others, u.upload(table))
	}
	return u
}

// portionsOfHomes returns the number of the portion in which each rank's tokens arrive: 0 for this rank, and the
// number of its group plus 1 for another rank.
func (p *backward) portionsOfHomes() []int {
	list := make([]int, p.transport.Ranks())
	for group := range p.groups {
		for home := range list {
			if p.serves(group, p.transport.Rank(), home) {
				list[home] = group + 1
			}
		}
	}
	return list
}

// addRows adds the rows of one of this rank's experts to the tables of the portions. The gradient of b1 is made of
// sums over blocks of dh.ColumnSumRows rows of the expert, so a block is not divided. It is in the portion in which
// its last rows arrive.
func (p *backward) addRows(tables [][]uint32, expert int, portionOf []int) {
	first, _ := p.Experts()
	of, before := column(p.pairs, first+expert), p.madeBefore[expert]
	home, end := 0, of[0] // end is the number of rows of this home and the homes before it
	for row, rows := int64(0), sum(of); row < rows; row += dh.ColumnSumRows {
		latest, next := 0, min(row+dh.ColumnSumRows, rows)
		if row < end {
			latest = portionOf[home]
		}
		for ; end < next; end += of[home] {
			if home++; of[home] > 0 {
				latest = max(latest, portionOf[home])
			}
		}
		at, count := uint32(before+row), uint32(next-row)
		table := tables[latest]
		if n := len(table); n > 0 && table[n-4] == uint32(expert) && table[n-3]+table[n-2] == at && table[n-2]+count <= schedule.PairRows {
			table[n-2] += count
		} else {
			tables[latest] = append(table, uint32(expert), at, count, 0)
		}
	}
}

// dispatch sends the rows of dO to the owners of their tokens' experts, and computes dH.
func (p *backward) dispatch(at Step) error {
	rows := p.rowsOut(p.at(p.b.send), p.at(p.b.window))
	if err := p.span(Span{Name: "pack"}, p.s, func() error { return p.pack(p.of.DO.Ptr, &rows) }); err != nil {
		return err
	}
	f := p.expertArgs(part(p.of.Workspace, p.b.owner))
	p.experts.X, p.experts.List, p.experts.H, p.experts.LoraU, p.experts.Workspace = f.X, f.List, f.H, f.LoraU, f.Workspace
	p.experts.DO = moe.Tensor{Ptr: p.at(p.b.window), Shape: f.X.Shape}
	if err := p.send(at, p.inPortions(), rows, func() error { return p.dH(Span{Name: "own dH"}, p.plan.own[0]) }); err != nil {
		return err
	}
	if !p.inPortions() {
		if p.receives(&p.counts, p.transport.Rank()) == 0 {
			return nil
		}
		return p.span(Span{Name: "dH"}, p.s, func() error { return steps.GradientH(p.pass.experts, p.s, p.experts, exchange.Work{}) })
	}
	for group, portion := range p.plan.others {
		if group > 0 {
			if err := p.s.Wait(p.arrived[group-1]); err != nil {
				return err
			}
		}
		if err := p.dH(Span{Name: "dH", Chunk: group}, portion); err != nil {
			return err
		}
	}
	return nil
}

// dH queues dH for a portion of the rows.
func (p *backward) dH(of Span, part portion) error {
	if part.entries == 0 {
		return nil
	}
	return p.span(of, p.s, func() error { return steps.GradientH(p.pass.experts, p.s, p.experts, p.work(part)) })
}
