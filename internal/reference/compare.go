package reference

import (
	"fmt"
	"math"
	"strings"

	"sonicmoe/internal/num"
	"sonicmoe/internal/spec"
)

// Bounds limit the error of a result. 0 means no limit.
type Bounds struct {
	// Frobenius bounds |got - want| / |want| of the whole matrix.
	Frobenius float64
	// Row bounds |got - want| / |want| of each row.
	Row float64
	// Element bounds the difference of each element, divided by the largest |want| of its row.
	Element float64
}

var (
	// VsUnrounded bounds the difference of a kernel's bf16 result from the reference computed
	// as [Unrounded].
	VsUnrounded = Bounds{Frobenius: 6e-3, Row: 6e-3, Element: 2e-2}
	// VsRounded bounds the difference of a kernel's bf16 result from the reference computed as
	// [Rounded].
	VsRounded = Bounds{Frobenius: 2e-3}
)

// BoundsOf returns the bounds for a comparison of results of type t with the reference in
// rounding r. fp16 has three more fraction bits than bf16, so its bounds are narrower.
func BoundsOf(t spec.Type, r Rounding) Bounds {
	b := VsUnrounded
	if r == Rounded {
		b = VsRounded
	}
	if t == spec.F16 {
		b.Frobenius, b.Row, b.Element = b.Frobenius/8, b.Row/8, b.Element/8
	}
	return b
}

// Report holds the errors of one matrix.
type Report struct {
	// Rows and Cols are the matrix's shape.
	Rows, Cols int
	// Frobenius is |got - want| / |want| over all rows. If want is zero and got is not, the
	// error is infinite.
	Frobenius float64
	// WorstRow is the row with the largest |got - want| / |want|, which is RowError. It is -1
	// if there are no rows.
	WorstRow int
	RowError float64
	// Worst is the element with the largest |got - want|, divided by the largest |want| of its
	// row.
	Worst Element
	// NonFinite counts the elements that are NaN or infinite in got or want. Poisoned counts
	// those of them that are [Poison]: no kernel wrote them. First is the first element that is
	// not finite. The other fields ignore all these elements.
	NonFinite, Poisoned int
	First               Element
	// Mismatch is the error if got or want does not have Rows·Cols elements. Nothing was
	// compared then.
	Mismatch error
}

// Element is one element of the two matrices that were compared.
type Element struct {
	// Row is -1 if there is no such element.
	Row, Col  int
	Got, Want float64
	// Error is |Got - Want| / the largest |want| of the row.
	Error float64
}

// Compare compares got with want, both [rows, cols]. got holds bf16 bits or float32.
func Compare[E uint16 | float32](got []E, want []float64, rows, cols int) Report {
	r := Report{Rows: rows, Cols: cols, WorstRow: -1, Worst: Element{Row: -1}, First: Element{Row: -1}}
	if rows < 0 || cols < 0 || len(got) != rows*cols || len(want) != rows*cols {
		r.Mismatch = &spec.ArgError{Field: "Compare", Got: fmt.Sprintf("%d against %d elements", len(got), len(want)),
			Want: fmt.Sprintf("%d rows of %d columns each", rows, cols)}
		return r
	}
	var diff, norm float64
	for i := range rows {
		d, n := compareRow(&r, i, got[i*cols:][:cols], want[i*cols:][:cols])
		if e := relative(math.Sqrt(d), math.Sqrt(n)); r.WorstRow < 0 || e > r.RowError {
			r.WorstRow, r.RowError = i, e
		}
		diff, norm = diff+d, norm+n
	}
	r.Frobenius = relative(math.Sqrt(diff), math.Sqrt(norm))
	return r
}

// CompareOf is like [Compare], but got holds bits of type t.
func CompareOf(t spec.Type, got []uint16, want []float64, rows, cols int) Report {
	if t == spec.BF16 {
		return Compare(got, want, rows, cols)
	}
	wide := make([]float32, len(got))
	num.DecodeF16(wide, got)
	for i, bits := range got {
		if bits == Poison {
			wide[i] = math.Float32frombits(math.MaxUint32)
		}
	}
	return Compare(wide, want, rows, cols)
}

// compareRow adds a row to the report. It returns the sum of squares of got - want and of want.
func compareRow[E uint16 | float32](r *Report, row int, got []E, want []float64) (diff, norm float64) {
	var largest float64
	for _, w := range want {
		if finite(w) {
			largest = max(largest, math.Abs(w))
		}
	}
	for c, w := range want {
		g, poisoned := value(got[c])
		if !finite(g) || !finite(w) {
			if r.NonFinite == 0 {
				r.First = Element{Row: row, Col: c, Got: g, Want: w, Error: math.Inf(1)}
			}
			r.NonFinite++
			if poisoned {
				r.Poisoned++
			}
			continue
		}
		diff += (g - w) * (g - w)
		norm += w * w
		if e := relative(math.Abs(g-w), largest); r.Worst.Row < 0 || e > r.Worst.Error {
			r.Worst = Element{Row: row, Col: c, Got: g, Want: w, Error: e}
		}
	}
	return diff, norm
}

// value decodes an element, and reports whether the element is [Poison].
func value[E uint16 | float32](e E) (float64, bool) {
	switch e := any(e).(type) {
	case uint16:
		return num.BF16ToFloat64(e), e == Poison
	case float32:
		return float64(e), math.Float32bits(e) == math.MaxUint32
	}
	return math.NaN(), false
}

func finite(x float64) bool { return x-x == 0 }

// relative returns diff/norm. If norm is 0, it returns infinity for any diff but 0.
func relative(diff, norm float64) float64 {
	if diff == 0 {
		return 0
	}
	return diff / norm
}

// Check returns nil if all elements are finite and all errors are within the bounds.
func (r Report) Check(b Bounds) error {
	if r.Mismatch != nil {
		return r.Mismatch
	}
	var wrong []string
	if r.NonFinite > 0 {
		wrong = append(wrong, fmt.Sprintf("%d elements are not finite", r.NonFinite))
	}
	exceeds := func(what string, got, bound float64) {
		if bound > 0 && !(got <= bound) {
			wrong = append(wrong, fmt.Sprintf("%s %.3g is over %.3g", what, got, bound))
		}
	}
	exceeds("relative norm", r.Frobenius, b.Frobenius)
	exceeds("worst row's relative norm", r.RowError, b.Row)
	exceeds("worst element", r.Worst.Error, b.Element)
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("%s: %v", strings.Join(wrong, ", "), r)
}

// String returns the report on one line.
func (r Report) String() string {
	if r.Mismatch != nil {
		return r.Mismatch.Error()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "[%d %d] relative norm %.3g, worst row %d at %.3g", r.Rows, r.Cols, r.Frobenius, r.WorstRow, r.RowError)
	if r.Worst.Row >= 0 {
		fmt.Fprintf(&b, ", worst element [%d %d] is %.6g, not %.6g: %.3g of its row's largest",
			r.Worst.Row, r.Worst.Col, r.Worst.Got, r.Worst.Want, r.Worst.Error)
	}
	if r.NonFinite > 0 {
		fmt.Fprintf(&b, ", %d not finite (%d never written), first [%d %d] is %v, not %v",
			r.NonFinite, r.Poisoned, r.First.Row, r.First.Col, r.First.Got, r.First.Want)
	}
	return b.String()
}
