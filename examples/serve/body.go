package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// readTokens reads a body of exactly the form {"tokens": [[…], …]}, with tokens of `width` numbers
// each. There must be at least one token, and at most `most`. It checks the counts while it reads,
// so that a body takes no more memory than its tokens.
func readTokens(body io.Reader, width, most int) ([]float32, error) {
	p := parser{in: bufio.NewReader(body)}
	var x []float32
	for _, want := range []string{"{", `"tokens"`, ":", "["} {
		p.expect(want)
	}
	for first := true; p.more(first); first = false {
		if len(x) == most*width {
			p.tooMany(most)
		}
		p.expect("[")
		token, n := len(x)/width, 0
		for ; p.more(n == 0); n++ {
			if n == width {
				p.failf("token %d has more than %d numbers, want %[2]d", token, width)
			}
			x = append(x, p.number())
		}
		if n != width {
			p.failf("token %d has %d numbers, want %d", token, n, width)
		}
	}
	if len(x) == 0 {
		p.failf("0 tokens, want 1 to %d", most)
	}
	p.expect("}")
	if p.err != nil {
		return nil, p.err
	}
	return x, p.end()
}

// parser reads JSON from a stream. It keeps its first error, and reads nothing after an error.
type parser struct {
	in  *bufio.Reader
	err error
}

func (p *parser) failf(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf(format, args...)
	}
}

// tooMany records the error that a body has too many tokens, unless there is an earlier error. The
// parameter most is the largest number.
func (p *parser) tooMany(most int) {
	if p.err == nil {
		p.err = tooMany(most)
	}
}

func tooMany(most int) error {
	return &refusal{http.StatusRequestEntityTooLarge, fmt.Sprintf("more than %d tokens, want 1 to %[1]d", most)}
}

// byte returns the next byte, or 0 after an error.
func (p *parser) byte() (c byte) {
	if p.err == nil {
		c, p.err = p.in.ReadByte()
	}
	if p.err == io.EOF {
		p.err = io.ErrUnexpectedEOF
	}
	return c
}

// skip returns the next byte that is not white space, or 0 after an error.
func (p *parser) skip() byte {
	c := p.byte()
	for c == ' ' || c == '\t' || c == '\n' || c == '\r' {
		c = p.byte()
	}
	return c
}

// expect reads the text want, after optional white space.
func (p *parser) expect(want string) {
	got := p.skip()
	for i := range len(want) {
		if i > 0 {
			got = p.byte()
		}
		if got != want[i] {
			p.failf("%q in the place of %s", got, want)
			return
		}
	}
}

// more reports whether an array has another element. It reads the comma before that element.
func (p *parser) more(first bool) bool {
	switch c := p.skip(); {
	case c == ']' || p.err != nil:
		return false
	case first:
		p.err = p.in.UnreadByte()
	case c != ',':
		p.failf("%q in the place of a comma or ]", c)
	}
	return p.err == nil
}

// number reads a number that FP32 can hold.
func (p *parser) number() float32 {
	const longest = 64
	c := p.skip()
	if p.err == nil && !strings.ContainsRune("-0123456789", rune(c)) {
		p.failf("%q in the place of a number", c)
	}
	var text []byte
	for ; p.err == nil && strings.ContainsRune("+-.0123456789eE", rune(c)); c = p.byte() {
		if text = append(text, c); len(text) > longest {
			p.failf("a number of more than %d characters", longest)
		}
	}
	if p.err != nil {
		return 0
	}
	p.err = p.in.UnreadByte()
	v, err := strconv.ParseFloat(string(text), 32)
	if err != nil || !json.Valid(text) {
		p.failf("%.64q is not an FP32 number", text)
	}
	return float32(v)
}

// end records an error if anything except white space is left.
func (p *parser) end() error {
	c := p.skip()
	if p.err == io.ErrUnexpectedEOF {
		return nil
	}
	p.failf("%q after the end of the JSON", c)
	return p.err
}
