package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"sonicmoe/internal/strict"
)

// Limits of a config.json. The largest published files have about 10 KB and two
// levels of nested models.
const (
	maxBytes = 1 << 20
	maxDepth = 4
)

// inner has the names of the objects in which a model of several parts keeps the fields of its text
// model.
var inner = []string{"text_config", "language_config", "llm_config", "thinker_config", "ffn_config"}

// outer lists fields that count for a text model even if they are outside its object. Each set has
// the names of one field. An outer field counts only if the text model has none of these names.
var outer = [][]string{{"model_type"}, {"dtype", "torch_dtype"}}

// object holds the fields of a config.json.
type object map[string]json.RawMessage

// has reports whether a field is present and not null.
func (o object) has(name string) bool { return o[name] != nil && string(o[name]) != "null" }

// null reports whether a field is present, and is null.
func (o object) null(name string) bool { return o[name] != nil && !o.has(name) }

// part returns the name of the object within o that holds the text model's fields, or ""
// if o holds them itself.
func (o object) part() string {
	for _, name := range inner {
		if o.has(name) && (name != "ffn_config" || string(o["model_type"]) == `"dbrx"`) {
			return name
		}
	}
	return ""
}

// parse reads a config.json. It returns the text model's fields, and the fields outside
// the text model's object.
func parse(data []byte) (*fields, error) {
	if len(data) > maxBytes {
		return nil, fmt.Errorf("config.json has %d bytes, must be at most %d", len(data), maxBytes)
	}
	data = numbers(bytes.TrimPrefix(data, []byte("\ufeff")))
	f := &fields{around: object{}, read: map[string]bool{}}
	var err error
	if f.object, err = unmarshal("config.json", data); err != nil {
		return nil, err
	}
	if name := strict.Doubled(data); name != "" {
		return nil, fmt.Errorf("config.json has the field %s twice, must have it once", name)
	}
	for depth := 0; ; depth++ {
		if depth == maxDepth {
			return nil, fmt.Errorf("config.json: models in models %d deep, must be at most %d", depth, maxDepth-1)
		}
		name := f.part()
		if name == "" {
			return f, nil
		}
		part, err := unmarshal("config.json: "+name, f.object[name])
		if err != nil {
			return nil, err
		}
		f.enter(name, part)
	}
}

// enter makes the fields of a part the text model's fields.
func (f *fields) enter(name string, part object) {
	sets := outer
	if name == "ffn_config" { // DBRX's ffn_config holds only a part of the layer; the sizes are outside it
		delete(part, "model_type")
		delete(part, "hidden_size")
		sets = append(slices.Clone(outer), []string{"d_model", "hidden_size"}, []string{"n_layers", "num_hidden_layers"}, []string{"per_layer_config"})
	}
	// transformers writes an empty model_type into parts that have none.
	if string(part["model_type"]) == `""` {
		delete(part, "model_type")
	}
	delete(f.object, name)
	for _, set := range sets {
		if slices.ContainsFunc(set, part.has) {
			continue
		}
		for _, name := range set {
			if f.has(name) {
				part[name] = f.object[name]
			}
		}
	}
	maps.Copy(f.around, f.object)
	f.object = part
}

// unmarshal parses an object.
func unmarshal(what string, data []byte) (object, error) {
	var o object
	err := json.Unmarshal(data, &o)
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong):
		return nil, fmt.Errorf("%s is a JSON %s, must be an object", what, wrong.Value)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", what, err)
	case o == nil:
		return nil, fmt.Errorf("%s is null, must be an object", what)
	}
	return o, nil
}

// numbers rewrites numbers that Python's json accepts and JSON does not. It writes what
// transformers writes: NaN becomes {"__float__":"NaN"}.
func numbers(data []byte) []byte {
	var out bytes.Buffer
	for i := 0; i < len(data); {
		if data[i] == '"' { // skip strings
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
		for _, n := range notFinite {
			if bytes.HasPrefix(data[i:], []byte(n)) {
				name = n
				break
			}
		}
		if name != "" {
			out.WriteString(tagged(name))
			i += len(name)
			continue
		}
		out.WriteByte(data[i])
		i++
	}
	return out.Bytes()
}

var notFinite = []string{"-Infinity", "Infinity", "NaN"}

func tagged(name string) string { return `{"__float__":"` + name + `"}` }

// shown returns a value as text for a message, with numbers as Python writes them.
func shown(raw json.RawMessage) string {
	s := string(raw)
	for _, name := range notFinite {
		s = strings.ReplaceAll(s, tagged(name), name)
	}
	return s
}

// equal reports whether two JSON texts have the same value.
func equal(a, b json.RawMessage) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

// fields reads values from an object and records which names were read. After the first
// error its methods return zero values.
type fields struct {
	object
	// around has the fields outside the text model's object that do not count for the text model.
	around  object
	read    map[string]bool
	assumed []string
	outside []string
	// listed is the length of the lists with one entry for each layer, or 0 if there is no such
	// list.
	listed int
	err    error
}

func (f *fields) fail(format string, args ...any) {
	if f.err == nil {
		f.err = fmt.Errorf(format, args...)
	}
}

// find returns the first of the names that is present, with its value. raw is nil if none is
// present.
func (f *fields) find(names ...string) (name string, raw json.RawMessage) {
	for _, n := range names {
		f.read[n] = true
		if raw == nil && f.has(n) {
			name, raw = n, f.object[n]
		}
	}
	return name, raw
}

// elsewhere returns the end of an error for a field that is missing in the text model's object and
// present outside it.
func (f *fields) elsewhere(names ...string) string {
	if at := slices.IndexFunc(names, f.around.has); at >= 0 {
		return fmt.Sprintf(" among the text model's fields: the %s around them is not its", names[at])
	}
	return ""
}

// size reads a positive whole number, which must be present under one of its names. The value may
// be a list with one number for each layer, if all numbers are equal.
func (f *fields) size(names ...string) int {
	name, raw := f.one(names...)
	if raw == nil {
		f.notNull("a whole number", names...)
		f.fail("config.json has no %s%s", strings.Join(names, " or "), f.elsewhere(names...))
		return 0
	}
	v := f.whole(name, raw)
	if v < 1 && f.err == nil {
		f.fail("%s is %d, must be above 0", name, v)
	}
	return v
}

// count reads an optional whole number that is not negative.
func (f *fields) count(missing int, names ...string) int {
	name, raw := f.one(names...)
	if raw == nil {
		f.notNull("a whole number", names...)
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
		f.fail("%s is %s, must be a whole number", name, shown(raw))
		return 0
	}
	return int(v)
}

// number and truth read an optional number and an optional bool.
func (f *fields) number(missing float64, names ...string) float64 {
	return value(f, missing, "a finite number", names...)
}

func (f *fields) truth(missing bool, names ...string) bool {
	return value(f, missing, "true or false", names...)
}

func (f *fields) text(missing string, names ...string) string {
	return value(f, missing, "a string", names...)
}

// value reads an optional field. It returns missing if the field is not present.
func value[T any](f *fields, missing T, want string, names ...string) T {
	name, raw := f.one(names...)
	if raw == nil {
		f.notNull(want, names...)
		return assume(f, names[0], missing)
	}
	var v T
	if err := json.Unmarshal(raw, &v); err != nil {
		f.fail("%s is %s, must be %s", name, shown(raw), want)
	}
	return v
}

// assume records the value assumed for a missing field.
func assume[T any](f *fields, name string, v T) T {
	f.assumed = append(f.assumed, fmt.Sprintf("%s is not there: %#v, the default of transformers", name, v))
	return v
}

// fixed refuses any value of an optional field except want, the only value that the family's code
// computes. The value may be given once, or as a list with an element for each layer.
func (f *fields) fixed(name string, want any) {
	_, raw := f.find(name)
	if raw == nil {
		return
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		list = []json.RawMessage{raw}
	}
	for _, raw := range list {
		var got any
		if err := json.Unmarshal(raw, &got); err != nil {
			f.fail("%s is %s: %v", name, raw, err)
			return
		}
		if got == nil || got == want {
			continue
		}
		text := shown(raw)
		if s, ok := got.(string); ok {
			text = s
		}
		f.fail("%s is %s, must be %#v, which is all that this family's layer computes", name, text, want)
	}
}
