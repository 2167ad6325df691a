package ptx

import (
	"fmt"
	"strconv"
	"strings"
)

// peek returns the next token, or "" at the end.
func (p *parser) peek() string {
	if p.at < len(p.toks) {
		return p.toks[p.at].text
	}
	return ""
}

// line returns the line of the next token, or of the last one at the end.
func (p *parser) line() int {
	switch {
	case p.at < len(p.toks):
		return p.toks[p.at].line
	case len(p.toks) > 0:
		return p.toks[len(p.toks)-1].line
	}
	return 1
}

func (p *parser) next() string {
	s := p.peek()
	if p.at < len(p.toks) {
		p.at++
	}
	return s
}

func (p *parser) accept(s string) bool {
	if p.peek() == s && s != "" {
		p.at++
		return true
	}
	return false
}

func (p *parser) errorf(format string, args ...any) error {
	return fmt.Errorf("line %d: %s", p.line(), fmt.Sprintf(format, args...))
}

// overBudget returns the error for a text that exceeds a limit. The parser then stops, without
// further errors.
func (p *parser) overBudget(format string, args ...any) error {
	p.spent = true
	return p.errorf(format, args...)
}

func (p *parser) expect(s string) error {
	if !p.accept(s) {
		return p.errorf("%q where %q is expected", p.peek(), s)
	}
	return nil
}

func (p *parser) int() (int, error) {
	n, err := strconv.ParseInt(p.peek(), 0, 32)
	if err != nil || n < 0 {
		return 0, p.errorf("%q where a number is expected", p.peek())
	}
	p.at++
	return int(n), nil
}

// word reads a name, an opcode or a special register.
func (p *parser) word() (string, error) {
	s := p.peek()
	if s == "" || !letter(s[0]) {
		return "", p.errorf("%q where a name is expected", s)
	}
	p.at++
	return s, nil
}

// name reads the name of a declaration.
func (p *parser) name() (string, error) {
	s, err := p.word()
	if err == nil && strings.ContainsAny(s, ".:") {
		p.at--
		return "", p.errorf("%q is not a name", s)
	}
	return s, err
}

func letter(c byte) bool {
	return c == '_' || c == '$' || c == '%' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
}
