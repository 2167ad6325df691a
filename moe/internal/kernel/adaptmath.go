package kernel

import (
	"sonicmoe/internal/spec"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/activation"
	"sonicmoe/moe/internal/weights"
	"sonicmoe/ptx"
)

// This file has the two products of Adapt, with FactorA and with FactorB, and the stores.

// rows adapts up to 16 rows of one expert and one adapter. It loads the first part of FactorB before
// the warps add their parts of u. It waits for Up or Down before it reads their results.
func (e *adapting) rows(r adapted) {
	e.first(r)
	s := e.second(r)
	ahead := s.load(e.k.Warp())
	e.k.BarSync(ptx.Uint(0))
	e.sum(r.scale)
	e.k.BarSync(ptx.Uint(0))
	e.k.GridDepWait()
	s.begin(r)
	s.add(e.k.Warp(), ahead)
	e.k.For(e.k.Warp().AddI(s.step()), ptx.Uint(s.units), ptx.Uint(s.step()), func(unit ptx.U32) { s.add(unit, s.load(unit)) })
}

// halves returns the two rows, of 16, that a thread has in a fragment of mma.sync.
func (e *adapting) halves() [2]ptx.U32 { return [2]ptx.U32{e.group, e.group.AddI(8)} }

// fragmentOf returns operand A of mma.sync. words[h] has the thread's two words of row h of halves.
func fragmentOf(words [2][]ptx.U32) []ptx.U32 {
	return []ptx.U32{words[0][0], words[1][0], words[0][1], words[1][1]}
}

// zeros returns n new accumulators that are 0.
func (e *adapting) zeros(n int) []ptx.F32 {
	acc := e.k.Accumulators(n)
	for _, v := range acc {
		ptx.VarOf(v).Set(ptx.Float(0))
	}
	return acc
}

// first computes the product of the rows with FactorA. Each warp sums over adjacent steps of the
// depth, and writes its part of the sum to shared memory. Within a step both operands have their
// elements in the same permuted order, in which a thread's elements are 16 adjacent bytes.
func (e *adapting) first(r adapted) {
	k, tiles := e.k, e.sumColumns()/8
	rowBytes := e.depth() * tile.ElementBytes
	steps := (e.depth() + adaptStep - 1) / adaptStep
	each := (steps + adaptWarps - 1) / adaptWarps     // steps of a warp
	unroll := max(1, min(firstLoads/(2+tiles), each)) // a step loads two rows of the input, and `tiles` of FactorA
	rounds := (each + unroll - 1) / unroll
	var inputs [2]ptx.Global
	for h, i := range e.halves() {
		inputs[h] = e.x.Index(r.input(i), e.inputBytes())
	}
	matrix := e.factorA.Index(r.matrix, e.LoRARank*rowBytes)
	factors := make([]ptx.Global, tiles) // a row of FactorA past the rank repeats the last row
	whole := matrix.Index(e.group, rowBytes)
	for t := range factors {
		factors[t] = whole.At(8 * t * rowBytes)
		if 8*(t+1) > e.LoRARank {
			factors[t] = matrix.Index(e.group.AddI(8*t).MinI(e.LoRARank-1), rowBytes)
		}
	}
	acc := e.zeros(4 * tiles)
	begin := k.Warp().MulI(rounds * unroll)
	k.For(begin, begin.AddI(rounds*unroll).MinI(steps), ptx.Uint(unroll), func(step ptx.U32) {
		x, f := make([][2][]ptx.U32, unroll), make([][][]ptx.U32, unroll)
		for s := range unroll {
			from := step.AddI(s).MulI(adaptStep * tile.ElementBytes).Add(e.quad.ShlI(4))
			at := from.MinI(rowBytes - tile.CopyBytes).U64()
			for t := range tiles {
				f[s] = append(f[s], ptx.LdGlobalVec[ptx.U32](factors[t].Plus(at), 4, ".nc"))
			}
			for h, in := range inputs {
				words := ptx.LdGlobalVec[ptx.U32](in.Plus(at), 4)
				for i := range words { // 0 past the end of the row
					words[i] = ptx.Select(from.LtI(rowBytes), words[i], ptx.Uint(0))
				}
				x[s][h] = words
			}
		}
		for s := range unroll {
			for half := range 2 {
				a := fragmentOf([2][]ptx.U32{x[s][0][2*half:][:2], x[s][1][2*half:][:2]})
				for t := range tiles {
					e.element.Mma(k, acc[4*t:][:4], a, f[s][t][2*half:][:2])
				}
			}
		}
	})
	to := e.sums.Plus(k.Warp().MulI(adaptRows).Add(e.group).MulI(4 * e.sumColumns())).Plus(e.quad.ShlI(3))
	for t := range tiles {
		ptx.StShared(to.At(32*t), acc[4*t], acc[4*t+1])
		ptx.StShared(to.At(32*t+8*4*e.sumColumns()), acc[4*t+2], acc[4*t+3])
	}
}

// sum adds the warps' parts of u in the order of the warps, multiplies by the adapter's scale, and
// stores u. A thread computes two adjacent columns at a time. Columns past the rank get 0.
func (e *adapting) sum(scale ptx.F32) {
	k, pairs := e.k, e.paddedRank()/2
	k.For(k.TidX(), ptx.Uint(adaptRows*pairs), ptx.Uint(adaptThreads), func(i ptx.U32) {
		row := i.DivI(pairs)
		pair := i.Sub(row.MulI(pairs))
		to := e.u.Plus(row.MulI(e.uBytes())).Plus(pair.ShlI(2))
		add := func() {
			from := e.sums.Plus(row.MulI(4 * e.sumColumns())).Plus(pair.ShlI(3))
			lo, hi := ptx.Float(0), ptx.Float(0)
			for w := range adaptWarps {
				v := ptx.LdSharedVec[ptx.F32](from.At(w*adaptRows*4*e.sumColumns()), 2)
				lo, hi = lo.Add(v[0]), hi.Add(v[1])
			}
			ptx.StShared(to, e.element.Pack(k, lo.Mul(scale), hi.Mul(scale)))
		}
		if e.paddedRank() == e.LoRARank {
			add()
			return
		}
		k.IfElse(pair.LtI(e.LoRARank/2), add, func() { ptx.StShared(to, ptx.Uint(0)) })
	})
}

// secondProduct adds the product of u and FactorB to the results. A unit is 32 columns of the
// results. A warp takes every adaptWarps-th unit, and loads `unroll` of its units at once. The 4
// products of a unit permute the columns so that a thread has 8 adjacent ones.
type secondProduct struct {
	*adapting
	matrix ptx.U32
	// units is the number of units. steps is the number of steps of mma.sync over the rank. unroll is
	// the number of units that a warp loads at once.
	units, steps, unroll int
	rows                 [2]adaptedRow
	u                    [][]ptx.U32 // the A operand of each step
}

const (
	// adaptColumns is the number of columns of a unit. tilesOfUnit is the number of products of
	// mma.sync that a unit needs for each step.
	adaptColumns = 32
	tilesOfUnit  = adaptColumns / 8
)

// adaptedRow is a row of the results. live reports whether the row exists.
type adaptedRow struct {
	live       ptx.Pred
	results, a ptx.Global
	score      ptx.F32
}

// second prepares the second product.
func (e *adapting) second(r adapted) *secondProduct {
	s := &secondProduct{adapting: e, matrix: r.matrix, units: (e.width() + adaptColumns - 1) / adaptColumns, steps: e.paddedRank() / tile.KStep}
	s.unroll = max(1, min(e.loads/(tilesOfUnit*e.parts()*s.steps), (s.units+adaptWarps-1)/adaptWarps))
	return s
}

// step returns by how much a warp's unit grows from one round to the next.
func (s *secondProduct) step() int { return adaptWarps * s.unroll }

// begin computes the addresses of the thread's rows of the results, and loads u from shared memory.
func (s *secondProduct) begin(r adapted) {
	for h, i := range s.halves() {
		at := r.row(i)
		s.rows[h] = adaptedRow{live: i.Lt(r.live), results: s.results.Index(at, s.parts()*s.width()*tile.ElementBytes)}
		if !s.Down {
			s.rows[h].a = s.a.Index(r.ofA(i), weights.A(s.Config).Elements()*tile.ElementBytes)
			if s.ScoreOnInput {
				s.rows[h].score = r.score(i)
			}
		}
	}
	for step := range s.steps {
		var words [2][]ptx.U32
		for h, i := range s.halves() {
			words[h] = ptx.LdSharedVec[ptx.U32](s.adapting.u.Plus(i.MulI(s.uBytes())).Plus(s.quad.ShlI(3)).At(step*tile.KStep*tile.ElementBytes), 2)
		}
		s.u = append(s.u, fragmentOf(words))
	}
}

// load loads FactorB for the warp's next `unroll` units, of which `unit` is the first. A column past
// the last one repeats the last one.
func (s *secondProduct) load(unit ptx.U32) (factors [][][]ptx.U32) {
	// Product i of a unit has columns 2i and 2i + 1 of each thread.
	first := unit.MulI(adaptColumns).Add(s.group.ShrI(1).ShlI(3)).Add(s.group.AndI(1))
	for i := range s.unroll * tilesOfUnit {
		column := first.AddI(i/tilesOfUnit*s.unitStep() + i%tilesOfUnit*2)
		factors = append(factors, s.column(column.MinI(s.width()-1)))
	}
	return factors
}

// unitStep returns the number of columns from one of a warp's units to the next.
func (s *secondProduct) unitStep() int { return adaptWarps * adaptColumns }

// column loads a thread's part of a row of FactorB, which is for one column of the results: two words
// for each part and each step. It does not use ld.global.nc, because the assembler would move such
// loads past a barrier.
func (s *secondProduct) column(column ptx.U32) (words [][]ptx.U32) {
	rowBytes := s.LoRARank * tile.ElementBytes
	for p := range s.parts() {
		of, rows, row := s.factorB[0], s.parts()*s.width(), column.AddI(p*s.width())
		switch {
		case len(s.factorB) > 1:
			of, rows, row = s.factorB[p], s.width(), column
		case s.parts() > 1 && s.GateUp == spec.Interleaved:
			row = column.MulI(2).AddI(p)
		}
		from := of.Index(s.matrix, rows*rowBytes).Index(row, rowBytes)
		for step := range s.steps {
			lane := s.quad
			if left := s.LoRARank - step*tile.KStep; left < tile.KStep { // u is 0 past the rank, so any finite values of FactorB will do there
				lane = lane.MinI(left/4 - 1)
			}
			words = append(words, ptx.LdGlobalVec[ptx.U32](from.Plus(lane.ShlI(3).U64()).At(step*tile.KStep*tile.ElementBytes), 2))
		}
	}
	return words
}

// add adds the product to the results of the warp's next `unroll` units, of which `unit` is the first.
// It loads the results of all these units before it stores any, so that the loads are in flight
// together.
func (s *secondProduct) add(unit ptx.U32, factors [][][]ptx.U32) {
	column, at, is := make([]ptx.U32, s.unroll), make([]ptx.U64, s.unroll), make([][2]ptx.Pred, s.unroll)
	old := make([][2][][]ptx.U32, s.unroll)
	for i := range s.unroll {
		column[i] = unit.MulI(adaptColumns).AddI(i * s.unitStep()).Add(s.quad.ShlI(3))
		at[i] = column[i].ShlI(1).U64()
		for h, row := range s.rows {
			is[i][h] = column[i].LtI(s.width()).And(row.live)
			from := row.results.Plus(at[i])
			s.k.Guarded(is[i][h], func() { // memory past the last column belongs to other rows, which other warps may be changing
				for p := range s.parts() {
					old[i][h] = append(old[i][h], ptx.LdGlobalVec[ptx.U32](from.At(p*s.width()*tile.ElementBytes), tilesOfUnit))
				}
			})
		}
	}
	for i := range s.unroll {
		sums := make([][][]ptx.F32, s.parts()) // the accumulators of each part and each product of mma.sync
		for p := range sums {
			for t := range tilesOfUnit {
				acc := s.zeros(4)
				for step := range s.steps {
					s.element.Mma(s.k, acc, s.u[step], factors[i*tilesOfUnit+t][p*s.steps+step])
				}
				sums[p] = append(sums[p], acc)
			}
		}
		for h, row := range s.rows {
			s.store(row, is[i][h], at[i], old[i][h], sums, h)
		}
	}
}

// store adds the sums to 8 columns of each part of a row, if `is` is true. h is the index of the row
// in halves. store writes the results, and after Up also the activation of the new results.
func (s *secondProduct) store(row adaptedRow, is ptx.Pred, at ptx.U64, old [][]ptx.U32, sums [][][]ptx.F32, h int) {
	s.k.If(is, func() {
		values, results := make([][]ptx.F32, len(old)), make([][]ptx.U32, len(old))
		for p, words := range old {
			for t, word := range words {
				lo, hi := s.element.Unpack(word)
				lo, hi = lo.Add(sums[p][t][2*h]), hi.Add(sums[p][t][2*h+1])
				values[p], results[p] = append(values[p], lo, hi), append(results[p], s.element.Pack(s.k, lo, hi))
			}
			ptx.StGlobal(row.results.Plus(at).At(p*s.width()*tile.ElementBytes), results[p]...)
		}
		if s.Down {
			return
		}
		act := make([]ptx.U32, tilesOfUnit)
		for t := range act {
			var of [2]ptx.F32
			for i := range of {
				gate, up := values[0][2*t+i], values[len(values)-1][2*t+i]
				if s.ScoreOnInput {
					gate, up = gate.Mul(row.score), up.Mul(row.score)
				}
				of[i] = activation.Of(s.Config).Value(gate, up)
			}
			act[t] = s.element.Pack(s.k, of[0], of[1])
		}
		ptx.StGlobal(row.a.Plus(at), act...)
	})
}
