package report

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fields lists the JSON paths of the fields of a type, with their kinds.
func fields(t reflect.Type, path string) (list []string) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t == reflect.TypeFor[time.Time]() {
		return []string{path + " " + t.Name()}
	}
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if name == "" {
			name = t.Field(i).Name
		}
		switch of := t.Field(i).Type; {
		case t.Field(i).Anonymous: // the fields of an embedded struct belong to the outer struct
			list = append(list, fields(of, path)...)
		case of == reflect.TypeFor[*Section](): // the fields of a Section are listed only once
			list = append(list, path+"."+name+" Section")
		default:
			list = append(list, fields(of, path+"."+name)...)
		}
	}
	return list
}

// TestSchema compares the fields of a report, which other programs read, with a stored list.
// Removing or renaming a field needs another schema number.
func TestSchema(t *testing.T) {
	got := strings.Join(fields(reflect.TypeFor[Report](), ""), "\n") + "\n"
	want, err := os.ReadFile(filepath.Join("testdata", fmt.Sprintf("schema-%d.txt", Schema)))
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}
