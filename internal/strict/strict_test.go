package strict_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"sonicmoe/internal/strict"
)

// file has fields of every type that files read by this module have.
type file struct {
	Name  string
	Size  int `json:"size"`
	Parts []struct{ Kind string }
	By    map[string]struct{ N *int }
	Point *struct{ X int }
	Raw   json.RawMessage
	Any   any
}

func TestDecode(t *testing.T) {
	for text, want := range map[string]string{
		`{"name":"a","size":1,"parts":[{"kind":"a"},{"kind":"b"}],"by":{"a":{"n":1},"A":{"n":1}},"point":{"x":1},"raw":{"k":1,"K":2},"any":{"k":1,"K":2}}`: "",
		`{"size":1,"size":1}`:                              "the field size stands twice",
		`{"size":1,"\u0073ize":2}`:                         "the field size stands twice",
		`{"size":1,"SIZE":2}`:                              "the field SIZE stands twice",
		`{"Name":"a","name":"b"}`:                          "the field name stands twice",
		`{"parts":[{"kind":"a"},{"kind":"b","kind":"c"}]}`: "the field parts.kind stands twice",
		`{"by":{"a":{"n":1},"b":{},"a":{"n":1}}}`:          "the field by.a stands twice",
		`{"by":{"a":{"n":1,"N":2}}}`:                       "the field by.a.N stands twice",
		`{"point":{"x":1,"X":2}}`:                          "the field point.X stands twice",
		`{"raw":{"k":{"l":1,"l":2}}}`:                      "the field raw.k.l stands twice",
		`{"any":[[{"k":1,"k":2}]]}`:                        "the field any.k stands twice",
		`{"sise":1}`:                                       `unknown field "sise"`,
		`{} {}`:                                            "text after the end of the JSON, after byte 2",
		`{}x`:                                              "text after the end of the JSON",
		`{`:                                                "unexpected EOF",
		``:                                                 "EOF",
	} {
		err := strict.Decode([]byte(text), new(file))
		if want == "" {
			assert.NoError(t, err, text)
			continue
		}
		assert.ErrorContains(t, err, want, text)
	}
}

// TestUnmarshal reads a text with fields that the variable does not have, which Unmarshal must
// skip.
func TestUnmarshal(t *testing.T) {
	var f file
	assert.NoError(t, strict.Unmarshal([]byte(`{"new":{"a":1},"size":3}`), &f))
	assert.Equal(t, 3, f.Size)
	assert.ErrorContains(t, strict.Unmarshal([]byte(`{"new":{"a":1,"a":1},"size":3}`), &f), "the field new.a stands twice")
	assert.ErrorContains(t, strict.Unmarshal([]byte(`{"size":3,"Size":3}`), &f), "the field Size stands twice")
	assert.ErrorContains(t, strict.Unmarshal([]byte(`{"size":"3"}`), &f), "cannot unmarshal string")
}

func TestDoubled(t *testing.T) {
	for text, want := range map[string]string{
		`{"a":1,"b":{"a":1},"A":[{"a":1},{"a":1}]}`: "",
		`[1,{"a":[{"b":1,"b":1}]}]`:                 "a.b",
		`{"a":null,"a":null}`:                       "a",
		`3`:                                         "",
		strings.Repeat(`{"a":`, 9000) + "1" + strings.Repeat("}", 9000): "",
	} {
		assert.Equal(t, want, strict.Doubled([]byte(text)), "%.40s", text)
	}
}
