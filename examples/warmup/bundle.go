package main

import (
	"context"
	"flag"
	"fmt"

	"sonicmoe/cache"
	"sonicmoe/examples/internal/command"
)

func exportCommand(set *flag.FlagSet, c *console) func(context.Context, []string) error {
	dir := cacheFlag(set)
	return func(ctx context.Context, args []string) error {
		path, err := oneFile("export", "bundle", args)
		if err != nil {
			return err
		}
		from, err := openToRead(*dir)
		if err != nil {
			return err
		}
		return exportTo(ctx, from, path, c)
	}
}

func importCommand(set *flag.FlagSet, c *console) func(context.Context, []string) error {
	dir, origin := cacheFlag(set), originFlags(set)
	older := set.Bool("older", false, "accept a signed bundle although a newer one of the same name was used")
	return func(ctx context.Context, args []string) error {
		path, err := oneFile("import", "bundle", args)
		if err != nil {
			return err
		}
		checks := origin.checks()
		checks.Older = *older
		into := cache.Open(cache.Options{Dir: *dir, Key: origin.key})
		r, err := into.ImportFile(ctx, path, checks)
		if err != nil {
			return err
		}
		fmt.Fprintf(c.out, "cache          %s: %d files stored, %d there already\n", into.Dir(), r.Stored, r.Unchanged)
		if r.Evicted > 0 {
			return fmt.Errorf("%d files were removed to keep the cache's size bound", r.Evicted)
		}
		return nil
	}
}

func oneFile(verb, what string, args []string) (string, error) {
	if len(args) != 1 {
		return "", command.Usagef("%s wants one %s, got %d arguments", verb, what, len(args))
	}
	return args[0], nil
}

// exportTo writes the cache to a bundle and prints what the bundle holds.
func exportTo(ctx context.Context, from *cache.Cache, path string, c *console) error {
	r, err := from.ExportFile(ctx, path)
	if err != nil {
		return err
	}
	fmt.Fprintf(c.out, "bundle         %s: %d modules, %d choices, %s\n", path, r.Modules, r.Choices, size(r.Bytes))
	fmt.Fprintf(c.out, "sha256         %s\n", r.SHA256)
	infos, err := from.List(ctx)
	if err != nil {
		return err
	}
	bare := 0
	for _, i := range infos {
		if i.Kind == "module" && i.Err == nil && len(i.Producers) == 0 {
			bare++
		}
	}
	if bare > 0 {
		fmt.Fprintf(c.out, "PTX alone      %d modules: the first start on a GPU compiles them, and saves no more than the writing of their PTX\n", bare)
	}
	if r.Skipped > 0 {
		fmt.Fprintf(c.out, "left out       %d damaged or foreign files\n", r.Skipped)
	}
	return nil
}
