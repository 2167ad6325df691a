package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

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

// chosenMutant is the file that each package gets. It reads the number of the mistake that is turned
// on, and has the functions that the changed code calls. It is a format of the package's name and
// of the variable with the number.
const chosenMutant = `package %s

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
`

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
		text := fmt.Sprintf(chosenMutant, name, variable)
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
