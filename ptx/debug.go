package ptx

import "strings"

// Loc is a position in the source from which a compiler made the PTX, as .loc states it: the number
// of a .file directive, and a line. The zero Loc means that the text states no position.
type Loc struct{ File, Line int }

// Source returns the source file and line from which a line of a parsed kernel comes, according to
// the module's .file and .loc directives. It returns "" and 0 if they do not say.
func (m *Module) Source(e *Entry, line int) (file string, sourceLine int) {
	for i := range e.Body {
		if in := &e.Body[i]; in.Line == line && in.Loc.Line > 0 {
			return m.Files[in.Loc.File], in.Loc.Line
		}
	}
	return "", 0
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
	p.loc = Loc{n, line}
	// Skip the column and the attributes up to the end of the line.
	for start := p.toks[p.at-1].line; p.at < len(p.toks) && p.line() == start; {
		p.at++
	}
	return nil
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
