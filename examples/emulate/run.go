package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"sonicmoe/examples/emulate/internal/options"
	"sonicmoe/examples/internal/command"
	"sonicmoe/internal/disk"
	"sonicmoe/ptx/emu"
)

// libraryName is the usual name of package cudart's library.
const libraryName = "libcudart-emulated.so"

// replaced are the names under which programs look for CUDA's libraries.
var replaced = []string{"libcudart.so.12", "libcudart.so.13", "libcuda.so.1"}

var aboutRun = command.Program{Name: "emulate run", Purpose: "runs a CUDA program on the emulator. Flags come before the program, and the program's arguments after it."}

// maxFindings is the largest size of the list of findings of a program, in bytes.
const maxFindings = 64 << 20

// runProgram runs a CUDA program with package cudart in the place of CUDA's libraries.
func runProgram(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var o options.Run
	flags := aboutRun.Flags()
	library := flags.String("library", "", "the shared library of package cudart; the default is "+libraryName+" next to this program or in the working directory")
	flags.IntVar(&o.Check, "check", 0, "`number` of random orders in which each launch runs, in addition to the earliest and the latest; 0 runs it once")
	flags.IntVar(&o.Explore, "explore", 0, "instead, run each launch systematically in this `number` of orders")
	flags.BoolVar(&o.Races, "races", false, "look for races in the one run of each launch")
	flags.BoolVar(&o.Stop, "stop", false, "end a launch at its first finding; without it the program goes on after races, missing proxy fences and uninitialised reads, as on a GPU")
	flags.BoolVar(&o.Strict, "strict", false, "also demand proxy fences after cp.async")
	flags.BoolVar(&o.NaN, "nan", false, "note the first NaN or infinity that each cluster makes")
	flags.Uint64Var(&o.Seed, "seed", 0, "`seed` of the first random order")
	flags.IntVar(&o.SMs, "sms", options.DefaultSMs, "`number` of multiprocessors that the device has")
	knownFile := flags.String("known", "", "`file` of findings not to report, one \"LINE RULE\" a line")
	format := flags.String("format", "text", "`format` of findings: text, json or sarif. The last two are written after the program's output")
	fail := flags.String("fail", "strict", "least `severity` of a finding that sets exit status 1: error, strict or note")
	words, err := aboutRun.ParseLeading(flags, args, stdout)
	switch {
	case err != nil:
		return err
	case len(words) == 0:
		return command.Usagef("run needs a program")
	case o.Check < 0 || o.Explore < 0 || o.Check > 0 && o.Explore > 0 || o.SMs < 1:
		return command.Usagef("-check is %d, -explore %d and -sms %d, must be 0 or more, not both above 0, and above 0", o.Check, o.Explore, o.SMs)
	case *format != "text" && *format != "json" && *format != "sarif":
		return command.Usagef("-format is %q, must be text, json or sarif", *format)
	}
	fails, err := severityOf(*fail)
	if err != nil {
		return err
	}
	var listed known
	if *knownFile != "" {
		lines, err := command.ReadText(ctx, *knownFile)
		if err != nil {
			return err
		}
		if listed, err = readKnown(lines); err != nil {
			return err
		}
	}
	folder, err := os.MkdirTemp("", "emulate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	file, err := link(folder, *library)
	if err != nil {
		return err
	}
	o.Findings, o.Quiet = filepath.Join(folder, "findings"), *format != "text"
	program := exec.CommandContext(ctx, words[0], words[1:]...)
	program.Stdin, program.Stdout, program.Stderr = os.Stdin, stdout, stderr
	program.Env = append(os.Environ(), options.Variable+"="+o.Text(), "LD_PRELOAD="+file,
		"LD_LIBRARY_PATH="+folder+string(os.PathListSeparator)+os.Getenv("LD_LIBRARY_PATH"))
	ended := program.Run()
	var exited *exec.ExitError
	if ended != nil && !errors.As(ended, &exited) {
		return ended
	}
	found, err := readFindings(ctx, o.Findings)
	if err != nil {
		return err
	}
	if err := listed.outcome(stdout, *format, fails, found); err != nil {
		return err
	}
	if exited != nil && exited.ExitCode() > 0 {
		return command.Status(exited.ExitCode())
	}
	return ended
}

// link puts links to the library in a folder, under the names of CUDA's libraries. It returns the
// library's absolute path.
func link(folder, library string) (file string, err error) {
	candidates := []string{library}
	if library == "" {
		candidates = []string{libraryName}
		if own, err := os.Executable(); err == nil {
			candidates = append([]string{filepath.Join(filepath.Dir(own), libraryName)}, candidates...)
		}
	}
	for _, c := range candidates {
		if _, err = os.Stat(c); err == nil {
			if file, err = filepath.Abs(c); err != nil {
				return "", err
			}
			break
		}
	}
	if file == "" {
		return "", fmt.Errorf("%w; build it with: go build -buildmode=c-shared -o %s ./examples/emulate/cudart", err, libraryName)
	}
	for _, name := range replaced {
		if err := os.Symlink(file, filepath.Join(folder, name)); err != nil {
			return "", err
		}
	}
	return file, nil
}

// readFindings reads the findings that the library wrote. Findings of one kind at one line of one
// kernel count as one.
func readFindings(ctx context.Context, file string) ([]emu.Finding, error) {
	if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	text, err := disk.ReadFile(ctx, disk.OS, file, maxFindings)
	if err != nil {
		return nil, err
	}
	var list []emu.Finding
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxFindings)
next:
	for lines.Scan() {
		var x emu.Finding
		if err := json.Unmarshal(lines.Bytes(), &x); err != nil || x.Fault == nil {
			return nil, fmt.Errorf("a finding of the library: %q: %w", lines.Text(), err)
		}
		for i, y := range list {
			if x.Kind == y.Kind && x.Line == y.Line && x.Kernel == y.Kernel {
				list[i].Runs += x.Runs
				continue next
			}
		}
		list = append(list, x)
	}
	return list, lines.Err()
}

// outcome writes the findings that are not known, for programs that read them, and returns an error
// if one has the severity fail or a higher one. As text, the library has written them already.
func (k known) outcome(w io.Writer, format string, fail emu.Severity, found []emu.Finding) error {
	bad, rest := 0, found[:0]
	for _, x := range found {
		if k.has(x.Fault) {
			continue
		}
		if rest = append(rest, x); x.Severity <= fail {
			bad++
		}
	}
	if format != "text" {
		if err := write(w, format, "", rest); err != nil {
			return err
		}
	}
	if bad > 0 {
		return fmt.Errorf("%d findings", bad)
	}
	return nil
}
