package ptx

import (
	"slices"
	"strconv"
	"strings"
)

// Loc is a position in the source from which a compiler made the PTX, as .loc states it: the number
// of a .file directive, and a line. The zero Loc means that the text states no position.
type Loc struct {
	File, Line int
	// Call is the position of the call that the compiler replaced by the function's code. It is nil
	// if the code was not inlined.
	Call *Loc
	// calls is the number of positions that follow through Call.
	calls int
}

// Position is a line of a source file.
type Position struct {
	File string
	Line int
}

// Source returns the source position of a line of a parsed kernel, according to the module's .file
// and .loc directives. If the compiler inlined the function at that position, the positions of the
// calls follow, the innermost first. The list is empty if the text states no position.
func (m *Module) Source(e *Entry, line int) (list []Position) {
	for i := range e.Body {
		if in := &e.Body[i]; in.Line == line && in.Loc.Line > 0 {
			for at := &in.Loc; at != nil; at = at.Call {
				list = append(list, Position{m.Files[at.File], at.Line})
			}
			return list
		}
	}
	return nil
}

// debug parses the rest of a .file, .loc, .pragma or .section directive. It keeps file names and
// source lines, and skips everything else.
func (p *parser) debug(directive string) error {
	switch directive {
	case ".pragma":
		p.skipStatement()
		return nil
	case ".section":
		for p.at < len(p.toks) && p.next() != "{" {
		}
		for p.at < len(p.toks) && p.next() != "}" {
		}
		return nil
	}
	n, err := p.int()
	if err != nil {
		return err
	}
	if directive == ".file" {
		name := p.next()
		if !strings.HasPrefix(name, `"`) {
			return p.errorf("%q where a file's name is expected", name)
		}
		if p.m.Files == nil {
			p.m.Files = map[int]string{}
		}
		p.m.Files[n] = strings.Trim(name, `"`)
		for p.accept(",") { // the file's modification time and size
			p.next()
		}
		return nil
	}
	line, err := p.int()
	if err != nil {
		return err
	}
	p.position(Loc{File: n, Line: line})
	return nil
}

// place is the position of a .loc directive, with its column.
type place struct{ file, line, column int }

// maxInlined is the largest number of calls that a position keeps.
const maxInlined = 32

// position makes a .loc directive's position the present one. It reads the column and the
// attributes, which end with the line.
func (p *parser) position(loc Loc) {
	words, from := []string{}, p.toks[p.at-1].line
	for p.at < len(p.toks) && p.line() == from {
		words = append(words, p.next())
	}
	here := place{loc.File, loc.Line, 0}
	if len(words) > 0 {
		here.column = number(words[0])
	}
	if i := slices.Index(words, "inlined_at"); i >= 0 && i+3 < len(words) {
		call := place{number(words[i+1]), number(words[i+2]), number(words[i+3])}
		// The latest directive with the position of the call says where that call was inlined.
		if loc.Call = p.places[call]; loc.Call == nil {
			loc.Call = &Loc{File: call.file, Line: call.line}
		}
		if loc.calls = loc.Call.calls + 1; loc.calls > maxInlined {
			loc.Call, loc.calls = nil, 0
		}
	}
	if p.places == nil {
		p.places = map[place]*Loc{}
	}
	p.loc, p.places[here] = loc, &loc
}

// number returns the value of a decimal number, or 0 for other text.
func number(word string) int {
	n, _ := strconv.Atoi(word)
	return n
}

// pointer skips the attributes of a pointer parameter, which describe the memory to which it
// points.
func (p *parser) pointer() error {
	if !p.accept(".ptr") {
		return nil
	}
	for _, space := range []string{".global", ".shared", ".const", ".local"} {
		if p.accept(space) {
			break
		}
	}
	if p.accept(".align") {
		_, err := p.int()
		return err
	}
	return nil
}
