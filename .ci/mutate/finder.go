package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"strings"
)

// sources returns the name of a package and its files for this platform.
func sources(pkg string) (name string, files []string, err error) {
	out, err := exec.Command("go", "list", "-f", `{{.Name}}{{$d := .Dir}}{{range .GoFiles}} {{$d}}/{{.}}{{end}}`, pkg).Output()
	if err != nil {
		return "", nil, fmt.Errorf("go list %s: %w", pkg, err)
	}
	words := strings.Fields(string(out))
	return words[0], words[1:], nil
}

// mutants returns all mistakes that can be planted in the group's packages.
func (g group) mutants() (all []mutant, err error) {
	for _, p := range g.packages {
		_, files, err := sources(p)
		if err != nil {
			return nil, err
		}
		fset := token.NewFileSet()
		var parsed []*ast.File
		for _, f := range files {
			a, err := parser.ParseFile(fset, f, nil, parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			parsed = append(parsed, a)
		}
		info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
		imports, err := exports(fset, p)
		if err != nil {
			return nil, err
		}
		if _, err := (&types.Config{Importer: imports}).Check(p, fset, parsed, info); err != nil {
			return nil, err
		}
		for i, a := range parsed {
			src, err := os.ReadFile(files[i])
			if err != nil {
				return nil, err
			}
			if bytes.HasPrefix(src, []byte("// Code generated")) {
				continue
			}
			f := finder{fset: fset, info: info, pkg: p, file: files[i], src: src}
			f.walk(a)
			all = append(all, f.found...)
		}
	}
	return all, nil
}

// exports returns an importer for the packages that the go command has compiled.
func exports(fset *token.FileSet, pkg string) (types.Importer, error) {
	out, err := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", pkg).Output()
	if err != nil {
		return nil, fmt.Errorf("go list -export %s: %w", pkg, err)
	}
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if path, file, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			files[path] = file
		}
	}
	return importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(files[path]) }), nil
}

// finder collects the mistakes of one file.
type finder struct {
	fset  *token.FileSet
	info  *types.Info
	pkg   string
	file  string
	src   []byte
	path  []ast.Node // the nodes from the file down to the present node
	found []mutant
}

func (f *finder) walk(file *ast.File) {
	ast.Inspect(file, func(n ast.Node) bool {
		if n == nil {
			f.path = f.path[:len(f.path)-1]
			return false
		}
		switch d := n.(type) {
		case *ast.ArrayType, *ast.TypeSpec:
			return false // an expression of constants only
		case *ast.GenDecl:
			if d.Tok == token.CONST {
				return false
			}
		}
		f.path = append(f.path, n)
		f.node(n)
		return true
	})
}

// up returns the ancestor that is a number of levels above the present node.
func (f *finder) up(levels int) ast.Node {
	if i := len(f.path) - 1 - levels; i >= 0 {
		return f.path[i]
	}
	return nil
}

func (f *finder) text(n ast.Node) string {
	return string(f.src[f.fset.Position(n.Pos()).Offset:f.fset.Position(n.End()).Offset])
}

func (f *finder) add(n ast.Node, what string, with func(n int) string) {
	p := f.fset.Position(n.Pos())
	f.found = append(f.found, mutant{f.pkg, f.file, p.Line, p.Offset, f.fset.Position(n.End()).Offset, what, with})
}

var (
	borders = map[token.Token]token.Token{
		token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
		token.EQL: token.NEQ, token.NEQ: token.EQL, token.LAND: token.LOR, token.LOR: token.LAND,
	}
	sums = map[token.Token]token.Token{token.ADD: token.SUB, token.SUB: token.ADD, token.MUL: token.ADD}
)

func (f *finder) node(n ast.Node) {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		f.binary(n)
	case *ast.BasicLit:
		f.number(n)
	case *ast.IfStmt:
		cond := f.text(n.Cond)
		f.add(n.Cond, "if !("+cond+")", func(i int) string { return fmt.Sprintf("mutantOn_(%d) != (%s)", i, cond) })
	case *ast.ExprStmt, *ast.IncDecStmt, *ast.AssignStmt, *ast.ReturnStmt:
		f.statement(n)
	}
}

func (f *finder) binary(n *ast.BinaryExpr) {
	if f.info.Types[n].Value != nil {
		return
	}
	a, b := f.text(n.X), f.text(n.Y)
	if to, ok := borders[n.Op]; ok {
		good, bad := a+" "+n.Op.String()+" "+b, a+" "+to.String()+" "+b
		f.add(n, good+" -> "+to.String(), func(i int) string {
			return fmt.Sprintf("(mutantOn_(%d) && (%s) || !mutantOn_(%d) && (%s))", i, bad, i, good)
		})
	}
	if to, ok := sums[n.Op]; ok && integer(f.info.TypeOf(n)) && f.pure(n) {
		good, bad := a+" "+n.Op.String()+" "+b, "("+a+") "+to.String()+" ("+b+")"
		f.add(n, good+" -> "+to.String(), func(i int) string { return fmt.Sprintf("mutantPick_(%d, %s, %s)", i, good, bad) })
	}
}

// number adds the mistake that an integer literal is larger by one. It leaves out places where
// the language demands a constant.
func (f *finder) number(n *ast.BasicLit) {
	t, _ := f.info.TypeOf(n).(*types.Basic)
	if n.Kind != token.INT || t == nil || t.Info()&types.IsInteger == 0 || t.Info()&types.IsUntyped != 0 {
		return
	}
	switch parent := f.up(1).(type) {
	case *ast.KeyValueExpr:
		if parent.Key == n {
			return
		}
	case *ast.CaseClause:
		return
	case *ast.BinaryExpr:
		if f.info.Types[parent].Value != nil || parent.Op == token.SHL || parent.Op == token.SHR {
			return
		}
	case *ast.UnaryExpr, *ast.ParenExpr:
		return
	}
	lit := n.Value
	f.add(n, lit+" -> "+lit+"+1", func(i int) string { return fmt.Sprintf("mutantPick_[%s](%d, %s, %s+1)", t.Name(), i, lit, lit) })
}

func integer(t types.Type) bool {
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Info()&types.IsInteger != 0 && b.Info()&types.IsUntyped == 0
}

// pure reports whether evaluating an expression a second time has no effect.
func (f *finder) pure(e ast.Expr) bool {
	pure := true
	ast.Inspect(e, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			pure = pure && f.info.Types[n.Fun].IsType()
		case *ast.FuncLit:
			pure = false
		case *ast.UnaryExpr:
			pure = pure && n.Op != token.ARROW
		}
		return pure
	})
	return pure
}

// statement adds the mistake that a statement is missing. The statement is a call, a plain
// assignment or an early return.
func (f *finder) statement(n ast.Node) {
	block, ok := f.up(1).(*ast.BlockStmt)
	if _, clause := f.up(1).(*ast.CaseClause); !ok && !clause {
		return
	}
	switch n := n.(type) {
	case *ast.ExprStmt:
		if call, ok := n.X.(*ast.CallExpr); !ok || f.text(call.Fun) == "panic" {
			return
		}
	case *ast.AssignStmt:
		if n.Tok == token.DEFINE || f.text(n.Lhs[0]) == "_" {
			return
		}
	case *ast.ReturnStmt:
		outer, ok := f.up(2).(*ast.IfStmt)
		if !ok || outer.Else != nil || outer.Body != block {
			return
		}
	}
	text := f.text(n)
	first, _, _ := strings.Cut(text, "\n")
	f.add(n, "without "+first, func(i int) string { return fmt.Sprintf("if !mutantOn_(%d) {\n%s\n}", i, text) })
}
