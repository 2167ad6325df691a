package safetensors

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
)

// maxHeader is the longest accepted header in bytes, the same as in the reference
// implementation.
const maxHeader = 100_000_000

// metadataKey is the only key of a header that does not name a tensor. Its value is a map
// of strings.
const metadataKey = "__metadata__"

// parseHeader reads a header. data is the number of bytes that follow it. The tensors are
// returned in the order of their data.
func parseHeader(text io.Reader, data int64) ([]Tensor, map[string]string, error) {
	p := parser{scanner{in: bufio.NewReaderSize(text, 1<<16)}}
	if first, err := p.in.Peek(1); err == io.EOF || err == nil && first[0] != '{' {
		return nil, nil, headerErrorf("doesn't begin with '{'")
	}
	tensors, metadata, err := p.header()
	if err != nil {
		return nil, nil, err
	}
	switch _, err := p.scanner.next(); {
	case err == nil || errors.As(err, new(*formatError)):
		return nil, nil, headerErrorf("has something after its end")
	case err != io.EOF:
		return nil, nil, err
	}
	return tensors, metadata, checkPlaces(tensors, data)
}

// checkPlaces sorts the tensors by the offsets of their data. It checks that the tensors cover the
// data without gaps and do not overlap.
func checkPlaces(tensors []Tensor, data int64) error {
	slices.SortStableFunc(tensors, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(a.Begin, b.Begin), cmp.Compare(a.End, b.End))
	})
	var end int64
	for _, t := range tensors {
		size, err := t.Bytes()
		switch {
		case err != nil:
			return err
		case t.Begin < 0 || t.End < t.Begin:
			return tensorErrorf(t.Name, "data_offsets [%d, %d] are not in order", t.Begin, t.End)
		case t.End > data:
			return tensorErrorf(t.Name, "ends at byte %d of the data, but the file has only %d bytes of data: is it complete?", t.End, data)
		case t.End-t.Begin != size:
			return tensorErrorf(t.Name, "data_offsets [%d, %d] hold %d bytes, but %s %v takes %d",
				t.Begin, t.End, t.End-t.Begin, t.DType, t.Shape, size)
		case t.Begin < end:
			return tensorErrorf(t.Name, "begins at %d, inside the tensor before it, which ends at %d", t.Begin, end)
		case t.Begin > end:
			return tensorErrorf(t.Name, "begins at %d, leaving a gap after %d", t.Begin, end)
		}
		end = t.End
	}
	if end != data {
		return headerErrorf("its tensors end at %d, but %d bytes of data follow it", end, data)
	}
	return nil
}

// maxRank is the largest number of dimensions, as in PyTorch and NumPy.
const maxRank = 64

// parser reads a header token by token. It refuses deeper nesting than the format has, and a key
// that occurs twice.
type parser struct{ scanner }

func (p *parser) header() (tensors []Tensor, metadata map[string]string, err error) {
	seen := map[string]bool{}
	err = p.object(spot{"header", ""}, func(key string) error {
		if seen[key] {
			return tensorErrorf(key, "the name stands twice in the header")
		}
		seen[key] = true
		var err error
		if key == metadataKey {
			metadata, err = p.metadata()
			return err
		}
		t, err := p.tensor(key)
		tensors = append(tensors, t)
		return err
	})
	return tensors, metadata, err
}

func (p *parser) metadata() (map[string]string, error) {
	m := map[string]string{}
	err := p.object(spot{metadataKey, ""}, func(key string) error {
		if _, ok := m[key]; ok {
			return headerErrorf("%s has the key %.80q twice", metadataKey, key)
		}
		value, err := p.text(spot{metadataKey, ""})
		m[key] = value
		return err
	})
	return m, err
}

// tensorKeys are the keys of a tensor's object.
var tensorKeys = [3]string{"dtype", "shape", "data_offsets"}

func (p *parser) tensor(name string) (Tensor, error) {
	t := Tensor{Name: name}
	var offsets []int64
	var seen [3]bool
	err := p.object(spot{"tensor", name}, func(key string) (err error) {
		i := slices.Index(tensorKeys[:], key)
		switch {
		case i < 0:
			return tensorErrorf(name, "unknown key %.80q, must be dtype, shape or data_offsets", key)
		case seen[i]:
			return tensorErrorf(name, "%s stands twice", key)
		}
		seen[i] = true
		switch key {
		case "dtype":
			t.DType, err = p.text(spot{key, ""})
		case "shape":
			t.Shape, err = p.integers(name, key)
		case "data_offsets":
			offsets, err = p.integers(name, key)
		}
		return err
	})
	if err != nil {
		return t, err
	}
	for i, key := range tensorKeys {
		if !seen[i] {
			return t, tensorErrorf(name, "%s is missing", key)
		}
	}
	if len(offsets) != 2 {
		return t, tensorErrorf(name, "data_offsets has %d numbers, must have 2", len(offsets))
	}
	t.Begin, t.End = offsets[0], offsets[1]
	return t, nil
}

// spot is a position in a header for errors. It becomes text only for an error, because a header
// may have a million tensors.
type spot struct{ part, name string }

// String returns the spot as an error names it.
func (p spot) String() string {
	if p.name == "" {
		return p.part
	}
	return fmt.Sprintf("%s %.60q", p.part, p.name)
}

// object reads a JSON object. It calls member for each key, and member must read the value.
func (p *parser) object(where spot, member func(key string) error) error {
	return p.list(where, '{', '}', func(first token) error {
		if first.kind != '"' {
			return p.unexpected(where, first, "a string")
		}
		if err := p.expect(where, ':'); err != nil {
			return err
		}
		return member(first.text)
	})
}

// integers reads an array of integers that are not negative.
func (p *parser) integers(name, key string) ([]int64, error) {
	list := []int64{}
	err := p.list(spot{key, ""}, '[', ']', func(first token) error {
		v, err := strconv.ParseInt(first.text, 10, 64)
		if first.kind != 'w' || err != nil || v < 0 || first.text != strconv.FormatInt(v, 10) {
			return tensorErrorf(name, "%s has %v, must be integers from 0 to 2^63-1", key, first)
		}
		if len(list) == maxRank {
			return tensorErrorf(name, "%s has more than %d numbers", key, maxRank)
		}
		list = append(list, v)
		return nil
	})
	return list, err
}

// list reads a list between the brackets begin and end. It calls element with the first token of
// each element, and element must read the rest of the element.
func (p *parser) list(where spot, begin, end byte, element func(first token) error) error {
	if err := p.expect(where, begin); err != nil {
		return err
	}
	for first := true; ; first = false {
		tok, err := p.next()
		if err != nil {
			return err
		}
		if tok.kind == end && first {
			return nil
		}
		if err := element(tok); err != nil {
			return err
		}
		if tok, err = p.next(); err != nil {
			return err
		}
		switch tok.kind {
		case end:
			return nil
		case ',':
		default:
			return p.unexpected(where, tok, fmt.Sprintf("',' or '%c'", end))
		}
	}
}

func (p *parser) expect(where spot, want byte) error {
	tok, err := p.next()
	if err == nil && tok.kind != want {
		err = p.unexpected(where, tok, string(want))
	}
	return err
}

func (p *parser) text(where spot) (string, error) {
	tok, err := p.next()
	if err == nil && tok.kind != '"' {
		err = p.unexpected(where, tok, "a string")
	}
	return tok.text, err
}

func (p *parser) unexpected(where spot, tok token, want string) error {
	return headerErrorf("%v has %v near byte %d, must have %s", where, tok, p.at, want)
}

// next returns the next token. The end of the header is an error.
func (p *parser) next() (token, error) {
	tok, err := p.scanner.next()
	if err == io.EOF {
		err = p.errorf("it ends")
	}
	return tok, err
}
