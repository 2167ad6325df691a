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

	"sonicmoe/examples/emulate/internal/findings"
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

// runFlags has the values of run's flags.
type runFlags struct {
	options.Run
	library, format string
	fails           emu.Severity
}

// parseRun reads run's command line. It returns the program and its arguments.
func parseRun(ctx context.Context, args []string, stdout io.Writer) (f runFlags, words []string, err error) {
	flags := aboutRun.Flags()
	flags.StringVar(&f.library, "library", "", "the shared library of package cudart; the default is "+libraryName+" next to this program or in the working directory")
	flags.IntVar(&f.Check, "check", 0, "`number` of random orders in which each launch runs, in addition to the earliest and the latest; 0 runs it once")
	flags.IntVar(&f.Explore, "explore", 0, "instead, run each launch systematically in this `number` of orders")
	flags.BoolVar(&f.Races, "races", false, "look for races in the one run of each launch")
	flags.BoolVar(&f.Stop, "stop", false, "end a launch at its first finding; without it the program goes on after races, missing proxy fences and uninitialised reads, as on a GPU")
	flags.BoolVar(&f.Strict, "strict", false, "also demand proxy fences after cp.async")
	flags.BoolVar(&f.NaN, "nan", false, "note the first NaN or infinity that each cluster makes")
	flags.Uint64Var(&f.Seed, "seed", 0, "`seed` of the first random order")
	flags.IntVar(&f.SMs, "sms", options.DefaultSMs, "`number` of multiprocessors that the device has")
	knownFile := flags.String("known", "", "`file` of findings not to report, one \"LINE RULE\" a line")
	flags.StringVar(&f.format, "format", "text", "`format` of findings: text, json or sarif. The last two are written after the program's output")
	flags.StringVar(&f.HTML, "html", "", "write an HTML page for each finding into a `folder`")
	flags.StringVar(&f.Trace, "trace", "", "write a trace of the first launch of each kernel into a `folder`, for Perfetto and Chrome")
	flags.IntVar(&f.CTAs, "ctas", 1, "`number` of CTAs that -trace records, the first of the grid")
	flags.StringVar(&f.PTX, "ptx", "", "write the PTX of the program's kernels, whose lines findings name, into a `folder`")
	fail := flags.String("fail", "strict", "least `severity` of a finding that sets exit status 1: error, strict or note")
	words, err = aboutRun.ParseLeading(flags, args, stdout)
	switch {
	case err != nil:
		return f, nil, err
	case len(words) == 0:
		return f, nil, command.Usagef("run needs a program")
	case f.Check < 0 || f.Explore < 0 || f.Check > 0 && f.Explore > 0 || f.SMs < 1 || f.CTAs < 1:
		return f, nil, command.Usagef("-check is %d, -explore %d, -sms %d and -ctas %d: -check and -explore must be 0 or more, and not both above 0; -sms and -ctas must be above 0", f.Check, f.Explore, f.SMs, f.CTAs)
	case f.format != "text" && f.format != "json" && f.format != "sarif":
		return f, nil, command.Usagef("-format is %q, must be text, json or sarif", f.format)
	}
	if f.fails, err = severityOf(*fail); err != nil || *knownFile == "" {
		return f, words, err
	}
	lines, err := command.ReadText(ctx, *knownFile)
	if err == nil {
		f.Known, err = findings.ReadKnown(lines)
	}
	return f, words, err
}

// runProgram runs a CUDA program with package cudart in the place of CUDA's libraries.
func runProgram(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f, words, err := parseRun(ctx, args, stdout)
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "emulate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	file, err := link(folder, f.library)
	if err != nil {
		return err
	}
	for _, name := range []*string{&f.HTML, &f.Trace, &f.PTX} {
		if err := makeFolder(name); err != nil {
			return err
		}
	}
	f.Findings, f.Quiet = filepath.Join(folder, "findings"), f.format != "text"
	program := exec.CommandContext(ctx, words[0], words[1:]...)
	program.Stdin, program.Stdout, program.Stderr = os.Stdin, stdout, stderr
	program.Env = append(os.Environ(), options.Variable+"="+f.Text(), "LD_PRELOAD="+file,
		"LD_LIBRARY_PATH="+folder+string(os.PathListSeparator)+os.Getenv("LD_LIBRARY_PATH"))
	ended := program.Run()
	var exited *exec.ExitError
	if ended != nil && !errors.As(ended, &exited) {
		return ended
	}
	found, err := readFindings(ctx, f.Findings)
	if err != nil {
		return err
	}
	if err := outcome(stdout, f.format, f.fails, found); err != nil {
		return err
	}
	if exited != nil && exited.ExitCode() > 0 {
		return command.Status(exited.ExitCode())
	}
	return ended
}

// makeFolder makes a folder for the library and replaces its name by the absolute path. The program may
// change its working directory.
func makeFolder(name *string) (err error) {
	if *name == "" {
		return nil
	}
	if *name, err = filepath.Abs(*name); err != nil {
		return err
	}
	return os.MkdirAll(*name, 0o755)
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

// outcome writes the findings and returns an error if one has the severity fail or
// a higher one. In the format text it writes nothing, because the library has written its findings
// to standard error already.
func outcome(w io.Writer, format string, fail emu.Severity, found []emu.Finding) error {
	bad := 0
	for _, x := range found {
		if x.Severity <= fail {
			bad++
		}
	}
	if format != "text" {
		if err := write(w, format, "", found); err != nil {
			return err
		}
	}
	if bad > 0 {
		return counted(bad)
	}
	return nil
}
