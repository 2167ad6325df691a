//go:build unix

package attack

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// briefly has the programs of short runs. They share their readers with the others.
var briefly = []string{"./layer", "./warmup", "./tune"}

// commands builds the programs that take flags, in short runs those of briefly, once for all
// tests, and returns their folder.
var commands = sync.OnceValues(func() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "sonicmoe-attack"); err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", dir)
	build.Dir = filepath.Join("..", "..", "examples")
	if testing.Short() {
		build.Args = append(build.Args, briefly...)
	} else {
		packages, err := takingFlags(build.Dir)
		if err != nil {
			return dir, err
		}
		build.Args = append(build.Args, packages...)
	}
	if out, err := build.CombinedOutput(); err != nil {
		return dir, fmt.Errorf("%w: %s", err, out)
	}
	return dir, nil
})

// takingFlags lists the programs below a folder that take flags.
func takingFlags(dir string) ([]string, error) {
	const flags = `{{if eq .Name "main"}}{{range .Imports}}{{if eq . "sonicmoe/examples/internal/command"}}{{$.ImportPath}}{{end}}{{end}}{{end}}`
	list := exec.Command("go", "list", "-f", flags, "./...")
	list.Dir = dir
	packages, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("%v: %w", list, err)
	}
	return strings.Fields(string(packages)), nil
}

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, _ := commands(); dir != "" {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// refuses runs a program in dir with 6 GB of address space. The program must end by itself
// within the limit, without a panic. It must fail with an error that contains want, or succeed
// if want is "".
func refuses(t *testing.T, dir string, limit time.Duration, want string, args ...string) {
	t.Helper()
	bin, err := commands()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", `ulimit -v 6291456; exec "$0" "$@"`, filepath.Join(bin, args[0])}, args[1:]...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "SONICMOE_CACHE="+filepath.Join(dir, "cache"))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	text := out.String()
	require.NoError(t, ctx.Err(), "%v: still there after %s: %s", args, limit, text)
	for _, word := range []string{"panic", "goroutine ", "fatal error", "out of memory"} {
		require.NotContains(t, text, word, "%v", args)
	}
	if want == "" {
		require.NoError(t, err, text)
		return
	}
	assert.ErrorContains(t, err, "exit status", "%v: %s", args, text)
	for line := range strings.Lines(text) {
		assert.LessOrEqual(t, len(line), 1000, "a long line of an error")
	}
	assert.Contains(t, text, want)
}
