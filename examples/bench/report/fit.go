package report

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"

	"sonicmoe/driver"
	"sonicmoe/jit/gemm"
	"sonicmoe/moe"
	"sonicmoe/moe/tools"
)

// Fit holds the cost model's constants that fit the measured tilings best. It also holds the
// time that the model's choices lose, before and after the fit.
type Fit struct {
	Points int         `json:"points"`
	Before tools.Model `json:"before"`
	After  tools.Model `json:"after"`
	// RMSBefore and RMSAfter are the relative errors of the estimates (root mean square). The
	// mean error of each row and product is subtracted, because it does not affect the choice
	// of a tiling.
	RMSBefore float64 `json:"rms_before"`
	RMSAfter  float64 `json:"rms_after"`
	Losses    []Loss  `json:"losses"`
}

// Loss is the time that the model's choice loses for one row and product: the choice's measured
// time divided by the best time, minus 1.
type Loss struct {
	Row     string      `json:"row"`
	Product string      `json:"product"`
	Points  int         `json:"points"`
	Best    gemm.Tiling `json:"best"`
	BestMS  float64     `json:"best_ms"`
	Before  float64     `json:"before"`
	After   float64     `json:"after"`
	Chosen  gemm.Tiling `json:"chosen"` // after the fit
}

// problem holds the measured tilings of one product in one row of a report.
type problem struct {
	row    string
	config moe.Config
	target driver.Target
	*tools.Product
	points []Point
}

// problems collects the measured tilings of reports.
func problems(reports ...*Report) ([]problem, error) {
	var list []problem
	for _, rep := range reports {
		target := driver.H200()
		target.SMs = rep.SMs
		for _, s := range rep.Sections() {
			for _, row := range s.Rows {
				of, err := problemsOf(row, target)
				if err != nil {
					return nil, err
				}
				list = append(list, of...)
			}
		}
	}
	if len(list) == 0 {
		return nil, errors.New("no points to fit the model to: measure some with -points")
	}
	return list, nil
}

// problemsOf collects the measured tilings of one row of a report, with a problem for each product.
func problemsOf(row Row, target driver.Target) ([]problem, error) {
	shape, err := row.Size.Row()
	if err != nil {
		return nil, err
	}
	var list []problem
	for _, p := range tools.Products() {
		q := problem{row: row.Name, config: shape.Config, target: target, Product: p}
		for _, point := range row.Points {
			if point.Product == p.String() && point.MS > 0 {
				q.points = append(q.points, point)
			}
		}
		if len(q.points) > 0 {
			list = append(list, q)
		}
	}
	return list, nil
}

// constant is one constant of a cost model.
type constant struct {
	name string
	*float64
}

// constants returns the constants of a model.
func constants(m *tools.Model) []constant {
	v := reflect.ValueOf(m).Elem()
	var list []constant
	for i := range v.NumField() {
		list = append(list, constant{v.Type().Field(i).Name, v.Field(i).Addr().Interface().(*float64)})
	}
	return list
}

// shifted returns the model with each constant multiplied by e to a power. Constants stay
// positive this way, and equal changes of a power change a constant by equal ratios.
func shifted(m tools.Model, powers []float64) tools.Model {
	for i, c := range constants(&m) {
		*c.float64 *= math.Exp(powers[i])
	}
	return m
}

// mattering returns the indices of the constants that affect some estimate.
func mattering(m tools.Model, list []problem) (numbers []int) {
	const far = 3 // powers of e; after a change this large, a term that another term of a maximum hid is the larger one
	n := len(constants(&m))
	within, means := misfit(m, list)
	for i := range n {
		for _, by := range []float64{-far, far} {
			powers := make([]float64, n)
			powers[i] = by
			if w, x := misfit(shifted(m, powers), list); w != within || x != means {
				numbers = append(numbers, i)
				break
			}
		}
	}
	return numbers
}

// A problem is a layer's size (a row of the benchmark) with a product. The fit minimises the errors of
// the tilings of each problem around their mean, and two further terms with these weights: the mean
// error of each problem, and the distance of the constants from their present values. The distance
// keeps constants in place that the measured tilings do not determine.
const (
	meanWeight = 0.1
	stayWeight = 1e-6
)

// misfit returns two mean squares. The first is of the tilings' relative errors, less the mean
// error of their problem. The second is of these mean errors. A tiling near the best tiling counts
// more, because the model must choose among such tilings.
func misfit(m tools.Model, list []problem) (within, means float64) {
	n := 0.
	for _, q := range list {
		var k, sum, squares float64
		best := q.best().MS
		for _, p := range q.points {
			e := math.Log(Milliseconds(q.Estimate(m, p.Point, q.config, q.target)) / p.MS)
			near := allowedLoss / (allowedLoss + p.MS/best - 1)
			k += near
			sum += near * e
			squares += near * e * e
		}
		within += squares - sum*sum/k
		means += sum * sum / k
		n += k
	}
	return within / n, means / n
}

// choosing improves a model whose constants fit well but choose badly. It changes the constants
// by a reproducible random search. Near the best tiling, errors of one percent decide the
// choice.
func choosing(list []problem, from tools.Model) tools.Model {
	from = rounded(from)
	if !slices.ContainsFunc(list, func(q problem) bool { return q.lostBy(from) > allowedLoss }) {
		return from
	}
	const steps, seed = 20_000, 1
	cost := func(m tools.Model) float64 {
		within, means := misfit(m, list)
		sum := choiceMisfit*within + choiceMean*means
		before := constants(&from)
		for i, c := range constants(&m) {
			by := math.Log(*c.float64 / *before[i].float64)
			sum += choiceStay * by * by
		}
		for _, q := range list {
			sum += math.Pow(q.lostBy(m)/choiceLoss, 8)
		}
		return sum
	}
	r := rand.New(rand.NewPCG(seed, seed))
	best, least := from, cost(from)
	for i := range steps {
		m, width := best, 0.15+0.35*float64(i%2)
		for _, c := range constants(&m) {
			if r.IntN(3) == 0 {
				*c.float64 *= math.Exp(width * r.NormFloat64())
			}
		}
		m = rounded(m)
		if now := cost(m); now < least {
			best, least = m, now
		}
	}
	return best
}

// These are weights of the terms that choosing adds to the losses of the choices. A loss below
// choiceLoss counts little, and a loss above it counts much.
const (
	choiceLoss   = 0.9 * allowedLoss
	choiceMisfit = 100
	choiceMean   = 10
	choiceStay   = 0.02
)

// restarts is the number of least-squares searches. Each begins where the previous one ended.
const restarts = 6

// NewFit finds the constants that fit the measured tilings best by least squares, beginning at
// a model. It then finds constants near these that choose well.
func NewFit(from tools.Model, reports ...*Report) (*Fit, error) {
	list, err := problems(reports...)
	if err != nil {
		return nil, err
	}
	f := &Fit{Before: from}
	numbers := mattering(from, list)
	move := func(v []float64) tools.Model {
		powers := make([]float64, len(constants(&from)))
		for i, n := range numbers {
			powers[n] = v[i]
		}
		return shifted(from, powers)
	}
	cost := func(v []float64) float64 {
		within, means := misfit(move(v), list)
		stay := 0.
		for _, x := range v {
			stay += x * x
		}
		return within + meanWeight*means + stayWeight*stay
	}
	// A search can stop in a curved valley. The next search begins at the same place with new
	// steps.
	best := make([]float64, len(numbers))
	for range restarts {
		best = minimize(cost, best, 0.3, 1e-6)
	}
	f.After = choosing(list, move(best))
	within, _ := misfit(f.Before, list)
	f.RMSBefore = math.Sqrt(within)
	within, _ = misfit(f.After, list)
	f.RMSAfter = math.Sqrt(within)
	for _, q := range list {
		f.Points += len(q.points)
		f.Losses = append(f.Losses, q.loss(f.Before, f.After))
	}
	return f, nil
}

// rounded returns the model with each constant rounded to three digits.
func rounded(m tools.Model) tools.Model {
	for _, c := range constants(&m) {
		unit := math.Pow(10, math.Floor(math.Log10(*c.float64))-2)
		*c.float64 = math.Round(*c.float64/unit) * unit
	}
	return m
}

// best returns the fastest of the measured tilings.
func (q problem) best() Point {
	return slices.MinFunc(q.points, func(a, b Point) int { return cmp.Compare(a.MS, b.MS) })
}

// loss returns the losses of the choices of the two models, compared with the best tiling.
func (q problem) loss(before, after tools.Model) Loss {
	best := q.best()
	chosen := q.Choose(after, q.config, q.target)
	return Loss{
		Row: q.row, Product: q.String(), Points: len(q.points), Best: best.Point, BestMS: best.MS, Chosen: chosen,
		Before: q.lost(q.Choose(before, q.config, q.target), best.MS), After: q.lost(chosen, best.MS),
	}
}

// lostBy returns the loss of the model's choice.
func (q problem) lostBy(m tools.Model) float64 {
	return q.lost(q.Choose(m, q.config, q.target), q.best().MS)
}

// lost returns the loss of a tiling, compared with the best time. For a tiling that was not
// measured it returns 100 %, because JSON has no NaN.
func (q problem) lost(at gemm.Tiling, best float64) float64 {
	for _, p := range q.points {
		if p.Point == at {
			return p.MS/best - 1
		}
	}
	return 1
}

// PrintFit prints the constants as Go code, and the choices.
func PrintFit(w io.Writer, f *Fit) {
	fmt.Fprintf(w, "cost model, fitted to %d points; errors within a row and product %.1f %% before, %.1f %% after\n", f.Points, 100*f.RMSBefore, 100*f.RMSAfter)
	fmt.Fprintln(w, "var H200 = Model{")
	for _, c := range constants(&f.After) {
		fmt.Fprintf(w, "\t%s: %.5g,\n", c.name, *c.float64)
	}
	fmt.Fprintln(w, "}")
	g := grid{}
	g.add("choice", "product", "points", "best point", "best ms", "today's loses", "fitted", "fitted loses")
	var before, after []string
	for _, l := range f.Losses {
		g.add(l.Row, l.Product, fmt.Sprint(l.Points), l.Best.String(), number(l.BestMS, 4),
			fmt.Sprintf("%.1f %%", 100*l.Before), l.Chosen.String(), fmt.Sprintf("%.1f %%", 100*l.After))
		if l.Before > allowedLoss {
			before = append(before, l.Row+" "+l.Product)
		}
		if l.After > allowedLoss {
			after = append(after, l.Row+" "+l.Product)
		}
	}
	g.print(w)
	fmt.Fprintf(w, "more than %.0f %% lost: today's %d (%s), fitted %d (%s)\n", 100*allowedLoss, len(before), strings.Join(before, ", "), len(after), strings.Join(after, ", "))
}

// allowedLoss is the largest loss that is accepted for a choice of the cost model.
const allowedLoss = 0.05
