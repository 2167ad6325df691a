package safetensors

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// token is a part of JSON text: a punctuation character, a string, or a word (a
// number, null, true or false).
type token struct {
	kind byte // the punctuation character itself, '"' for a string, or 'w' for a word
	text string
}

// String returns the token as errors quote it.
func (t token) String() string {
	switch t.kind {
	case '"':
		return fmt.Sprintf("%.40q", t.text)
	case 'w':
		return t.text
	}
	return string(t.kind)
}

// scanner splits JSON text into tokens while it reads. It takes time linear in the text, and memory
// for one token. It does not check the order of tokens.
type scanner struct {
	in *bufio.Reader
	at int64  // bytes read
	b  []byte // bytes of the present token
}

// next returns the next token, and io.EOF at the end of the text.
func (s *scanner) next() (token, error) {
	for {
		c, err := s.in.ReadByte()
		if err != nil {
			return token{}, err
		}
		s.at++
		switch {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
		case strings.IndexByte("{}[],:", c) >= 0:
			return token{kind: c}, nil
		case c == '"':
			text, err := s.string()
			return token{'"', text}, err
		case wordByte(c):
			return token{'w', s.word(c)}, nil
		default:
			return token{}, s.errorf("unexpected character %q", c)
		}
	}
}

func wordByte(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '-' || c == '+' || c == '.'
}

// maxWord is larger than the length of every number that a header may have.
const maxWord = 40

func (s *scanner) word(first byte) string {
	s.b = append(s.b[:0], first)
	for len(s.b) < maxWord {
		c, err := s.in.ReadByte()
		if err != nil {
			break
		}
		if !wordByte(c) {
			_ = s.in.UnreadByte() // just read
			break
		}
		s.at++
		s.b = append(s.b, c)
	}
	return string(s.b)
}

// string reads a string whose opening quote has been read.
func (s *scanner) string() (string, error) {
	s.b = append(s.b[:0], '"')
	for {
		part, err := s.in.ReadSlice('"')
		s.at += int64(len(part))
		s.b = append(s.b, part...)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err == io.EOF {
			return "", s.errorf("it ends inside a string")
		}
		if err != nil {
			return "", err
		}
		slashes := 0
		for i := len(s.b) - 2; s.b[i] == '\\'; i-- {
			slashes++
		}
		if slashes%2 == 0 {
			break
		}
	}
	if !utf8.Valid(s.b) {
		return "", headerErrorf("is not UTF-8 near byte %d", s.at)
	}
	body := s.b[1 : len(s.b)-1]
	if bytes.IndexFunc(body, func(r rune) bool { return r < ' ' || r == '\\' }) < 0 {
		return string(body), nil
	}
	var text string
	if err := json.Unmarshal(s.b, &text); err != nil {
		return "", s.errorf("%v", err)
	}
	return text, nil
}

func (s *scanner) errorf(format string, args ...any) error {
	return headerErrorf("is not JSON near byte %d: %s", s.at, fmt.Sprintf(format, args...))
}
