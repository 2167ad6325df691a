package autotune

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Status is the result of trying a candidate.
type Status uint8

// These are the statuses of candidates.
const (
	// Untried does not occur after Tune.
	Untried Status = iota
	// Measured means that the candidate was right and timed.
	Measured
	// Duplicate means that the candidate compiled to the same bytes as an earlier candidate.
	Duplicate
	// Skipped means that the candidate was not tried because of the budget or Options.Most.
	Skipped
	// Unproven means that the candidate was not tried, because there was no worker process.
	Unproven
	// Unbuilt means that the candidate's kernels could not be emitted or compiled.
	Unbuilt
	// Wrong means that the candidate's results differed from the reference.
	Wrong
	// Faulted means that the candidate broke the worker's device.
	Faulted
	// Hung means that the candidate did not finish in time.
	Hung
	// Died means that the worker process ended.
	Died
	// Rejected means that no kernel can have the point.
	Rejected
)

// String returns the name of the status in lower case.
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
	// Reason explains a status other than Measured.
	Reason string
	// Estimate is the time by the cost model.
	Estimate time.Duration
	// Median is the median of the times of Rounds rounds. Gain says how much faster the point
	// is, as a fraction of the default's time. Noise is the uncertainty of Gain.
	Median      time.Duration
	Rounds      int
	Gain, Noise float64
}

// Report is the result of a search. It has no effect until the caller stores its Record or uses
// its point.
type Report[P comparable] struct {
	Problem string
	Key     Key
	// Chosen is the best point: the default, unless another point is better. Why is the reason.
	Default, Chosen P
	Why             string
	// PTX is the Digest of Chosen's kernels.
	PTX string
	// Rows holds all candidates: the default first, then the others in the order of their
	// estimates.
	Rows []*Row[P]
	// Where says in which process and on which device the points were tried.
	Where string
	// Compiled is the number of kernels that were not in the cache.
	Compiled int
	Took     time.Duration
}

// Row returns the row of a point, or nil.
func (r *Report[P]) Row(p P) *Row[P] {
	for _, row := range r.Rows {
		if row.Point == p {
			return row
		}
	}
	return nil
}

// Count returns the number of rows with a status.
func (r *Report[P]) Count(s Status) int {
	n := 0
	for _, row := range r.Rows {
		if row.Status == s {
			n++
		}
	}
	return n
}

// Record returns the choice in the form that is stored under Key.
func (r *Report[P]) Record() ([]byte, error) { return Encode(r.Chosen, r.PTX) }

// Tried returns the number of candidates that were tried, with any result.
func (r *Report[P]) Tried() int {
	return len(r.Rows) - r.Count(Untried) - r.Count(Skipped) - r.Count(Unproven) - r.Count(Rejected)
}

// String returns a table of the candidates: first the measured ones in the order of their
// times, then the others with their reasons. Skipped and rejected candidates are only counted,
// for each reason.
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
	_ = w.Flush() // writing to a Builder cannot fail
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
