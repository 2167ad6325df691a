package checkpoint

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Limits of a config.json: the largest published ones have some 10 KB, and two
// levels of models in models.
const (
	maxBytes = 1 << 20
	maxDepth = 4
)

// inner are the objects in which models of several parts keep the text model's.
var inner = []string{"text_config", "language_config", "llm_config", "thinker_config", "ffn_config"}

// object is the fields of a config.json.
type object map[string]json.RawMessage

// parse reads a config.json, the text model's fields over those around it.
func parse(data []byte) (object, error) {
	if len(data) > maxBytes {
		return nil, fmt.Errorf("config.json has %d bytes, must be at most %d", len(data), maxBytes)
	}
	data = numbers(bytes.TrimPrefix(data, []byte("\ufeff")))
	var o object
	if err := json.Unmarshal(data, &o); err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	for depth := 0; ; depth++ {
		if depth == maxDepth {
			return nil, fmt.Errorf("config.json: models in models %d deep, must be at most %d", depth, maxDepth-1)
		}
		at := slices.IndexFunc(inner, func(name string) bool { return o[name] != nil })
		if at < 0 {
			return o, nil
		}
		var part object
		if err := json.Unmarshal(o[inner[at]], &part); err != nil {
			return nil, fmt.Errorf("config.json: %s: %w", inner[at], err)
		}
		delete(o, inner[at])
		// transformers writes an empty model_type into parts that have none.
		if string(part["model_type"]) == `""` || inner[at] == "ffn_config" {
			delete(part, "model_type")
		}
		maps.Copy(o, part)
	}
}

// numbers writes null for the numbers that Python's json has and JSON has not.
func numbers(data []byte) []byte {
	var out bytes.Buffer
	for i := 0; i < len(data); {
		if data[i] == '"' { // strings as they are
			end := i + 1
			for end < len(data) && data[end] != '"' {
				if data[end] == '\\' {
					end++
				}
				end++
			}
			end = min(end+1, len(data))
			out.Write(data[i:end])
			i = end
			continue
		}
		name := ""
		for _, n := range []string{"-Infinity", "Infinity", "NaN"} {
			if bytes.HasPrefix(data[i:], []byte(n)) {
				name = n
				break
			}
		}
		if name != "" {
			out.WriteString("null")
			i += len(name)
			continue
		}
		out.WriteByte(data[i])
		i++
	}
	return out.Bytes()
}

// fields reads an object and remembers what it was asked for. Its methods give
// zero after the first error.
type fields struct {
	object
	read    map[string]bool
	assumed []string
	outside []string
	// listed is the number of layers in a list of them, 0 without one.
	listed int
	err    error
}

func (f *fields) fail(format string, args ...any) {
	if f.err == nil {
		f.err = fmt.Errorf(format, args...)
	}
}

// find gives the first of the names that is there, and whether one is.
func (f *fields) find(names ...string) (name string, raw json.RawMessage) {
	for _, n := range names {
		f.read[n] = true
		if raw == nil && f.object[n] != nil && string(f.object[n]) != "null" {
			name, raw = n, f.object[n]
		}
	}
	return name, raw
}

// size is a positive whole number that must be there, under one of its names. A
// list of one number for each layer will do where all are equal.
func (f *fields) size(names ...string) int {
	name, raw := f.find(names...)
	if raw == nil {
		f.fail("config.json has no %s", strings.Join(names, " or "))
		return 0
	}
	v := f.whole(name, raw)
	if v < 1 && f.err == nil {
		f.fail("%s is %d, must be above 0", name, v)
	}
	return v
}

// count is a whole number, 0 or more, that may be missing.
func (f *fields) count(missing int, names ...string) int {
	name, raw := f.find(names...)
	if raw == nil {
		return assume(f, names[0], missing)
	}
	v := f.whole(name, raw)
	if v < 0 && f.err == nil {
		f.fail("%s is %d, must not be negative", name, v)
	}
	return v
}

func (f *fields) whole(name string, raw json.RawMessage) int {
	var list []int
	if json.Unmarshal(raw, &list) == nil && len(list) > 0 && slices.Min(list) == slices.Max(list) {
		return list[0]
	}
	var v float64
	if err := json.Unmarshal(raw, &v); err != nil || v != float64(int(v)) {
		f.fail("%s is %s, must be a whole number", name, raw)
		return 0
	}
	return int(v)
}

// number and truth may be missing.
func (f *fields) number(missing float64, names ...string) float64 {
	return value(f, missing, "a number", names...)
}

func (f *fields) truth(missing bool, names ...string) bool {
	return value(f, missing, "true or false", names...)
}

func (f *fields) text(missing string, names ...string) string {
	return value(f, missing, "a string", names...)
}

// value reads a field that may be missing.
func value[T any](f *fields, missing T, want string, names ...string) T {
	name, raw := f.find(names...)
	if raw == nil {
		return assume(f, names[0], missing)
	}
	var v T
	if err := json.Unmarshal(raw, &v); err != nil {
		f.fail("%s is %s, must be %s", name, raw, want)
	}
	return v
}

// assume says what a missing field was taken for.
func assume[T any](f *fields, name string, v T) T {
	f.assumed = append(f.assumed, fmt.Sprintf("%s is not there: %#v, as transformers has it", name, v))
	return v
}

// fixed refuses a field, where it is there, with another value than the one that
// the family's models have and its code computes: a string, a bool or a number,
// which may stand once for each layer.
func (f *fields) fixed(name string, want any) {
	_, raw := f.find(name)
	if raw == nil {
		return
	}
	var got any
	if err := json.Unmarshal(raw, &got); err != nil {
		f.fail("%s is %s: %v", name, raw, err)
		return
	}
	list, ok := got.([]any)
	if !ok {
		list = []any{got}
	}
	for _, v := range list {
		if v != want {
			f.fail("%s is %v, must be %#v, which is all that this family's layer computes", name, v, want)
		}
	}
}
