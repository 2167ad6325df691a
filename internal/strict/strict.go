// Package strict reads JSON files that people or other programs write. It refuses texts that
// different JSON readers understand in different ways.
package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
)

// Decode reads one JSON value into the variable that to points to. An object with a field that
// to does not have is an error. A field that occurs twice in an object and text after the value
// are errors, too.
func Decode(data []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return err
	}
	end := d.InputOffset()
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("text after the end of the JSON, after byte %d", end)
	}
	return twice(data, reflect.TypeOf(to))
}

// Unmarshal is json.Unmarshal, except that a field that occurs twice in an object is an error.
func Unmarshal(data []byte, to any) error {
	if err := json.Unmarshal(data, to); err != nil {
		return err
	}
	return twice(data, reflect.TypeOf(to))
}

// Doubled returns the path of a field that occurs twice in an object, such as
// "text_config.num_experts", or "" if there is none. data must be valid JSON. Names that differ
// only in capital letters count as two fields.
func Doubled(data []byte) string {
	return doubled{json.NewDecoder(bytes.NewReader(data))}.in(nil)
}

func twice(data []byte, t reflect.Type) error {
	if name := (doubled{json.NewDecoder(bytes.NewReader(data))}).in(t); name != "" {
		return fmt.Errorf("the field %s stands twice, must stand once", name)
	}
	return nil
}

// doubled searches a JSON text for fields that occur twice in an object.
type doubled struct{ *json.Decoder }

// in returns the path of a field that occurs twice in an object of the next value, or "" if
// there is none. t is the type of the variable in which the value is stored, or nil if it is
// not known.
func (d doubled) in(t reflect.Type) string {
	t = plain(t)
	start, _ := d.Token()
	switch start {
	case json.Delim('{'):
		return d.inObject(t)
	case json.Delim('['):
		for d.More() {
			if name := d.in(element(t)); name != "" {
				return name
			}
		}
		_, _ = d.Token() // the closing bracket
	}
	return ""
}

func (d doubled) inObject(t reflect.Type) string {
	seen := map[string]bool{}
	for d.More() {
		token, _ := d.Token()
		name := fmt.Sprint(token)
		one, of := name, element(t)
		if f := field(t, name); f != nil { // a name that differs only in capital letters is the same field
			one, of = f.Name, f.Type
		}
		if seen[one] {
			return name
		}
		seen[one] = true
		if inner := d.in(of); inner != "" {
			return name + "." + inner
		}
	}
	_, _ = d.Token() // the closing brace
	return ""
}

// plain returns the type to which pointers lead. It returns nil if that type has its own JSON
// decoder.
func plain(t reflect.Type) reflect.Type {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t != nil && reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return nil
	}
	return t
}

// element returns the type of the elements of a list or a map, or nil.
func element(t reflect.Type) reflect.Type {
	if t != nil && slices.Contains([]reflect.Kind{reflect.Map, reflect.Slice, reflect.Array}, t.Kind()) {
		return t.Elem()
	}
	return nil
}

// field returns the field of a struct in which package json stores a name, or nil if there is
// none.
func field(t reflect.Type, name string) *reflect.StructField {
	if t == nil || t.Kind() != reflect.Struct {
		return nil
	}
	for i := range t.NumField() {
		f := t.Field(i)
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == "" {
			tag = f.Name
		}
		if f.IsExported() && strings.EqualFold(tag, name) {
			return &f
		}
	}
	return nil
}
