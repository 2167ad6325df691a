// Command warmup fills a kernel cache for a list of layers before anybody
// waits for it, on a machine with or without a GPU, and carries it to others.
//
//	warmup fill -config config.json -export warm.tar   # machine code by ptxas, else by the GPU's driver
//	warmup fill -shape 1536,256,128,8 -ptx-only        # where there is neither
//	warmup import warm.tar                             # on the machines that run the layers, or
//	SONICMOE_CACHE=:warm.tar program                   # as a read-only layer behind one's own cache
//	warmup list | verify | prune | export | keygen
//
// Run "warmup help" for all flags. Exit codes: 0 done, 1 failed or damage
// found, 2 wrong usage.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"sonicmoe/examples/internal/command"
	"sonicmoe/examples/internal/interrupt"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// verb is one of the words after warmup.
type verb struct {
	name, args, about string
	// flags declares the command's flags on set and gives its work.
	flags func(set *flag.FlagSet, c *console) func(ctx context.Context, args []string) error
}

// console is where a command writes.
type console struct{ out, err io.Writer }

var verbs = []verb{
	{"fill", "[layers] [-export FILE]", "compile the kernels of layers into a cache", fillCommand},
	{"export", "FILE", "write a cache as one bundle", exportCommand},
	{"import", "FILE", "store a bundle's files in a cache", importCommand},
	{"keygen", "FILE", "make a pair of ed25519 keys: FILE signs bundles, FILE.pub checks them", keygenCommand},
	{"list", "[DIR or FILE]", "say what a cache or a bundle holds", listCommand},
	{"verify", "[DIR or FILE]", "read every file; damaged ones of a cache are set aside", verifyCommand},
	{"prune", "", "remove what was not used for long, or what exceeds a size", pruneCommand},
}

var program = command.Program{Name: "warmup", Purpose: "fills a kernel cache for a list of layers and carries it to other machines."}

func run(args []string, stdout, stderr io.Writer) int {
	// An interrupt ends the work in order: no half-written bundle stays.
	ctx, stop := interrupt.Context()
	defer stop()
	return program.Exit(dispatch(ctx, args, &console{stdout, stderr}), stderr)
}

// dispatch finds the command and runs it.
func dispatch(ctx context.Context, args []string, c *console) error {
	if len(args) == 0 {
		return command.Usagef("no command, want one of fill, export, import, keygen, list, verify, prune")
	}
	if args[0] == "help" || args[0] == "-h" || args[0] == "-help" || args[0] == "--help" {
		help(c.out)
		return nil
	}
	for _, cmd := range verbs {
		if cmd.name != args[0] {
			continue
		}
		set := flag.NewFlagSet("warmup "+cmd.name, flag.ContinueOnError)
		set.SetOutput(io.Discard)
		work := cmd.flags(set, c)
		if err := set.Parse(args[1:]); errors.Is(err, flag.ErrHelp) {
			describe(c.out, cmd)
			return err
		} else if err != nil {
			return command.Usagef("%w", err)
		}
		return work(ctx, set.Args())
	}
	return command.Usagef("unknown command %q, want one of fill, export, import, keygen, list, verify, prune", args[0])
}

func help(w io.Writer) {
	fmt.Fprintf(w, "%s %s\n\n", program.Name, program.Purpose)
	for _, cmd := range verbs {
		describe(w, cmd)
	}
}

// describe prints a command's line and its flags.
func describe(w io.Writer, cmd verb) {
	set := flag.NewFlagSet(cmd.name, flag.ContinueOnError)
	cmd.flags(set, &console{io.Discard, io.Discard})
	fmt.Fprintf(w, "warmup %s %s\n    %s\n", cmd.name, cmd.args, cmd.about)
	set.SetOutput(w)
	set.PrintDefaults()
	fmt.Fprintln(w)
}
