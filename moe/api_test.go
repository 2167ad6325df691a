package moe_test

import (
	"bytes"
	"flag"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var updateAPI = flag.Bool("update-api", false, "write testdata/api.txt anew")

// promised are the packages whose names v1 is to keep.
var promised = []string{"moe", "moe/num", "moe/checkpoint", "moe/tune", "driver", "driver/open", "driver/cuda", "driver/emulated", "cache"}

// What the promised packages export is what testdata/api.txt says: no name comes,
// goes or changes unseen.
func TestAPI(t *testing.T) {
	var lines []string
	for _, p := range promised {
		lines = append(lines, exported(t, p)...)
	}
	got := strings.Join(lines, "\n") + "\n"
	file := filepath.Join("testdata", "api.txt")
	if *updateAPI {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o600))
	}
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	want := strings.Split(strings.TrimSpace(string(text)), "\n")
	for _, line := range lines {
		if !slices.Contains(want, line) {
			t.Errorf("new or changed: %s", line)
		}
	}
	for _, line := range want {
		if !slices.Contains(lines, line) {
			t.Errorf("gone or changed: %s", line)
		}
	}
	if t.Failed() {
		t.Log("if that is meant: go test ./moe -run TestAPI -update-api, and a line in CHANGELOG.md")
	}
}

// exported are a package's exported names, on whatever system, each with what it
// is: one line each.
func exported(t *testing.T, pkg string) (lines []string) {
	files, err := filepath.Glob(filepath.Join("..", filepath.FromSlash(pkg), "*.go"))
	require.NoError(t, err)
	require.NotEmpty(t, files, pkg)
	fset := token.NewFileSet()
	add := func(words ...any) {
		var b bytes.Buffer
		b.WriteString(pkg + ":")
		for _, w := range words {
			b.WriteByte(' ')
			if s, ok := w.(string); ok {
				b.WriteString(s)
			} else {
				require.NoError(t, printer.Fprint(&b, fset, w))
			}
		}
		lines = append(lines, strings.Join(strings.Fields(b.String()), " "))
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.FileExports(file)
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil {
					add("func", d.Name.Name, d.Type)
				} else if of := receiver(d.Recv.List[0].Type); ast.IsExported(of) {
					add("method", of+"."+d.Name.Name, d.Type)
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.ValueSpec:
						for _, n := range s.Names {
							if n.IsExported() {
								add(d.Tok.String(), n.Name)
							}
						}
					case *ast.TypeSpec:
						struc, ok := s.Type.(*ast.StructType)
						if s.Assign.IsValid() {
							add("type", s.Name.Name, "=", s.Type)
							continue
						}
						if !ok {
							add("type", s.Name.Name, s.Type)
							continue
						}
						add("type", s.Name.Name, "struct")
						for _, f := range struc.Fields.List {
							for _, n := range f.Names {
								add("field", s.Name.Name+"."+n.Name, f.Type)
							}
							if len(f.Names) == 0 {
								add("embedded", s.Name.Name, f.Type)
							}
						}
					}
				}
			}
		}
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}

// receiver is the name of a method's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
