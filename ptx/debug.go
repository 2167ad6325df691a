package ptx

import "strings"

// Loc is a place in the source that a compiler made PTX of, by .loc: the number
// of a .file and a line; zero where there is none.
type Loc struct{ File, Line int }

// Source is the source line behind a line of a parsed kernel, by the module's
// debugging directives: the file's name and a line, 0 where they say none.
func (m *Module) Source(e *Entry, line int) (file string, sourceLine int) {
	for i := range e.Body {
		if in := &e.Body[i]; in.Line == line && in.Loc.Line > 0 {
			return m.Files[in.Loc.File], in.Loc.Line
		}
	}
	return "", 0
}

// debug parses .file, .loc, .pragma and .section behind their first token. All
// but files and lines is skipped.
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
		for p.accept(",") { // time and size
			p.next()
		}
		return nil
	}
	line, err := p.int()
	if err != nil {
		return err
	}
	p.loc = Loc{n, line}
	// The column, and attributes up to the line's end.
	for start := p.toks[p.at-1].line; p.at < len(p.toks) && p.line() == start; {
		p.at++
	}
	return nil
}

// pointer skips what a parameter says about the memory that it points to.
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
