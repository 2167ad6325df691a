package autotune

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Status is what became of a candidate.
type Status uint8

// Statuses of candidates.
const (
	// Untried is none of a finished Tune.
	Untried Status = iota
	// Measured: found right and timed.
	Measured
	// Duplicate: compiled to the same bytes as an earlier candidate.
	Duplicate
	// Skipped: the budget, or Options.Most, left it out.
	Skipped
	// Unproven: not tried, for want of a worker process.
	Unproven
	// Unbuilt: its kernels could not be emitted or compiled.
	Unbuilt
	// Wrong: its answer was not the reference's.
	Wrong
	// Faulted: it broke the worker's device.
	Faulted
	// Hung: it gave no answer in time.
	Hung
	// Died: the worker process ended.
	Died
	// Rejected: no kernel can have the point.
	Rejected
)

// String is the status in lower case.
func (s Status) String() string {
	names := [...]string{"untried", "measured", "duplicate", "skipped", "unproven", "unbuilt", "wrong", "faulted", "hung", "died", "rejected"}
	if int(s) >= len(names) {
		return fmt.Sprintf("Status(%d)", int(s))
	}
	return names[s]
}

// Row is one candidate in a report.
type Row[P comparable] struct {
	Point  P
	Status Status
	// Reason says more where the status is not Measured.
	Reason string
	// Estimate is the cost model's.
	Estimate time.Duration
	// Median is the measured time of Rounds rounds. Gain is by which fraction
	// of the default's time the point is faster, Noise how far off that may be.
	Median      time.Duration
	Rounds      int
	Gain, Noise float64
}

// Report is what a search found: a plan. Nothing follows from it until the
// caller stores it or makes something new with its point.
type Report[P comparable] struct {
	Problem string
	Key     Key
	// Chosen is the point to take, the default unless another won; Why says why.
	Default, Chosen P
	Why             string
	// PTX is the Digest of Chosen's kernels.
	PTX string
	// Rows are all candidates: the default, then by rising estimate.
	Rows []*Row[P]
	// Where says where points were tried.
	Where string
	// Compiled counts kernels that were not in the cache.
	Compiled int
	Took     time.Duration
}

// Row is the row of a point, or nil.
func (r *Report[P]) Row(p P) *Row[P] {
	for _, row := range r.Rows {
		if row.Point == p {
			return row
		}
	}
	return nil
}

// Count is the number of rows of a status.
func (r *Report[P]) Count(s Status) int {
	n := 0
	for _, row := range r.Rows {
		if row.Status == s {
			n++
		}
	}
	return n
}

// Record is the choice as it is stored under Key.
func (r *Report[P]) Record() ([]byte, error) { return Encode(r.Chosen, r.PTX) }

// Tried is how many candidates were tried, whatever came of it.
func (r *Report[P]) Tried() int {
	return len(r.Rows) - r.Count(Untried) - r.Count(Skipped) - r.Count(Unproven) - r.Count(Rejected)
}

// String is a table of the candidates: those measured, fastest first, then the
// others with their reasons; those skipped or rejected before they were tried are
// counted by reason.
func (r *Report[P]) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %v, %s\n", r.Problem, r.Chosen, cmp.Or(r.Why, "the search has not ended"))
	fmt.Fprintf(&b, "%d candidates tried in %s; %d kernels compiled; %v\n", r.Tried(), r.Where, r.Compiled, r.Took.Round(time.Millisecond))
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\tpoint\tmeasured\tgain\tnoise\trounds\tcost model\t")
	rows := slices.Clone(r.Rows)
	slices.SortStableFunc(rows, func(x, y *Row[P]) int {
		return cmp.Or(cmp.Compare(x.Status, y.Status), cmp.Compare(x.Median, y.Median))
	})
	type untried struct {
		status Status
		reason string
	}
	folded := map[untried]int{}
	for _, row := range rows {
		mark := ""
		switch {
		case row.Point == r.Chosen:
			mark = "->"
		case row.Point == r.Default:
			mark = "default"
		}
		switch {
		case row.Status == Measured:
			fmt.Fprintf(w, "%s\t%v\t%v\t%+.1f %%\t%.1f %%\t%d\t%v\t\n", mark, row.Point, micros(row.Median), 100*row.Gain, 100*row.Noise, row.Rounds, micros(row.Estimate))
		case mark == "" && (row.Status == Skipped || row.Status == Rejected):
			folded[untried{row.Status, row.Reason}]++
		default:
			fmt.Fprintf(w, "%s\t%v\t%v\t\t\t\t%v\t%s\n", mark, row.Point, row.Status, micros(row.Estimate), firstLine(row.Reason))
		}
	}
	_ = w.Flush() // a Builder takes everything
	for _, row := range rows {
		of := untried{row.Status, row.Reason}
		if n := folded[of]; n > 0 {
			fmt.Fprintf(&b, "%d more %v: %s\n", n, row.Status, firstLine(row.Reason))
			delete(folded, of)
		}
	}
	return b.String()
}

func micros(d time.Duration) time.Duration { return d.Round(100 * time.Nanosecond) }

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}
