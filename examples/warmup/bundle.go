package main

import (
	"context"
	"flag"
	"fmt"

	"sonicmoe/cache"
	"sonicmoe/examples/internal/command"
	"sonicmoe/internal/disk"
)

func exportCommand(set *flag.FlagSet, c *console) func(context.Context, []string) error {
	dir, sign := cacheFlag(set), signFlag(set)
	return func(ctx context.Context, args []string) error {
		path, err := oneFile("export", "bundle", args)
		if err != nil {
			return err
		}
		from, err := openToRead(*dir)
		if err != nil {
			return err
		}
		return exportTo(ctx, from, path, *sign, c)
	}
}

func importCommand(set *flag.FlagSet, c *console) func(context.Context, []string) error {
	dir, origin := cacheFlag(set), originFlags(set)
	return func(ctx context.Context, args []string) error {
		path, err := oneFile("import", "bundle", args)
		if err != nil {
			return err
		}
		options, err := origin.options(ctx, path)
		if err != nil {
			return err
		}
		into := cache.Open(cache.Options{Dir: *dir})
		r, err := into.ImportFile(ctx, path, options...)
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
		return "", command.Usagef("%s wants one %s, got %d arguments (flags come first)", verb, what, len(args))
	}
	return args[0], nil
}

// exportTo writes a bundle, and its signature if there is a key.
func exportTo(ctx context.Context, from *cache.Cache, path, keyFile string, c *console) error {
	sign, err := signer(ctx, keyFile)
	if err != nil {
		return err
	}
	r, err := from.ExportFile(ctx, path)
	if err != nil {
		return err
	}
	fmt.Fprintf(c.out, "bundle         %s: %d modules, %d choices, %s\n", path, r.Modules, r.Choices, size(r.Bytes))
	fmt.Fprintf(c.out, "sha256         %v\n", r.Digest)
	if r.Skipped > 0 {
		fmt.Fprintf(c.out, "left out       %d damaged or foreign files\n", r.Skipped)
	}
	if sign == nil {
		return nil
	}
	if err := sign(path, r.Digest); err != nil {
		return err
	}
	fmt.Fprintf(c.out, "signature      %s\n", path+signatureSuffix)
	return nil
}

// checkedBundle reads and checks a whole bundle.
func checkedBundle(ctx context.Context, path string, options []cache.BundleOption) (cache.BundleReport, error) {
	f, _, err := disk.OpenRegular(disk.OS, path, true)
	if err != nil {
		return cache.BundleReport{}, err
	}
	defer f.Close()
	r, err := cache.CheckBundle(ctx, f, options...)
	if err != nil {
		return r, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}
