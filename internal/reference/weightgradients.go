package reference

import (
	"fmt"
	"slices"
	"strconv"

	"sonicmoe/internal/spec"
)

// ExpertRow is a row of an expert's weight matrix as [out, in]. Rows of W1 are 0..2n-1 in the
// order of GateUp (0..n-1 without a gate). With the order Apart, the rows of W3 follow those of
// W1. Rows of W2 are 0..d-1. If weights are stored in the order InOut, such a row is a stored
// column.
type ExpertRow struct{ Expert, Row int }

// AllRows returns the rows 0..rows-1 of every expert.
func AllRows(experts, rows int) []ExpertRow {
	list := make([]ExpertRow, 0, experts*rows)
	for e := range experts {
		for r := range rows {
			list = append(list, ExpertRow{e, r})
		}
	}
	return list
}

// W1 returns the listed rows of dW1, [len(list), d]. Gradients of weights are not rounded.
//
// A row costs 8·d operations for each token of its expert, or 4·d if H is given.
func (g *Gradients) W1(list []ExpertRow) ([]float64, error) { return g.routed.dW1(list) }

// B1 returns the elements of db1 for the listed rows of W1, [len(list)], at the cost of
// [Gradients.W1].
func (g *Gradients) B1(list []ExpertRow) ([]float64, error) { return g.routed.dB1(list) }

// W2 returns the listed rows of dW2, [len(list), n].
//
// A row costs 2·n operations for each token of its expert. If H is not given, H of all tokens
// of the listed experts is computed first.
func (g *Gradients) W2(list []ExpertRow) ([]float64, error) { return g.routed.dW2(list) }

// B2 returns the elements of db2 for the listed rows of W2, [len(list)].
func (g *Gradients) B2(list []ExpertRow) ([]float64, error) { return g.routed.dB2(list) }

// SharedW1 returns the listed rows of dW1 of the shared experts, which count as one expert with
// the number 0. The rows of SharedW3 follow those of SharedW1.
func (g *Gradients) SharedW1(list []ExpertRow) ([]float64, error) {
	if g.shared == nil {
		return nil, noShared
	}
	return g.shared.dW1(list)
}

// SharedW2 returns the listed rows of dW2 of the shared experts, which count as one expert with
// the number 0.
func (g *Gradients) SharedW2(list []ExpertRow) ([]float64, error) {
	if g.shared == nil {
		return nil, noShared
	}
	return g.shared.dW2(list)
}

var noShared = &spec.ArgError{Field: "Config.SharedExperts", Got: "0", Want: "1 or more for their gradients"}

func (p *pass) dW1(list []ExpertRow) ([]float64, error) {
	return p.w1Sums(list, p.d, func(x [][]float64) [][]float64 { return x })
}

func (p *pass) dB1(list []ExpertRow) ([]float64, error) {
	one := matrix(axpyRows, 1)
	for i := range one {
		one[i][0] = 1
	}
	return p.w1Sums(list, 1, func([][]float64) [][]float64 { return one })
}

// w1Sums returns, for each listed column of dH, the sum over the expert's rows of dH times a
// vector of the given width. The function of returns these vectors for axpyRows rows of X. The
// result is [len(list), width].
func (p *pass) w1Sums(list []ExpertRow, width int, of func(x [][]float64) [][]float64) ([]float64, error) {
	if err := checkRows(list, p.experts, p.rows); err != nil {
		return nil, err
	}
	out := make([]float64, len(list)*width)
	tasks := rowTasks(list, 8)
	parallel(len(tasks), func() func(int) {
		x, do := matrix(axpyRows, p.d), matrix(axpyRows, p.d)
		return func(i int) {
			t := tasks[i]
			columns := make([]w1Column, len(t.at))
			for j, at := range t.at {
				columns[j] = p.w1Column(list[at], out[at*width:][:width])
			}
			p.eachRows(t.expert, func(first int, flat []int32) {
				p.decodeRows(x, p.x, flat)
				p.decodeRows(do, p.do, flat)
				for j := 0; j < len(columns); j += 2 {
					p.addColumns(columns[j:min(j+2, len(columns))], first, flat, x, do, of(x))
				}
			})
		}
	})
	return out, nil
}

// w1Column holds the inputs of one column of dH: one neuron's gate or up.
type w1Column struct {
	neuron       int
	isUp         bool
	gate, up, w2 []float64 // gate and up are nil if H was given
	gateBias     float64
	upBias       float64
	sum          []float64
}

func (p *pass) w1Column(r ExpertRow, sum []float64) w1Column {
	at := p.place(r.Row)
	w := w1Column{neuron: at % p.n, isUp: at >= p.n, sum: sum, w2: make([]float64, p.d)}
	for i := range p.d {
		w.w2[i] = p.w2.at((r.Expert*p.d+i)*p.n + w.neuron)
	}
	if p.h != nil {
		return w
	}
	row := func(r0 int) ([]float64, float64) {
		at := r.Expert*p.rows + r0
		bias := 0.0
		if p.b1 != nil {
			bias = p.b1[at]
		}
		return p.w1.part(at*p.d, p.d).values(), bias
	}
	w.gate, w.gateBias = row(w.neuron)
	w.up = w.gate // dot2x4 needs a second row; without a gate its result is not used
	if p.gated {
		w.up, w.upBias = row(p.n + w.neuron)
	}
	return w
}

// addColumns adds the products of at most axpyRows packed rows, from row first on, to the sums
// of one or two columns. x and do are the rows of the tokens. Rows from len(flat) on are zero.
func (p *pass) addColumns(columns []w1Column, first int, flat []int32, x, do, terms [][]float64) {
	last := columns[len(columns)-1]
	da := dot2x4(columns[0].w2, last.w2, do[0], do[1], do[2], do[3])
	for i, w := range columns {
		var h [2 * rowTile]float64 // four gates, then four ups
		if w.gate != nil {
			h = dot2x4(w.gate, w.up, x[0], x[1], x[2], x[3])
		}
		var dh [axpyRows]float64
		for j, f := range flat {
			gate, up := h[j], h[rowTile+j]
			if w.gate != nil {
				gate, up = p.rounding.store(gate+w.gateBias), p.rounding.store(up+w.upBias)
			} else {
				row := stored(p.h[(first+j)*p.rows:][:p.rows], p.rounding.config.Type)
				gate = row.at(w.neuron)
				if p.gated {
					up = row.at(p.n + w.neuron)
				}
			}
			in := p.inputScore(int(f))
			_, dgate, dup := p.gradient(in*gate, in*up, p.scores[f]*da[rowTile*i+j])
			if w.isUp {
				dgate = dup
			}
			dh[j] = p.rounding.store(dgate)
		}
		axpy(w.sum, dh[:len(flat)], terms)
	}
}

func (p *pass) dW2(list []ExpertRow) ([]float64, error) {
	if err := checkRows(list, p.experts, p.d); err != nil {
		return nil, err
	}
	out := make([]float64, len(list)*p.n)
	h := p.expertRows(list)
	tasks := rowTasks(list, 32)
	parallel(len(tasks), func() func(int) {
		a := matrix(axpyRows, p.n)
		saved := make([]float64, p.rows)
		return func(i int) {
			t := tasks[i]
			p.eachRows(t.expert, func(first int, flat []int32) {
				for j, f := range flat {
					row := saved
					if p.h != nil {
						stored(p.h[(first+j)*p.rows:][:p.rows], p.rounding.config.Type).decode(row)
					} else {
						row = h[first+j]
					}
					in, weight := p.inputScore(int(f)), p.outputScore(int(f))
					for m := range p.n {
						gate, up := p.inputs(row, m)
						a[j][m] = p.rounding.store(weight * p.value(in*gate, in*up))
					}
				}
				for _, at := range t.at {
					do := p.outputColumn(list[at].Row, flat)
					axpy(out[at*p.n:][:p.n], do[:len(flat)], a)
				}
			})
		}
	})
	return out, nil
}

// outputColumn returns one column of at most axpyRows rows of dO.
func (p *pass) outputColumn(column int, flat []int32) (do [axpyRows]float64) {
	all := stored(p.do, p.rounding.config.Type)
	for j, f := range flat {
		do[j] = all.at(int(f)/p.topK*p.d + column)
	}
	return do
}

// dB2 sums dO times the rounded score over the tokens of each expert. If a token has the expert
// more than once, the sum of its scores is rounded.
func (p *pass) dB2(list []ExpertRow) ([]float64, error) {
	if err := checkRows(list, p.experts, p.d); err != nil {
		return nil, err
	}
	out, do := make([]float64, len(list)), stored(p.do, p.rounding.config.Type)
	for i, r := range list {
		flat := p.grouping.Flat[p.grouping.Offsets[r.Expert]:p.grouping.Offsets[r.Expert+1]]
		for len(flat) > 0 {
			token, score := int(flat[0])/p.topK, 0.0
			for ; len(flat) > 0 && int(flat[0])/p.topK == token; flat = flat[1:] {
				score = p.rounding.f32(score + p.outputScore(int(flat[0])))
			}
			out[i] += p.rounding.store(score) * do.at(token*p.d+r.Row)
		}
	}
	return out, nil
}

// expertRows returns H of all packed rows of the listed experts, by row number. It returns nil
// if H was given.
func (p *pass) expertRows(list []ExpertRow) [][]float64 {
	if p.h != nil {
		return nil
	}
	h := make([][]float64, len(p.grouping.Flat))
	done := map[int]bool{}
	for _, r := range list {
		if done[r.Expert] {
			continue
		}
		done[r.Expert] = true
		first := int(p.grouping.Offsets[r.Expert])
		flat := p.grouping.Flat[first:p.grouping.Offsets[r.Expert+1]]
		tokens, pairs := make([]int32, len(flat)), make([]pair, len(flat))
		for i, f := range flat {
			tokens[i] = f / int32(p.topK)
			pairs[i] = pair{row: i*p.topK + int(f)%p.topK, expert: int32(r.Expert)}
		}
		copy(h[first:], p.preactivations(pairs, tokens, p.layer.tokenRows(p.x, tokens)))
	}
	return h
}

// eachRows calls do with the packed rows of an expert, axpyRows at a time. first is the number
// of the first row, and flat has the index t·K + k of each row.
func (p *pass) eachRows(expert int, do func(first int, flat []int32)) {
	from, to := int(p.grouping.Offsets[expert]), int(p.grouping.Offsets[expert+1])
	for ; from < to; from += axpyRows {
		do(from, p.grouping.Flat[from:min(from+axpyRows, to)])
	}
}

// decodeRows decodes the rows of src [T, d] whose pairs t·K + k are in flat, and clears the
// other rows of dst.
func (p *pass) decodeRows(dst [][]float64, src []uint16, flat []int32) {
	for i, row := range dst {
		if i < len(flat) {
			stored(src[int(flat[i])/p.topK*p.d:][:p.d], p.rounding.config.Type).decode(row)
		} else {
			clear(row)
		}
	}
}

// rowTask is a set of rows of one expert, given by their indices in a list of ExpertRow.
type rowTask struct {
	expert int
	at     []int
}

// rowTasks splits a list into tasks of at most most rows. All rows of a task have the same
// expert.
func rowTasks(list []ExpertRow, most int) []rowTask {
	order := make([]int, len(list))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return list[a].Expert - list[b].Expert })
	var tasks []rowTask
	for _, at := range order {
		e := list[at].Expert
		if n := len(tasks); n == 0 || tasks[n-1].expert != e || len(tasks[n-1].at) == most {
			tasks = append(tasks, rowTask{expert: e})
		}
		t := &tasks[len(tasks)-1]
		t.at = append(t.at, at)
	}
	return tasks
}

func checkRows(list []ExpertRow, experts, rows int) error {
	for i, r := range list {
		if r.Expert < 0 || r.Expert >= experts || r.Row < 0 || r.Row >= rows {
			return &spec.ArgError{Field: "rows[" + strconv.Itoa(i) + "]", Got: fmt.Sprintf("row %d of expert %d", r.Row, r.Expert),
				Want: fmt.Sprintf("rows 0 to %d of experts 0 to %d", rows-1, experts-1)}
		}
	}
	return nil
}
