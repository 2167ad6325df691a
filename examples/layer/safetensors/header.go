package safetensors

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"slices"
	"strconv"
	"unicode/utf8"
)

// MaxHeader is the longest header accepted, in bytes; the reference
// implementation has the same limit.
const MaxHeader = 100_000_000

// metadataKey is the one key of a header that is no tensor: a map of strings.
const metadataKey = "__metadata__"

// parseHeader reads a header that is followed by so many bytes of data. It
// gives the tensors in the order of their data.
func parseHeader(text []byte, data int64) ([]Tensor, map[string]string, error) {
	if len(text) == 0 || text[0] != '{' {
		return nil, nil, headerErrorf("doesn't begin with '{'")
	}
	if !utf8.Valid(text) {
		return nil, nil, headerErrorf("is not UTF-8")
	}
	p := parser{json.NewDecoder(bytes.NewReader(text))}
	p.UseNumber()
	tensors, metadata, err := p.header()
	if err != nil {
		return nil, nil, err
	}
	if _, err := p.Token(); err != io.EOF {
		return nil, nil, headerErrorf("has something after its end")
	}
	return tensors, metadata, checkPlaces(tensors, data)
}

// checkPlaces sorts tensors by place and checks that they cover the data.
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
		case t.Begin < 0 || t.End < t.Begin || t.End > data:
			return tensorErrorf(t.Name, "data_offsets [%d, %d] are not in order inside the %d bytes of data", t.Begin, t.End, data)
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

// parser takes a header token by token: nothing is nested deeper than the
// format is, and a key that stands twice is seen.
type parser struct{ *json.Decoder }

func (p parser) header() (tensors []Tensor, metadata map[string]string, err error) {
	seen := map[string]bool{}
	err = p.object("header", func(key string) error {
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

func (p parser) metadata() (map[string]string, error) {
	m := map[string]string{}
	err := p.object(metadataKey, func(key string) error {
		if _, ok := m[key]; ok {
			return headerErrorf("%s has the key %.80q twice", metadataKey, key)
		}
		value, err := p.string(metadataKey)
		m[key] = value
		return err
	})
	return m, err
}

func (p parser) tensor(name string) (Tensor, error) {
	t := Tensor{Name: name}
	var offsets []int64
	seen := map[string]bool{}
	err := p.object("tensor "+strconv.Quote(name), func(key string) (err error) {
		if seen[key] {
			return tensorErrorf(name, "%s stands twice", key)
		}
		seen[key] = true
		switch key {
		case "dtype":
			var s string
			s, err = p.string("dtype")
			t.DType = DType(s)
		case "shape":
			t.Shape, err = p.integers(name, key)
		case "data_offsets":
			offsets, err = p.integers(name, key)
		default:
			err = tensorErrorf(name, "unknown key %.80q, must be dtype, shape or data_offsets", key)
		}
		return err
	})
	if err != nil {
		return t, err
	}
	for _, key := range []string{"dtype", "shape", "data_offsets"} {
		if !seen[key] {
			return t, tensorErrorf(name, "%s is missing", key)
		}
	}
	if len(offsets) != 2 {
		return t, tensorErrorf(name, "data_offsets has %d numbers, must have 2", len(offsets))
	}
	t.Begin, t.End = offsets[0], offsets[1]
	return t, nil
}

// object calls member for each key; member must take the value.
func (p parser) object(where string, member func(key string) error) error {
	if err := p.delim(where, '{'); err != nil {
		return err
	}
	for p.More() {
		key, err := p.string(where)
		if err != nil {
			return err
		}
		if err := member(key); err != nil {
			return err
		}
	}
	return p.delim(where, '}')
}

func (p parser) delim(where string, want json.Delim) error {
	tok, err := p.token()
	if err == nil && tok != want {
		err = headerErrorf("%.80s has %.40v near byte %d, must have %v", where, tok, p.InputOffset(), want)
	}
	return err
}

func (p parser) string(where string) (string, error) {
	tok, err := p.token()
	if err != nil {
		return "", err
	}
	s, ok := tok.(string)
	if !ok {
		return "", headerErrorf("%.80s has %.40v near byte %d, must have a string", where, tok, p.InputOffset())
	}
	return s, nil
}

// integers takes an array of integers that are not negative.
func (p parser) integers(name, key string) ([]int64, error) {
	if err := p.delim(key, '['); err != nil {
		return nil, err
	}
	list := []int64{}
	for p.More() {
		tok, err := p.token()
		if err != nil {
			return nil, err
		}
		number, _ := tok.(json.Number)
		v, err := strconv.ParseInt(number.String(), 10, 64)
		if err != nil || v < 0 {
			return nil, tensorErrorf(name, "%s has %.40v, must be integers from 0 to 2^63-1", key, tok)
		}
		list = append(list, v)
	}
	return list, p.delim(key, ']')
}

func (p parser) token() (json.Token, error) {
	tok, err := p.Token()
	if err != nil {
		return nil, headerErrorf("is not JSON near byte %d: %v", p.InputOffset(), err)
	}
	return tok, nil
}
