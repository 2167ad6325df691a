// Package command is what the example programs have in common: help, exit
// codes, the flags that name layers and devices.
package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"sonicmoe/examples/internal/interrupt"
)

// Program is a command's name and a sentence of what it is for.
type Program struct{ Name, Purpose string }

// Exit codes of a program.
const (
	Done   = iota // help included
	Failed        // it could not do what was asked
	Misuse        // the command line makes no sense
)

// usageError is a command line that makes no sense, whatever there is to work on.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// Usagef is the error of a wrong command line.
func Usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// Main runs a program and ends the process with its exit code. A signal to stop
// ends the context.
func (p Program) Main(run func(ctx context.Context, args []string, stdout, stderr io.Writer) error) {
	ctx, stop := interrupt.Context()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(p.Exit(err, os.Stderr))
}

// Exit says what went wrong, if anything did, and gives the exit code.
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

// Code is the exit code of an error.
func Code(err error) int {
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return Done
	case errors.As(err, new(usageError)):
		return Misuse
	}
	return Failed
}

// Flags makes the program's flag set, which says nothing by itself: see Parse.
func (p Program) Flags() *flag.FlagSet {
	set := flag.NewFlagSet(p.Name, flag.ContinueOnError)
	set.SetOutput(io.Discard)
	return set
}

// Parse reads a command line that has flags alone. Asked for help it writes the
// purpose and the flags to stdout and gives flag.ErrHelp; other errors are those
// of a wrong command line.
func (p Program) Parse(set *flag.FlagSet, args []string, stdout io.Writer) error {
	if err := p.ParseWithArguments(set, args, stdout); err != nil {
		return err
	}
	if set.NArg() > 0 {
		return Usagef("%q is no flag, all arguments are", set.Arg(0))
	}
	return nil
}

// ParseWithArguments is Parse of a command line that may have arguments behind
// its flags.
func (p Program) ParseWithArguments(set *flag.FlagSet, args []string, stdout io.Writer) error {
	switch err := set.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintf(stdout, "%s %s\n\n", p.Name, p.Purpose)
		set.SetOutput(stdout)
		set.PrintDefaults()
		set.SetOutput(io.Discard)
		return err
	case err != nil:
		return usageError{err}
	}
	return nil
}

// Terminal says that w is one, so that a line may be drawn over.
func Terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	fi, err := f.Stat()
	return err == nil && fi.Mode()&os.ModeCharDevice != 0
}
