package kernel

import (
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestWrongArguments checks that a wrong name or type of a kernel's argument does
// not compile, neither in the kernel's parameters nor in its launch.
func TestWrongArguments(t *testing.T) {
	compile := compiler(t)
	const declares, launches = `k := jit.NewBuilder[kernel.UpArgs]("k", 384, 1); %s`, `_ = kernel.UpArgs{%s}`
	for _, c := range []struct{ in, text, wrong string }{
		{declares, `k.Ptr(&k.Args.Gather)`, ""},
		{declares, `k.Ptr(&k.Args.Gathr)`, "k.Args.Gathr undefined"},
		{declares, `k.Ptr(&k.Args.Rows)`, "cannot use &k.Args.Rows"},
		{declares, `k.U32(&k.Args.Gather)`, "cannot use &k.Args.Gather"},
		{launches, `Gather: driver.DevicePtr(1), Rows: 3`, ""},
		{launches, `Gathr: driver.DevicePtr(1)`, "unknown field Gathr"},
		{launches, `Gather: 1.5`, "cannot use 1.5"},
		{launches, `Rows: driver.DevicePtr(1)`, "cannot use driver.DevicePtr(1)"},
	} {
		err := compile(fmt.Sprintf(c.in, c.text))
		if c.wrong == "" {
			assert.NoError(t, err, c.text)
		} else {
			assert.ErrorContains(t, err, c.wrong, c.text)
		}
	}
}

// compiler checks a function's body as the Go compiler would. Imported packages come from
// the build cache.
func compiler(t *testing.T) func(body string) error {
	t.Helper()
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go command, which knows where the compiled packages are: ", err)
	}
	list, err := exec.CommandContext(t.Context(), goTool, "list", "-export", "-deps", "-f", "{{.ImportPath}}={{.Export}}", "sonicmoe/moe/internal/kernel").Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		t.Fatalf("go list: %v\n%s", err, exit.Stderr)
	}
	require.NoError(t, err)
	export := map[string]string{}
	for line := range strings.Lines(string(list)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), "=")
		export[path] = file
	}
	set := token.NewFileSet()
	packages := importer.ForCompiler(set, "gc", func(path string) (io.ReadCloser, error) { return os.Open(export[path]) })
	return func(body string) error {
		file, err := parser.ParseFile(set, "planted.go", `package planted
			import ("sonicmoe/driver"; "sonicmoe/jit"; "sonicmoe/moe/internal/kernel")
			var _ driver.DevicePtr
			var _ *jit.Source
			func _() {`+body+`}`, 0)
		if err != nil {
			return err
		}
		config := types.Config{Importer: packages}
		_, err = config.Check("planted", set, []*ast.File{file}, nil)
		return err
	}
}

// TestParametersAreFields checks that every kernel of the library and of the
// examples names its parameters after the fields of its arguments.
func TestParametersAreFields(t *testing.T) {
	named := regexp.MustCompile(`\.Param(Ptr|TensorMap|[USF]\d+)\("`)
	require.True(t, named.MatchString(`k.ParamU32("n")`))
	for _, root := range []string{"../../../moe", "../../../jit", "../../../examples"} {
		require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			assert.Nil(t, named.Find(text), path)
			return err
		}))
	}
}
