package reference

import (
	"fmt"
	"slices"
	"strconv"

	"sonicmoe/moe/num"
	"sonicmoe/moe/spec"
)

// ExpertRow is one row of one expert's weights: 0..2n-1 of W1 in its own
// layout, 0..d-1 of W2.
type ExpertRow struct{ Expert, Row int }

// AllRows lists all rows of experts with so many rows each.
func AllRows(experts, rows int) []ExpertRow {
	list := make([]ExpertRow, 0, experts*rows)
	for e := range experts {
		for r := range rows {
			list = append(list, ExpertRow{e, r})
		}
	}
	return list
}

// Weight gradients are sums as they are, not rounded: whether they are added to
// older ones, and in which format they are kept, is the caller's affair.

// W1 gives dW1 of the listed rows, [len(list), d].
//
// A row costs 8·d operations for each token of its expert, 4 where H is given.
func (g *Gradients) W1(list []ExpertRow) ([]float64, error) {
	c := g.config
	if err := checkRows(list, c.NumExperts, 2*c.Intermediate); err != nil {
		return nil, err
	}
	out := make([]float64, len(list)*c.Hidden)
	tasks := rowTasks(list, 8)
	parallel(len(tasks), func() func(int) {
		x, do := matrix(axpyRows, c.Hidden), matrix(axpyRows, c.Hidden)
		return func(i int) {
			t := tasks[i]
			columns := make([]w1Column, len(t.at))
			for j, at := range t.at {
				columns[j] = g.w1Column(list[at], out[at*c.Hidden:][:c.Hidden])
			}
			g.eachRows(t.expert, func(first int, flat []int32) {
				g.decodeRows(x, g.in.X, flat)
				g.decodeRows(do, g.in.DO, flat)
				for j := 0; j < len(columns); j += 2 {
					g.addW1(columns[j:min(j+2, len(columns))], first, flat, x, do)
				}
			})
		}
	})
	return out, nil
}

// w1Column is one column of dH to be: what it takes to compute it.
type w1Column struct {
	neuron       int
	isUp         bool
	gate, up, w2 []float64 // gate and up are nil where H is given
	sum          []float64
}

func (g *Gradients) w1Column(r ExpertRow, sum []float64) w1Column {
	d, n, layout := g.config.Hidden, g.config.Intermediate, g.config.GateUp
	w := w1Column{sum: sum, w2: make([]float64, d)}
	for w.neuron = range n {
		if w.isUp = layout.UpRow(w.neuron, n) == r.Row; w.isUp || layout.GateRow(w.neuron, n) == r.Row {
			break
		}
	}
	for i := range d {
		w.w2[i] = num.BF16ToFloat64(g.w2[(r.Expert*d+i)*n+w.neuron])
	}
	if g.in.H == nil {
		w.gate, w.up = make([]float64, d), make([]float64, d)
		decode(w.gate, g.w1[(r.Expert*2*n+layout.GateRow(w.neuron, n))*d:][:d])
		decode(w.up, g.w1[(r.Expert*2*n+layout.UpRow(w.neuron, n))*d:][:d])
	}
	return w
}

// addW1 adds at most axpyRows packed rows, from row first on, to one or two
// columns' sums. x and do are those tokens' rows, zero past len(flat).
func (g *Gradients) addW1(columns []w1Column, first int, flat []int32, x, do [][]float64) {
	n := g.config.Intermediate
	last := columns[len(columns)-1]
	da := dot2x4(columns[0].w2, last.w2, do[0], do[1], do[2], do[3])
	for i, w := range columns {
		var h [2 * rowTile]float64 // gates, then ups
		if w.gate != nil {
			h = dot2x4(w.gate, w.up, x[0], x[1], x[2], x[3])
			for j := range h {
				h[j] = g.rounding.bf16(h[j])
			}
		}
		var dh [axpyRows]float64
		for j, f := range flat {
			if w.gate == nil {
				row := g.in.H[(first+j)*2*n:][:2*n]
				h[j], h[rowTile+j] = num.BF16ToFloat64(row[w.neuron]), num.BF16ToFloat64(row[n+w.neuron])
			}
			_, dgate, dup := neuron(h[j], h[rowTile+j], g.in.Scores[f], da[rowTile*i+j])
			if w.isUp {
				dgate = dup
			}
			dh[j] = g.rounding.bf16(dgate)
		}
		axpy(w.sum, dh[:len(flat)], x)
	}
}

// W2 gives dW2 of the listed rows, [len(list), n].
//
// A row costs 2·n operations for each token of its expert. Without H, all of
// H of the experts in the list is computed first.
func (g *Gradients) W2(list []ExpertRow) ([]float64, error) {
	c, n := g.config, g.config.Intermediate
	if err := checkRows(list, c.NumExperts, c.Hidden); err != nil {
		return nil, err
	}
	out := make([]float64, len(list)*n)
	h := g.experts(list)
	tasks := rowTasks(list, 32)
	parallel(len(tasks), func() func(int) {
		a := matrix(axpyRows, n)
		stored := make([]float64, 2*n)
		return func(i int) {
			t := tasks[i]
			g.eachRows(t.expert, func(first int, flat []int32) {
				for j, f := range flat {
					row := stored
					if g.in.H != nil {
						decode(row, g.in.H[(first+j)*2*n:][:2*n])
					} else {
						row = h[first+j]
					}
					for m := range n {
						v, _, _ := neuron(row[m], row[n+m], 0, 0)
						a[j][m] = g.rounding.bf16(g.in.Scores[f] * v)
					}
				}
				var do [axpyRows]float64
				for _, at := range t.at {
					for j, f := range flat {
						do[j] = num.BF16ToFloat64(g.in.DO[int(f)/c.TopK*c.Hidden+list[at].Row])
					}
					axpy(out[at*n:][:n], do[:len(flat)], a)
				}
			})
		}
	})
	return out, nil
}

// experts gives H of all rows of the listed experts, by packed row; nil where
// it was given.
func (g *Gradients) experts(list []ExpertRow) [][]float64 {
	if g.in.H != nil {
		return nil
	}
	k := g.config.TopK
	h := make([][]float64, len(g.grouping.Flat))
	done := map[int]bool{}
	for _, r := range list {
		if done[r.Expert] {
			continue
		}
		done[r.Expert] = true
		first := int(g.grouping.Offsets[r.Expert])
		flat := g.grouping.Flat[first:g.grouping.Offsets[r.Expert+1]]
		tokens, pairs := make([]int32, len(flat)), make([]pair, len(flat))
		for i, f := range flat {
			tokens[i] = f / int32(k)
			pairs[i] = pair{row: i * k, expert: int32(r.Expert)}
		}
		copy(h[first:], g.preactivations(pairs, tokens, g.tokenRows(g.in.X, tokens)))
	}
	return h
}

// Router gives dW_r [E, d] from the gradients of all tokens' chosen logits,
// [T, K] (those of Tokens, or a kernel's own), and Extra.
func (g *Gradients) Router(dlogits []float64) ([]float64, error) {
	c, k := g.config, g.config.TopK
	if len(dlogits) != len(g.in.Scores) {
		return nil, &spec.ArgError{Field: "dlogits", Got: elements(len(dlogits)), Want: fmt.Sprintf("%d ([T, K])", len(g.in.Scores))}
	}
	const width = 64
	out := make([]float64, c.NumExperts*c.Hidden)
	parallel((c.Hidden+width-1)/width, func() func(int) {
		x := make([]float64, width)
		return func(block int) {
			c0 := block * width
			x := x[:min(width, c.Hidden-c0)]
			add := func(e int, dlogit float64) {
				for i, v := range x {
					out[e*c.Hidden+c0+i] += dlogit * v
				}
			}
			for t := range len(g.in.X) / c.Hidden {
				decode(x, g.in.X[t*c.Hidden+c0:][:len(x)])
				for f := t * k; f < (t+1)*k; f++ {
					if g.grouping.Row[f] >= 0 {
						add(int(g.in.ExpertIDs[f]), dlogits[f])
					}
				}
				if g.in.Extra != nil {
					for e, v := range g.in.Extra[t*c.NumExperts:][:c.NumExperts] {
						add(e, v)
					}
				}
			}
		}
	})
	return out, nil
}

// eachRows gives an expert's packed rows, axpyRows at a time: the first one's
// number, and each one's place t·K + k.
func (g *Gradients) eachRows(expert int, do func(first int, flat []int32)) {
	from, to := int(g.grouping.Offsets[expert]), int(g.grouping.Offsets[expert+1])
	for ; from < to; from += axpyRows {
		do(from, g.grouping.Flat[from:min(from+axpyRows, to)])
	}
}

// decodeRows decodes the tokens' rows of src [T, d] and clears the rest of dst.
func (g *Gradients) decodeRows(dst [][]float64, src []uint16, flat []int32) {
	d := g.config.Hidden
	for i, row := range dst {
		if i < len(flat) {
			decode(row, src[int(flat[i])/g.config.TopK*d:][:d])
		} else {
			clear(row)
		}
	}
}

// rowTask is some rows of one expert, by their places in a list.
type rowTask struct {
	expert int
	at     []int
}

// rowTasks cuts a list into tasks of one expert and at most so many rows.
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
