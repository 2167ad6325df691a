package trial

import (
	"fmt"
	"maps"
	"slices"

	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/moe"
)

// BackwardCheck says how to check a backward pass.
type BackwardCheck struct {
	// Routed reports whether the layer's router made the routing.
	Routed bool
	// Rounding is the rounding of the reference. With Unrounded every row and element of a
	// gradient has a bound. With Rounded the gradient as a whole has a narrower bound.
	Rounding reference.Rounding
	// Tokens is the minimum number of sampled tokens, which use every expert. Rows is the
	// number of sampled rows of W1 and of W2. If there are fewer tokens or rows, all are
	// compared.
	Tokens, Rows int
}

// BackwardReport holds the errors of a backward pass, compared with the reference. The
// reference is given the tensors that the device's forward pass saved.
type BackwardReport struct {
	// Bounds are the bounds that Check uses.
	Bounds reference.Bounds
	// Tokens is the number of tokens whose DX and DScores were compared. Rows is the number of
	// rows that were compared in each weight's gradient. The gradients of biases and of the
	// router's vectors were compared whole.
	Tokens, Rows int
	// Gradients holds a report for each gradient that the pass wrote. If a gradient is split
	// over two tensors, its report has the id of the first.
	Gradients map[spec.TensorID]reference.Report
}

// Check returns nil if every gradient is within the bounds.
func (r BackwardReport) Check() error {
	for _, id := range slices.Sorted(maps.Keys(r.Gradients)) {
		if err := r.Gradients[id].Check(r.Bounds); err != nil {
			return fmt.Errorf("%v: %w", id, err)
		}
	}
	return nil
}

// String returns the report with one line for each gradient.
func (r BackwardReport) String() string {
	text := fmt.Sprintf("%d tokens, %d rows", r.Tokens, r.Rows)
	for _, id := range slices.Sorted(maps.Keys(r.Gradients)) {
		text += fmt.Sprintf("\n%v %v", id, r.Gradients[id])
	}
	return text
}

// CheckBackward compares the outputs of b with the reference. It compares all of DRouter, which
// it computes from the device's DScores. b must therefore have DScores. saved are the results
// of the forward pass, with H.
func (t *Trial) CheckBackward(b moe.BackwardArgs, saved Results, o BackwardCheck) (BackwardReport, error) {
	c := t.Layer.Config()
	ref, err := reference.New(c, t.Weights)
	if err != nil {
		return BackwardReport{}, err
	}
	in := reference.Backward{X: t.X, DO: t.DO, Scores: reference.Widen(saved.Scores), ExpertIDs: saved.ExpertIDs, H: saved.H, SharedH: saved.SharedH, Routed: o.Routed}
	if !b.DLogits.IsZero() || b.Balance != 0 || b.ZLoss != 0 {
		in.Extra = reference.Widen(t.Extra)
	}
	if o.Routed && c.SavesLogits() {
		if in.Logits, err = t.logits(nil); err != nil {
			return BackwardReport{}, err
		}
	}
	g, err := ref.Gradients(in, o.Rounding)
	if err != nil {
		return BackwardReport{}, err
	}
	k := backwardCheck{t: t, g: g, b: b, saved: saved, rounding: o.Rounding}
	k.report.Bounds, k.report.Gradients = reference.BoundsOf(c.Type, o.Rounding), map[spec.TensorID]reference.Report{}
	k.tokens(reference.SampleTokens(saved.ExpertIDs, t.Tokens, c.TopK, c.NumExperts, o.Tokens))
	k.set(spec.TensorDW1, k.weights(c, []moe.Tensor{b.DW1.Tensor, b.DW3.Tensor}, g.W1, c.HWidth(), c.Hidden, o.Rows))
	k.set(spec.TensorDW2, k.weights(c, []moe.Tensor{b.DW2.Tensor}, g.W2, c.Hidden, c.Intermediate, o.Rows))
	k.set(spec.TensorDB1, k.biases([]moe.Tensor{b.DB1.Tensor, b.DB3.Tensor}, g.B1, c.HWidth()))
	k.set(spec.TensorDB2, k.biases([]moe.Tensor{b.DB2.Tensor}, g.B2, c.Hidden))
	if c.LoRARank > 0 {
		k.lora(c)
	}
	if shared, ok := c.Shared(); ok {
		k.set(spec.TensorDSharedW1, k.weights(shared, []moe.Tensor{b.DSharedW1.Tensor, b.DSharedW3.Tensor}, g.SharedW1, shared.HWidth(), c.Hidden, o.Rows))
		k.set(spec.TensorDSharedW2, k.weights(shared, []moe.Tensor{b.DSharedW2.Tensor}, g.SharedW2, c.Hidden, shared.Intermediate, o.Rows))
		k.sharedGate()
	}
	k.router()
	return k.report, k.err
}

// backwardCheck collects the reports of a check and keeps the first error.
type backwardCheck struct {
	t        *Trial
	g        *reference.Gradients
	b        moe.BackwardArgs
	saved    Results
	rounding reference.Rounding
	report   BackwardReport
	err      error
}

// set keeps the report of a gradient. An empty report means that the pass did not compute the
// gradient, and is dropped.
func (k *backwardCheck) set(id spec.TensorID, r reference.Report) {
	if r != (reference.Report{}) {
		k.report.Gradients[id] = r
	}
}

// tokens compares DX and DScores of the tokens in the list.
func (k *backwardCheck) tokens(list []int32) {
	c := k.t.Layer.Config()
	k.report.Tokens = len(list)
	if k.b.DX.IsZero() && k.b.DScores.IsZero() {
		return
	}
	want, err := k.g.Tokens(list)
	if k.err = err; err != nil {
		return
	}
	numbers := make([]int64, len(list))
	for i, t := range list {
		numbers[i] = int64(t)
	}
	k.set(spec.TensorDX, k.compare(k.b.DX, want.DX, c.Hidden, numbers))
	k.set(spec.TensorDScores, k.compare(k.b.DScores, want.DScores, c.TopK, numbers))
}

// weights compares sampled rows of a weight's gradient, which is one tensor or two halves. of
// returns the expected rows, and c is the configuration of the weight's layer.
func (k *backwardCheck) weights(c moe.Config, got []moe.Tensor, of func([]reference.ExpertRow) ([]float64, error), rows, cols, sample int) reference.Report {
	if got = slices.DeleteFunc(got, moe.Tensor.IsZero); len(got) == 0 || k.err != nil {
		return reference.Report{}
	}
	list := SampleRows(c.NumExperts, rows, sample)
	k.report.Rows = len(list)
	want, err := of(list)
	if k.err = err; err != nil {
		return reference.Report{}
	}
	v, err := k.t.weightRows(c.InOut, got, rows, cols, list)
	if k.err = err; err != nil {
		return reference.Report{}
	}
	return k.judge(v, want, len(list), cols)
}

// lora compares the gradients of the factors of an adapter.
func (k *backwardCheck) lora(c moe.Config) {
	b, r := &k.b, c.LoRARank
	if b.DLoraA1.IsZero() && b.DLoraB1.IsZero() && b.DLoraA2.IsZero() && b.DLoraB2.IsZero() || k.err != nil {
		return
	}
	want, err := k.g.LoRA()
	if k.err = err; err != nil {
		return
	}
	for _, f := range []struct {
		id         spec.TensorID
		got        []moe.Tensor
		want       []float64
		rows, cols int
	}{
		{spec.TensorDLoraA1, []moe.Tensor{b.DLoraA1.Tensor}, want.A1, r, c.Hidden},
		{spec.TensorDLoraB1, []moe.Tensor{b.DLoraB1.Tensor, b.DLoraB3.Tensor}, want.B1, c.HWidth(), r},
		{spec.TensorDLoraA2, []moe.Tensor{b.DLoraA2.Tensor}, want.A2, r, c.Intermediate},
		{spec.TensorDLoraB2, []moe.Tensor{b.DLoraB2.Tensor}, want.B2, c.Hidden, r},
	} {
		of := func(list []reference.ExpertRow) ([]float64, error) {
			return want.Rows(f.want, list, f.rows, f.cols, f.id == spec.TensorDLoraB1), nil
		}
		k.set(f.id, k.weights(c, f.got, of, f.rows, f.cols, c.NumExperts*f.rows))
	}
}

// sharedGate compares the gradient of the shared experts' gate.
func (k *backwardCheck) sharedGate() {
	if k.b.DSharedGate.IsZero() || k.err != nil {
		return
	}
	all, err := k.g.Tokens(nil)
	if k.err = err; err != nil {
		return
	}
	want, err := k.g.SharedGate(all.DSharedGate)
	if k.err = err; err == nil {
		k.set(spec.TensorDSharedGate, k.compare(k.b.DSharedGate.Tensor, want, k.t.Layer.Config().Hidden, []int64{0}))
	}
}

// biases compares the gradient of a bias, with one row for each expert. The gradient is one
// tensor or two halves.
func (k *backwardCheck) biases(parts []moe.Tensor, of func([]reference.ExpertRow) ([]float64, error), width int) reference.Report {
	parts = slices.DeleteFunc(parts, moe.Tensor.IsZero)
	if len(parts) == 0 || k.err != nil {
		return reference.Report{}
	}
	experts := k.t.Layer.Config().NumExperts
	want, err := of(reference.AllRows(experts, width))
	if k.err = err; err != nil {
		return reference.Report{}
	}
	var got Values
	for e := range experts {
		for _, part := range parts {
			v, err := k.t.Rows(part, width/len(parts), []int64{int64(e)})
			if k.err = err; err != nil {
				return reference.Report{}
			}
			got.Type, got.Bits, got.F32 = v.Type, append(got.Bits, v.Bits...), append(got.F32, v.F32...)
		}
	}
	return k.judge(got, want, experts, width)
}

// weightRows reads rows of experts' weights. The weights are stored as [out, in], or as [in,
// out] if inOut is true.
func (t *Trial) weightRows(inOut bool, parts []moe.Tensor, rows, cols int, list []reference.ExpertRow) (v Values, err error) {
	rows /= len(parts)
	width, height, inOut := cols, rows, inOut
	if inOut {
		width, height = rows, cols
	}
	for _, r := range list {
		of, first := parts[r.Row/rows], int64(r.Expert)*int64(height)
		var row Values
		if !inOut {
			row, err = t.Rows(of, cols, []int64{first + int64(r.Row%rows)})
		} else {
			row, err = t.read(of, first*int64(width), int64(width)*int64(height))
			row = row.column(r.Row%rows, width)
		}
		if err != nil {
			return v, err
		}
		v.Type, v.Bits, v.F32 = row.Type, append(v.Bits, row.Bits...), append(v.F32, row.F32...)
	}
	return v, nil
}

// column returns one column of a matrix whose rows have width elements.
func (v Values) column(column, width int) (c Values) {
	c.Type = v.Type
	for i := column; i < max(len(v.Bits), len(v.F32)); i += width {
		if v.Bits != nil {
			c.Bits = append(c.Bits, v.Bits[i])
		} else {
			c.F32 = append(c.F32, v.F32[i])
		}
	}
	return c
}

// router compares all of DRouter, DRouterBias and DExpertScale with the values that follow from
// the device's DScores.
func (k *backwardCheck) router() {
	if k.b.DRouter.IsZero() || k.err != nil {
		return
	}
	c := k.t.Layer.Config()
	var ds Values
	if ds, k.err = k.t.Rows(k.b.DScores, c.TopK, nil); k.err != nil {
		return
	}
	dlogits, err := k.g.DLogits(reference.Widen(ds.F32))
	if k.err = err; err != nil {
		return
	}
	want, err := k.g.Router(dlogits)
	if k.err = err; err != nil {
		return
	}
	k.set(spec.TensorDRouter, k.compare(k.b.DRouter.Tensor, want, c.Hidden, nil))
	k.set(spec.TensorDRouterBias, k.numbers(k.b.DRouterBias, func() ([]float64, error) { return k.g.RouterBias(dlogits) }))
	k.set(spec.TensorDExpertScale, k.numbers(k.b.DExpertScale, func() ([]float64, error) { return k.g.ExpertScale(reference.Widen(ds.F32)) }))
}

// numbers compares a gradient that has one number for each expert. The numbers are compared as
// one row.
func (k *backwardCheck) numbers(got moe.Gradient, of func() ([]float64, error)) reference.Report {
	if got.IsZero() || k.err != nil {
		return reference.Report{}
	}
	want, err := of()
	if k.err = err; err != nil {
		return reference.Report{}
	}
	return k.compare(got.Tensor, want, len(want), []int64{0})
}

// compare compares rows of a gradient with want, or all rows if rows is nil.
func (k *backwardCheck) compare(got moe.Tensor, want []float64, cols int, rows []int64) reference.Report {
	if got.IsZero() || k.err != nil {
		return reference.Report{}
	}
	v, err := k.t.Rows(got, cols, rows)
	if k.err = err; err != nil {
		return reference.Report{}
	}
	return k.judge(v, want, len(want)/cols, cols)
}

// judge compares rows of a gradient with want in the rounding of the check.
func (k *backwardCheck) judge(v Values, want []float64, rows, cols int) reference.Report {
	if k.rounding == reference.Rounded {
		reference.Round(v.Type, want) // the reference does not round gradients of weights
	}
	return v.compare(want, rows, cols)
}

// SampleRows picks want rows from experts that have a number of rows each (all rows if there
// are fewer). The picked rows are spread over all experts and over the rows of an expert.
func SampleRows(experts, rows, want int) []reference.ExpertRow {
	if experts*rows <= want {
		return reference.AllRows(experts, rows)
	}
	var list []reference.ExpertRow
	for e := range experts {
		n := (e+1)*want/experts - e*want/experts
		for i := range n {
			const stride = 37 // a stride that makes the experts' samples start at different rows
			list = append(list, reference.ExpertRow{Expert: e, Row: (i*rows/n + e*stride) % rows})
		}
	}
	return list
}
