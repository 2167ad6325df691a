package moe_test

import (
	"bytes"
	"flag"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var updateAPI = flag.Bool("update-api", false, "write testdata/api.txt anew")

// promised lists the packages whose names v1 keeps. driver/cuda and driver/emulated are not
// promised: driver/open finds their devices, and their options are for diagnosis and for kernel
// authors.
var promised = []string{"moe", "moe/checkpoint", "moe/checkpoint/safetensors", "moe/checkpoint/weights", "moe/tune", "driver", "driver/open", "cache"}

// module is the module's path. specs is the package whose types moe re-exports as
// aliases.
const module, specs = "sonicmoe", "internal/spec"

// maxNames is the largest number of top-level names that the promised packages may export together.
const maxNames = 100

// TestAPI checks that the promised packages export exactly the names in testdata/api.txt, at most
// maxNames names, and no type of a package that is not promised.
func TestAPI(t *testing.T) {
	var lines []string
	names, foreign, own := 0, map[string][]string{}, map[string]bool{}
	for _, p := range promised {
		e := exports{pkg: p, foreign: foreign, specs: map[string]bool{}}
		e.list(t)
		lines = append(lines, e.lines...)
		names += e.names
		maps.Copy(own, e.specs)
	}
	for name := range own {
		delete(foreign, module+"/"+specs+"."+name)
	}
	if names > maxNames {
		t.Errorf("%d top-level names are promised, must be at most %d", names, maxNames)
	}
	for _, name := range slices.Sorted(maps.Keys(foreign)) {
		t.Errorf("%s is of a package that is not promised, in: %s", name, strings.Join(foreign[name], "; "))
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

// exports collects the exported names of one promised package, on every system.
type exports struct {
	pkg   string
	fset  *token.FileSet
	lines []string // one line for each name: its kind and its type
	names int      // number of constants, variables, functions and types
	// foreign maps a type's name to the lines with the type, for types that are neither in a
	// promised package nor in the standard library.
	foreign map[string][]string
	imports map[string]string // imports of the file that folder reads; "" is the file's own package
	// specs are the types of internal/spec for which the package has aliases.
	specs map[string]bool
}

// list collects the exported names of the package. For aliases of types of internal/spec it
// collects the types' fields and methods.
func (e *exports) list(t *testing.T) {
	e.fset = token.NewFileSet()
	e.folder(t, e.pkg, ast.IsExported)
	e.folder(t, specs, func(name string) bool { return e.specs[name] })
	slices.Sort(e.lines)
	e.lines = slices.Compact(e.lines)
	for _, line := range e.lines {
		switch strings.Fields(line)[1] {
		case "const", "var", "func", "type":
			e.names++
		}
	}
}

// folder collects the wanted types of a folder, and every other exported name if
// the folder is the promised package itself.
func (e *exports) folder(t *testing.T, pkg string, wanted func(name string) bool) {
	files, err := filepath.Glob(filepath.Join("..", filepath.FromSlash(pkg), "*.go"))
	require.NoError(t, err)
	require.NotEmpty(t, files, pkg)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(e.fset, name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		e.imports = importNames(file)
		e.imports[""] = module + "/" + pkg
		ast.FileExports(file)
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil && pkg == e.pkg {
					e.add(t, "func", d.Name.Name, d.Type)
				} else if d.Recv != nil {
					if of := receiver(d.Recv.List[0].Type); wanted(of) {
						e.add(t, "method", of+"."+d.Name.Name, d.Type)
					}
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.ValueSpec:
						for _, n := range s.Names {
							if n.IsExported() && pkg == e.pkg {
								e.add(t, d.Tok.String(), n.Name)
							}
						}
					case *ast.TypeSpec:
						if wanted(s.Name.Name) {
							e.typeSpec(t, s)
						}
					}
				}
			}
		}
	}
}

func (e *exports) typeSpec(t *testing.T, s *ast.TypeSpec) {
	name := s.Name.Name
	struc, isStruct := s.Type.(*ast.StructType)
	if of, ok := s.Type.(*ast.SelectorExpr); ok && s.Assign.IsValid() && e.imports[of.X.(*ast.Ident).Name] == module+"/"+specs && of.Sel.Name == name {
		e.specs[name] = true // listed with its fields and methods in internal/spec
		return
	}
	switch {
	case s.Assign.IsValid():
		e.add(t, "type", name, "=", s.Type)
	case !isStruct:
		e.add(t, "type", name, s.Type)
	default:
		e.add(t, "type", name, "struct")
		for _, f := range struc.Fields.List {
			for _, n := range f.Names {
				e.add(t, "field", name+"."+n.Name, f.Type)
			}
			if len(f.Names) == 0 {
				e.add(t, "embedded", name, f.Type)
			}
		}
	}
}

// add adds a line. Its words are strings and syntax.
func (e *exports) add(t *testing.T, words ...any) {
	var b bytes.Buffer
	b.WriteString(e.pkg + ":")
	var foreign []string
	for _, w := range words {
		b.WriteByte(' ')
		if s, ok := w.(string); ok {
			b.WriteString(s)
			continue
		}
		require.NoError(t, printer.Fprint(&b, e.fset, w))
		foreign = append(foreign, foreignTypes(w.(ast.Node), e.imports)...)
	}
	line := strings.Join(strings.Fields(b.String()), " ")
	e.lines = append(e.lines, line)
	for _, name := range foreign {
		e.foreign[name] = append(e.foreign[name], line)
	}
}

// importNames returns the path of each import by its name in the file.
func importNames(file *ast.File) map[string]string {
	names := map[string]string{}
	for _, i := range file.Imports {
		path := strings.Trim(i.Path.Value, `"`)
		name := path[strings.LastIndexByte(path, '/')+1:]
		if i.Name != nil {
			name = i.Name.Name
		}
		names[name] = path
	}
	return names
}

// foreignTypes returns the types in a signature that are neither in a promised
// package nor in the standard library.
func foreignTypes(signature ast.Node, imports map[string]string) (types []string) {
	ast.Inspect(signature, func(n ast.Node) bool {
		pkg, name := "", ""
		switch n := n.(type) {
		case *ast.SelectorExpr:
			pkg, name = n.X.(*ast.Ident).Name, n.Sel.Name
		case *ast.Ident:
			name = n.Name
		default:
			return true
		}
		path := imports[pkg]
		root, ours, _ := strings.Cut(path, "/")
		if ast.IsExported(name) && (root == module && !slices.Contains(promised, ours) || root != module && strings.Contains(root, ".")) {
			types = append(types, path+"."+name)
		}
		return false
	})
	return types
}

// receiver returns the name of a method's type.
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
