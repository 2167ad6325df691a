// Command plan prints the costs of expert layers before anything runs: the bytes of weights, of
// saved activations and of scratch memory, the rows that tiles add as padding, and the times of
// an H200's roofline. It needs no GPU.
//
//	go run ./examples/plan                                    # published models
//	go run ./examples/plan Qwen3-30B-A3B "DeepSeek-V3"        # some of them
//	go run ./examples/plan -tokens 4096 -plot plan.png ~/models/mine
//	go run ./examples/plan -ranks 8,64 Qwen3-30B-A3B          # memory and bytes of a rank
//	go run ./examples/plan -works                             # what a layer computes of each
//
// An argument is the name of a published model, or the path of a config.json or of its folder.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"

	"sonicmoe/examples/internal/command"
	"sonicmoe/examples/internal/picture"
	"sonicmoe/internal/published"
	"sonicmoe/moe"
	"sonicmoe/moe/checkpoint"
)

var program = command.Program{Name: "plan", Purpose: `[flags] [model ...] prints the costs of expert layers before anything runs. It needs no GPU.
A model is a published one by name, or a config.json or its folder; none: all published ones.`}

func main() { program.Main(run) }

func run(ctx context.Context, args []string, out, _ io.Writer) error {
	set := program.Flags()
	tokens := set.Int("tokens", 16384, "`number` of tokens of a call")
	plot := set.String("plot", "", "draw the costs to this .png or .svg `file`")
	table := set.Bool("works", false, "write a Markdown table of what a layer computes of each model, and nothing else")
	over := set.String("ranks", "", "print what a rank needs and sends if the experts are spread over `N` GPUs, or over each of 8,64,512 GPUs")
	sums := set.Bool("partial-sums", false, "with -ranks: each rank sends a sum for each token, and not a row for each of its experts")
	names, err := program.ParseWithArguments(set, args, out)
	if err != nil {
		return err
	}
	if *sums && *over == "" {
		return command.Usagef("-partial-sums is set, must not be without -ranks: one GPU sends no sums")
	}
	var ranks []int
	if *over != "" {
		if ranks, err = ranksOf(*over); err != nil {
			return err
		}
	}
	if *plot != "" {
		if err := picture.Check(*plot); err != nil {
			return err
		}
	}
	models, err := find(ctx, names)
	if err != nil {
		return err
	}
	plans, err := estimate(models, *tokens)
	if err != nil {
		return err
	}
	if *table {
		return works(out, plans)
	}
	if ranks != nil {
		return writeRanks(out, plans, ranks, *tokens, *sums)
	}
	if err := write(out, plans, *tokens); err != nil {
		return err
	}
	if *plot == "" {
		return nil
	}
	return draw(plans, *tokens, *plot)
}

// find returns the models with the given names and paths. Without any it returns all published
// models.
func find(ctx context.Context, names []string) ([]checkpoint.Model, error) {
	all, err := published.Models()
	if err != nil || len(names) == 0 {
		return all, err
	}
	var list []checkpoint.Model
	for _, name := range names {
		m, err := findOne(ctx, all, name)
		if err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	return list, nil
}

func findOne(ctx context.Context, all []checkpoint.Model, name string) (checkpoint.Model, error) {
	var known []string
	hyphens := strings.NewReplacer(" ", "-").Replace // folders have hyphens where names have spaces
	for _, m := range all {
		if strings.EqualFold(hyphens(m.Name), hyphens(name)) {
			return m, nil
		}
		known = append(known, m.Name)
	}
	path, data, err := command.ReadConfig(ctx, name)
	if errors.Is(err, fs.ErrNotExist) && path == name {
		return checkpoint.Model{}, fmt.Errorf("%q is neither a file nor one of %s", name, strings.Join(known, ", "))
	}
	if err != nil {
		return checkpoint.Model{}, err
	}
	m, err := checkpoint.Read(data)
	if err != nil {
		return checkpoint.Model{}, fmt.Errorf("%s: %w", path, err)
	}
	m.Config = m.Packed()
	m.Name = m.Type + " " + filepath.Base(filepath.Dir(path))
	return m, nil
}

// plan holds a model and its figures.
type plan struct {
	checkpoint.Model
	moe.Cost
	// beyond is the reason why the kernels cannot compute the layer, or nil.
	beyond error
}

func estimate(models []checkpoint.Model, tokens int) ([]plan, error) {
	var list []plan
	for _, m := range models {
		f, err := moe.Estimate(m.Config, moe.Workload{Tokens: tokens})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.Name, err)
		}
		list = append(list, plan{Model: m, Cost: f, beyond: moe.Check(m.Config)})
	}
	return list, nil
}
