// Command mutate measures how many mistakes the tests find. It plants mistakes in the packages
// whose bugs would cost most, runs the tests with one mistake at a time, and counts the
// mistakes that make a test fail.
//
//	go run .ci/mutate.go [-n 25] [-seed 1] [-only cache,jit] [-at jit/kernel.go:167] [-list]
//
// Known tools (gremlins, go-mutesting) build the tests anew for each mistake. This program
// builds all mistakes of a package into one test binary. Each mistake has a switch that an
// environment variable turns on, so that a mistake costs only one run of the binary.
//
// The mistakes are: a comparison whose bound is moved by one or whose direction is reversed, &&
// instead of ||, a negated condition, a missing statement or early return, + instead of -, *
// instead of +, and a number that is larger by one. A test run that exceeds its time limit
// counts as a found mistake.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// group is a set of packages in which mistakes are planted, with the tests that must find them.
// These are first the quick tests of the mistake's own package, if it has tests, and then the
// tests of suites.
type group struct {
	packages []string
	suites   []suite
}

// suite is a part of a package's tests. It must not contain tests that compare a digest of the
// kernels' text or of the outputs' bits, or that read the sources. Such tests notice every
// change, also one that is no mistake.
type suite struct {
	of   string // the package
	run  string // value of -test.run
	skip string // value of -test.skip: long tests that find few mistakes
}

const digests = "TestPTX|TestGolden|TestAssemble|TestReading|TestNewProductIsOneRow"

var groups = []group{
	{packages: []string{"./cache", "./internal/disk"}, suites: []suite{{of: "./cache"}}},
	{packages: []string{"./driver/cuda"}},
	{packages: []string{"./jit"}},
	{packages: []string{"./ptx/emu"}},
	{packages: []string{"./moe/internal/kernel", "./moe/internal/kernel/bias", "./moe/internal/kernel/dh", "./moe/internal/kernel/dw", "./moe/internal/kernel/drouter"}, suites: []suite{
		{of: "./moe", run: "TestBackwardSmall|TestForwardSmall|TestKindsOfExperts|TestLists|TestRoundedLayer|TestPackedForward|TestEstimateMatchesLayer"}}},
	{packages: []string{"./moe/internal/kernel/decode", "./moe/internal/fragments"}, suites: []suite{
		{of: "./moe", run: "TestSmallBatchBits|TestDecode|TestBatchInvariance|TestPackedForward|TestRoutingKindsInSmallBatches"}}},
	{packages: []string{"./moe/internal/route/choose", "./moe/internal/route/order", "./moe/internal/route/rounding", "./moe/internal/route/scores", "./moe/internal/route/training"}, suites: []suite{
		{of: "./moe", run: "TestRout|TestLists|TestRounded|TestSmallBatchBits|TestLogits|TestLoads|TestSelection|TestBackwardSmall|TestWrong"}}},
	{packages: []string{"./moe/checkpoint", "./moe/checkpoint/safetensors", "./moe/checkpoint/weights"}, suites: []suite{
		{of: "./examples/layer"}}},
	{packages: []string{"./internal/packed", "./moe/internal/fragments", "./moe/checkpoint/weights"}, suites: []suite{
		{of: "./moe", run: "TestPacked"}, {of: "./examples/layer", run: "Packed|Model"}}},
	{packages: []string{"./moe/parallel", "./moe/internal/exchange", "./moe/parallel/nccl"}, suites: []suite{{of: "./moe/parallel"}}},
	{packages: []string{"./examples/serve"}},
	{packages: []string{"./autotune", "./moe/tune"}, suites: []suite{{of: "./moe/tune"}}},
	{packages: []string{"./moe"}, suites: []suite{
		{of: "./moe", skip: "TestKindsOfExperts|TestSizes|EveryStep|TestWarmWith|TestDamaged|TestSixteen|TestKilled|TestBitFlips|TestBitsOf|TestRoutingKinds|TestStart|Timings"}}},
}

// variable is the environment variable that holds the number of the mistake to turn on.
const variable = "SONICMOE_MUTANT"

// mutant is one mistake: a range of a file, and the text that replaces it.
type mutant struct {
	pkg        string
	file       string
	line       int
	begin, end int // byte offsets
	what       string
	// with returns the replacement text. In it the mistake happens only if the switch numbered
	// n is on.
	with func(n int) string
}

func main() {
	n := flag.Int("n", 25, "mistakes of each group")
	seed := flag.Uint64("seed", 1, "of the sample")
	only := flag.String("only", "", "groups, by the first package without ./, with commas")
	at := flag.String("at", "", "of the sample, the mistakes in these lines, with commas")
	list := flag.Bool("list", false, "list the mistakes, run nothing")
	flag.Parse()
	if err := mutate(*n, *seed, *only, *at, *list); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

func mutate(n int, seed uint64, only, at string, list bool) error {
	dir, err := os.MkdirTemp("", "mutate-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	killed, total := 0, 0
	for _, g := range groups {
		if only != "" && !slices.Contains(strings.Split(only, ","), g.packages[0][2:]) {
			continue
		}
		all, err := g.mutants()
		if err != nil {
			return err
		}
		chosen := sample(rand.New(rand.NewPCG(seed, uint64(len(all)))), all, n)
		if at != "" {
			lines := strings.Split(at, ",")
			chosen = slices.DeleteFunc(chosen, func(m mutant) bool { return !slices.Contains(lines, m.place()) })
		}
		fmt.Printf("%s: %d of %d mistakes\n", strings.Join(g.packages, " "), len(chosen), len(all))
		if list {
			for _, m := range chosen {
				fmt.Println("  ", m)
			}
			continue
		}
		k, err := g.try(dir, chosen)
		if err != nil {
			return err
		}
		killed, total = killed+k, total+len(chosen)
		fmt.Printf("  %d of %d noticed\n", k, len(chosen))
	}
	if total > 0 {
		fmt.Printf("%d of %d noticed (%d %%)\n", killed, total, 100*killed/total)
	}
	return nil
}

// String returns the place and the mistake, such as "jit/kernel.go:167: 1 -> 1+1".
func (m mutant) String() string { return m.place() + ": " + m.what }

// place returns the file and the line, such as "jit/kernel.go:167".
func (m mutant) place() string {
	file := m.file
	if wd, err := os.Getwd(); err == nil {
		file = strings.TrimPrefix(file, wd+string(filepath.Separator))
	}
	return fmt.Sprintf("%s:%d", file, m.line)
}

// sample returns n random mistakes that do not overlap, in the order of the files.
func sample(rng *rand.Rand, all []mutant, n int) []mutant {
	var out []mutant
	for _, i := range rng.Perm(len(all)) {
		m := all[i]
		if len(out) == n {
			break
		}
		if !slices.ContainsFunc(out, func(o mutant) bool { return o.file == m.file && o.begin < m.end && m.begin < o.end }) {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b mutant) int { return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.begin, b.begin)) })
	return out
}

// try builds the group's tests with all chosen mistakes. For each mistake it runs the tests
// until one fails.
func (g group) try(dir string, chosen []mutant) (killed int, err error) {
	overlay, err := g.overlay(dir, chosen)
	if err != nil {
		return 0, err
	}
	var programs []*program
	for _, p := range g.packages {
		programs = append(programs, &program{suite: suite{of: p}, own: p})
	}
	for _, s := range g.suites {
		programs = append(programs, &program{suite: s})
	}
	for i, p := range programs {
		p.file = filepath.Join(dir, fmt.Sprint("tests", i))
		if err := p.build(overlay); err != nil {
			return 0, err
		}
		begun := time.Now()
		if out, err := p.runTests(-1, 20*time.Minute); err != nil {
			return 0, fmt.Errorf("without a mistake the tests of %s fail: %w\n%s", p.of, err, out)
		}
		p.limit = 5*time.Since(begun) + 20*time.Second
	}
	for i, m := range chosen {
		if !slices.ContainsFunc(programs, func(p *program) bool { return p.notices(i, m) }) {
			fmt.Println("  survived:", m)
			continue
		}
		killed++
	}
	return killed, nil
}

// program is the compiled tests of a suite.
type program struct {
	suite
	own   string // if not "", the program is only for mistakes in this package
	file  string // "" if the package has no tests
	limit time.Duration
}

func (p *program) build(overlay string) error {
	build := exec.Command("go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", p.file, p.of)
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("building: %w\n%s", err, out)
	}
	if _, err := os.Stat(p.file); err != nil {
		p.file = ""
	}
	return nil
}

// notices reports whether a test fails when the mistake numbered i is turned on.
func (p *program) notices(i int, m mutant) bool {
	if p.own != "" && p.own != m.pkg {
		return false
	}
	_, err := p.runTests(i, p.limit)
	return err != nil
}

func (p *program) runTests(n int, limit time.Duration) ([]byte, error) {
	if p.file == "" {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	skip := digests
	if p.skip != "" {
		skip += "|" + p.skip
	}
	c := exec.CommandContext(ctx, p.file, "-test.short", "-test.failfast", "-test.run", p.run, "-test.skip", skip)
	c.Dir = p.of
	c.Env = append(os.Environ(), fmt.Sprintf("%s=%d", variable, n))
	c.WaitDelay = time.Second
	return c.CombinedOutput()
}

// overlay writes the changed files, and a JSON file for the go command's flag -overlay. It
// returns the name of the JSON file.
func (g group) overlay(dir string, chosen []mutant) (string, error) {
	replace := map[string]string{}
	add := func(path, text string) error {
		to := filepath.Join(dir, fmt.Sprint(len(replace), ".go"))
		replace[path] = to
		return os.WriteFile(to, []byte(text), 0o600)
	}
	for i := 0; i < len(chosen); {
		file := chosen[i].file
		src, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		var b strings.Builder
		at := 0
		for ; i < len(chosen) && chosen[i].file == file; i++ {
			b.Write(src[at:chosen[i].begin])
			b.WriteString(chosen[i].with(i))
			at = chosen[i].end
		}
		b.Write(src[at:])
		if err := add(file, b.String()); err != nil {
			return "", err
		}
	}
	for _, p := range g.packages {
		name, files, err := sources(p)
		if err != nil {
			return "", err
		}
		text := fmt.Sprintf(`package %s

import "os"

var mutant_ = func() (n int) {
	n = -1
	if s := os.Getenv(%q); s != "" && s != "-1" {
		n = 0
		for _, c := range s {
			n = 10*n + int(c-'0')
		}
	}
	return n
}()

func mutantOn_(n int) bool { return n == mutant_ }

func mutantPick_[T any](n int, a, b T) T {
	if n == mutant_ {
		return b
	}
	return a
}
`, name, variable)
		if err := add(filepath.Join(filepath.Dir(files[0]), "zmutant.go"), text); err != nil {
			return "", err
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, text, 0o600)
}

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
