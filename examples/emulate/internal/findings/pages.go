package findings

import (
	"context"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sonicmoe/internal/disk"
	"sonicmoe/ptx/emu"
)

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Parse(pageText))

// page is the content of the HTML page of a finding.
type page struct {
	emu.Finding
	What string // the finding's text without Mend
	Mend string // the remedy: what would order the two sides, or ""
	Pair bool   // Sides has two accesses, in the order in which they ran
	// Either reports whether a read came before a write in this run. The finding's text then does
	// not tell which of the two the kernel needs first.
	Either bool
	Sides  []side
	Map    []mapRow
	Left   int // regions that Map leaves out
}

// side is a line of the PTX that a finding names.
type side struct {
	Title    string
	Excerpts []excerpt // of the PTX, and of the source if its file is found
}

// excerpt is a line of a file with some lines around it.
type excerpt struct {
	Name  string
	Lines []sourceLine
}

type sourceLine struct {
	Number int
	Text   string
	Here   bool
}

// mapRow is a region of shared memory, with the addresses of the finding that lie in it.
type mapRow struct {
	emu.Region
	Marks []mark
}

// End returns the offset after the region.
func (r mapRow) End() uint32 { return r.At + r.Bytes }

type mark struct {
	At      uint32
	Percent float64 // distance from the begin of the region
}

const (
	linesAround = 4        // lines that an excerpt shows before and after its line
	mostSides   = 12       // lines of the PTX that a page shows
	maxSource   = 64 << 20 // bytes of a source file
	mostRows    = 24       // regions of shared memory up to which a page shows those without an address too
)

// Pages writes HTML pages of findings.
type Pages struct {
	// File is the name of the PTX file. Source files are looked for next to it, and at the paths
	// that the PTX has.
	File    string
	Text    []byte       // the PTX
	Regions []emu.Region // of the kernel's shared memory
	// From is the number of pages that the folder has already.
	From int

	lines   []string
	sources map[string][]string // lines of source files by name; nil for a file that is not there
}

// Write writes a page for each finding into a folder.
func (p Pages) Write(ctx context.Context, folder string, list []emu.Finding) error {
	if err := disk.OS.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	p.lines, p.sources = strings.Split(string(p.Text), "\n"), map[string][]string{}
	for i, f := range list {
		name := fmt.Sprintf("%d-line-%d-%s.html", p.From+i+1, f.Line, strings.ReplaceAll(f.Kind.String(), " ", "-"))
		content := p.page(ctx, f)
		err := disk.WriteFile(disk.OS, filepath.Join(folder, name), 0o644, func(w io.Writer) error { return pageTemplate.Execute(w, content) })
		if err != nil {
			return err
		}
	}
	return nil
}

// placeText matches a place in a finding's text, such as "line 28 = sum.cu:6".
var placeText = regexp.MustCompile(`\bline (\d+)(?: = ([^)\n]*))?`)

// orderText stands before the remedy in a finding's text.
const orderText = "; to order them: "

func (p *Pages) page(ctx context.Context, f emu.Finding) page {
	f.Fault = readable(f.Fault)
	out := page{Finding: f, Sides: []side{p.side(ctx, f.Line, f.Where)}}
	out.What, out.Mend, _ = strings.Cut(f.Text, orderText)
	named := []int{f.Line}
	for _, m := range placeText.FindAllStringSubmatch(f.Text, -1) {
		line, _ := strconv.Atoi(m[1])
		if !slices.Contains(named, line) && len(named) < mostSides {
			named = append(named, line)
			out.Sides = append(out.Sides, p.side(ctx, line, m[2]))
		}
	}
	if out.Pair = out.Mend != "" && len(out.Sides) == 2; out.Pair {
		slices.Reverse(out.Sides) // the finding's text names the later access first
	}
	out.Either = out.Pair && strings.Contains(out.What, ": writes ") && strings.Contains(out.What, " read with ")
	out.Map, out.Left = p.memory(f.Text)
	return out
}

// side returns a line of the PTX with its source position. where is the position, such as
// "b.go:8 < a.go:7", or "".
func (p *Pages) side(ctx context.Context, line int, where string) side {
	s := side{Title: fmt.Sprintf("line %d", line)}
	if where != "" {
		s.Title += " = " + where
	}
	for position := range strings.SplitSeq(where, " < ") {
		name, number, ok := strings.Cut(position, ":")
		n, err := strconv.Atoi(number)
		if !ok || err != nil {
			continue
		}
		if e := around(name, p.source(ctx, name), n); len(e.Lines) > 0 {
			s.Excerpts = append(s.Excerpts, e)
		}
	}
	s.Excerpts = append(s.Excerpts, around(filepath.Base(p.File), p.lines, line))
	return s
}

// fileLine matches a line of the PTX that names a source file, in one or two parts.
var fileLine = regexp.MustCompile(`(?m)^\s*\.file\s+\d+\s+"([^"]*)"(?:\s+"([^"]*)")?`)

// source returns the lines of a source file that lies in the folder of the PTX, or at the path that
// the PTX has for it.
func (p *Pages) source(ctx context.Context, name string) []string {
	lines, known := p.sources[name]
	if known {
		return lines
	}
	base := filepath.Base(name)
	paths := []string{filepath.Join(filepath.Dir(p.File), base)}
	for _, m := range fileLine.FindAllStringSubmatch(string(p.Text), -1) {
		if path := filepath.Join(m[1], m[2]); filepath.Base(path) == base {
			paths = append(paths, path)
		}
	}
	for _, path := range paths {
		if text, err := disk.ReadFile(ctx, disk.OS, path, maxSource); err == nil {
			lines = strings.Split(string(text), "\n")
			break
		}
	}
	p.sources[name] = lines
	return lines
}

// around returns line n of a file, counted from 1, and its neighbours.
func around(name string, lines []string, n int) excerpt {
	e := excerpt{Name: name}
	for i := max(n-linesAround, 1); i <= min(n+linesAround, len(lines)); i++ {
		e.Lines = append(e.Lines, sourceLine{i, strings.ReplaceAll(lines[i-1], "\t", "    "), i == n})
	}
	return e
}

// addressText matches an address in a finding's text.
var addressText = regexp.MustCompile(`\b(descriptor |global memory |global address )?0x([0-9a-f]+)`)

// memory returns the regions of shared memory with the addresses that a text names, and how many
// regions it leaves out. It returns none if the text names no address in a region.
func (p *Pages) memory(text string) (rows []mapRow, left int) {
	marked := 0
	for _, r := range p.Regions {
		r.Name = Readable(r.Name)
		row := mapRow{Region: r}
		for _, m := range addressText.FindAllStringSubmatch(text, -1) {
			at, err := strconv.ParseUint(m[2], 16, 32)
			if in := err == nil && m[1] == "" && uint32(at) >= r.At && uint32(at) < row.End(); in && !slices.ContainsFunc(row.Marks, func(x mark) bool { return x.At == uint32(at) }) {
				row.Marks = append(row.Marks, mark{uint32(at), 100 * float64(uint32(at)-r.At) / float64(r.Bytes)})
				marked++
			}
		}
		if len(row.Marks) > 0 || len(p.Regions) <= mostRows {
			rows = append(rows, row)
		} else {
			left++
		}
	}
	if marked == 0 {
		return nil, 0
	}
	return rows, left
}
