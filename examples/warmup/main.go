// Command warmup fills a kernel cache for a list of layers before a program needs it. It runs
// on a machine with or without a GPU, and can carry the cache to other machines.
//
//	warmup fill -config config.json -export warm.tar   # machine code by ptxas, else by the GPU's driver
//	warmup fill -shape 1536,256,128,8 -ptx-only        # where there is neither
//	warmup import warm.tar                             # on the machines that run the layers, or
//	SONICMOE_CACHE=:warm.tar program                   # as a read-only layer below the user's cache
//	warmup list | verify | prune | export
//
// fill -layers FILE.json reads layers from a file. Only the four sizes are required; the other keys stand
// for the fields of moe.Config, and layers.go lists them:
//
//	{"layers": [{"name": "mine", "hidden": 1536, "intermediate": 256, "experts": 128, "topK": 8, "gateUp": "interleaved"}]}
//
// Run "warmup help" for all flags. Exit codes: 0 done, 1 failed or damage found, 2 wrong usage.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"sonicmoe/examples/internal/command"
)

func main() { program.Main(run) }

// verb is a subcommand.
type verb struct {
	name, args, about string
	// flags declares the subcommand's flags and returns the function that does its work.
	flags func(set *flag.FlagSet, c *console) func(ctx context.Context, args []string) error
}

// console holds the writers to which a subcommand prints.
type console struct{ out, err io.Writer }

var verbs = []verb{
	{"fill", "[layers] [-export FILE]", "compiles the kernels of layers into a cache", fillCommand},
	{"export", "FILE", "writes a cache to a bundle", exportCommand},
	{"import", "FILE", "stores a bundle's files in a cache", importCommand},
	{"list", "[DIR or FILE]", "lists the content of a cache or a bundle", listCommand},
	{"verify", "[DIR or FILE]", "reads and checks every file, and sets damaged files of a cache aside", verifyCommand},
	{"prune", "", "removes files that were not used for long, or that exceed a size", pruneCommand},
}

var program = command.Program{Name: "warmup", Purpose: "fills a kernel cache for a list of layers and carries it to other machines."}

// run runs a subcommand.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	name := ""
	if len(args) > 0 {
		name = args[0]
	}
	if slices.Contains([]string{"help", "-h", "-help", "--help"}, name) {
		fmt.Fprintf(stdout, "%s %s\n\n", program.Name, program.Purpose)
		for _, v := range verbs {
			_ = v.run(ctx, []string{"-h"}, stdout, stderr) // prints the help and does nothing else
			fmt.Fprintln(stdout)
		}
		return nil
	}
	names := make([]string, len(verbs))
	for i, v := range verbs {
		if names[i] = v.name; v.name == name {
			return v.run(ctx, args[1:], stdout, stderr)
		}
	}
	got := "missing"
	if name != "" {
		got = strconv.Quote(name)
	}
	return command.Usagef("the command is %s, want one of %s", got, strings.Join(names, ", "))
}

func (v verb) run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	p := command.Program{Name: program.Name + " " + v.name, Purpose: v.args + "\n    " + v.about}
	set := p.Flags()
	work := v.flags(set, &console{stdout, stderr})
	arguments, err := p.ParseWithArguments(set, args, stdout)
	if err != nil {
		return err
	}
	return work(ctx, arguments)
}
