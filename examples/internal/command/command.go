// Package command has the parts that all programs share: help, exit codes and signals. It imports
// no device, so that a program that needs none is a static binary.
package command

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// Program describes a command.
type Program struct {
	Name string
	// Purpose is a sentence about the program. Help prints it after the name.
	Purpose string
	// Drain is the longest time from the stop signal to the end of the process. Zero means 900
	// ms.
	Drain time.Duration
}

// These are the exit codes of a program.
const (
	Done   = iota // done; also the code after help
	Failed        // the program could not do its work
	Misuse        // the command line is wrong
)

// usageError is the error of a wrong command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// Usagef returns the error of a wrong command line.
func Usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// Main runs a program and ends the process with the program's exit code. SIGINT (Ctrl-C) or
// SIGTERM (Slurm, Kubernetes) ends the context, so that the program can remove half-written
// files and end its worker processes. The process ends p.Drain after the signal, even if run
// still waits for something. A second signal ends the process at once.
func (p Program) Main(run func(ctx context.Context, args []string, stdout, stderr io.Writer) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	returned := context.AfterFunc(ctx, func() {
		time.Sleep(cmp.Or(p.Drain, 900*time.Millisecond))
		fmt.Fprintf(os.Stderr, "%s: ended by a signal in the middle of its work\n", p.Name)
		os.Exit(Failed)
	})
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	returned()
	stop()
	os.Exit(p.Exit(err, os.Stderr))
}

// Status is the error of a program that started another one: the other ended with this exit code.
type Status int

func (s Status) Error() string { return fmt.Sprintf("the program ended with exit status %d", int(s)) }

// Exit prints the error, if there is one, and returns the exit code.
func (p Program) Exit(err error, stderr io.Writer) int {
	code := Code(err)
	if code != Done {
		fmt.Fprintf(stderr, "%s: %v\n", p.Name, err)
	}
	if code == Misuse {
		fmt.Fprintf(stderr, "%s -h lists the flags\n", p.Name)
	}
	return code
}

// Code returns the exit code of an error.
func Code(err error) int {
	var status Status
	switch {
	case errors.As(err, &status):
		return int(status)
	case err == nil, errors.Is(err, flag.ErrHelp):
		return Done
	case errors.As(err, new(usageError)):
		return Misuse
	}
	return Failed
}

// Flags returns a flag set that prints nothing. Parse prints its help.
func (p Program) Flags() *flag.FlagSet {
	set := flag.NewFlagSet(p.Name, flag.ContinueOnError)
	set.SetOutput(io.Discard)
	return set
}

// Parse reads a command line of flags. For -h it writes the purpose and the flags to
// stdout and returns flag.ErrHelp. Any other error is a usage error.
func (p Program) Parse(set *flag.FlagSet, args []string, stdout io.Writer) error {
	rest, err := p.ParseWithArguments(set, args, stdout)
	if err == nil && len(rest) > 0 {
		return Usagef("%q is no flag, and there are no other arguments", rest[0])
	}
	return err
}

// ParseWithArguments is like [Program.Parse] for a command line that also has arguments,
// before, between or after the flags. It returns the arguments. Everything after -- is an
// argument.
func (p Program) ParseWithArguments(set *flag.FlagSet, args []string, stdout io.Writer) (arguments []string, err error) {
	for {
		rest, err := p.ParseLeading(set, args, stdout)
		if err != nil {
			return nil, err
		}
		read := len(args) - len(rest)
		if len(rest) == 0 || read > 0 && args[read-1] == "--" {
			return append(arguments, rest...), nil
		}
		arguments, args = append(arguments, rest[0]), rest[1:]
	}
}

// ParseLeading is like [Program.Parse] for a command line whose flags come before its arguments.
// It returns the arguments, which may look like flags.
func (p Program) ParseLeading(set *flag.FlagSet, args []string, stdout io.Writer) (arguments []string, err error) {
	switch err := set.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintf(stdout, "%s %s\n\n", p.Name, p.Purpose)
		set.SetOutput(stdout)
		set.PrintDefaults()
		set.SetOutput(io.Discard)
		return nil, err
	case err != nil:
		return nil, usageError{err}
	}
	return set.Args(), nil
}

// Terminal reports whether w is a terminal, where a printed line can be overwritten.
func Terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	fi, err := f.Stat()
	return err == nil && fi.Mode()&os.ModeCharDevice != 0
}
