package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"sonicmoe/cache"
)

// cacheFlag declares -cache.
func cacheFlag(set *flag.FlagSet) *string {
	return set.String("cache", "", "cache `directory` (default: the user's)")
}

// openToRead opens a directory or a bundle without writing to it; "" is the
// user's cache.
func openToRead(place string) (*cache.Cache, error) {
	if place == "" && os.Getenv(cache.EnvDir) == "" {
		dir, err := cache.DefaultDir()
		if err != nil {
			return nil, err
		}
		place = dir
	}
	c := cache.Open(cache.Options{Dir: place, ReadOnly: true})
	return c, c.Err()
}

func listCommand(set *flag.FlagSet, c *console) func(context.Context, []string) error {
	dir := cacheFlag(set)
	return func(ctx context.Context, args []string) error {
		place, err := onePlace("list", *dir, args)
		if err != nil {
			return err
		}
		from, err := openToRead(place)
		if err != nil {
			return err
		}
		infos, err := from.List(ctx)
		var bytes int64
		for _, i := range infos {
			bytes += i.Bytes
			fmt.Fprintf(c.out, "%s  %-6s  %8s  %s  %s%s\n", i.Key.String()[:12], i.Kind, size(i.Bytes), i.Used.Format("2006-01-02"), i.Label, remark(i))
		}
		fmt.Fprintf(c.out, "%d files, %s\n", len(infos), size(bytes))
		return err
	}
}

// remark is who made an entry's machine code, or what is wrong with it.
func remark(i cache.Info) string {
	switch {
	case i.Err != nil:
		return "  " + i.Err.Error()
	case i.Kind != cache.KindModule:
		return ""
	case len(i.Producers) == 0:
		return "  [PTX only]"
	}
	return "  [" + strings.Join(i.Producers, ", ") + "]"
}

// onePlace is the directory or bundle of an argument or of -cache.
func onePlace(command, dir string, args []string) (string, error) {
	switch {
	case len(args) == 0:
		return dir, nil
	case len(args) == 1 && dir == "":
		return args[0], nil
	}
	return "", usagef("%s wants one directory or bundle", command)
}

func pruneCommand(set *flag.FlagSet, c *console) func(context.Context, []string) error {
	dir := cacheFlag(set)
	most := set.Int64("max-mb", 0, "keep at most so many `MiB`, the most recently used; 0: no bound")
	age := set.Duration("max-age", 0, "remove what was not used for so long, such as 720h; 0: no bound")
	all := set.Bool("all", false, "remove everything")
	return func(ctx context.Context, args []string) error {
		if len(args) > 0 {
			return usagef("%q is no flag of prune", args[0])
		}
		if *most < 0 || *age < 0 {
			return usagef("-max-mb and -max-age are bounds, not less than 0")
		}
		from := cache.Open(cache.Options{Dir: *dir})
		if from.Dir() == "" {
			return errors.Join(from.Err(), errors.New("there is no cache directory to prune"))
		}
		o := cache.PruneOptions{MaxBytes: *most << 20, MaxAge: *age}
		if *all {
			o.MaxBytes = -1
		}
		start := time.Now()
		r, err := from.Prune(ctx, o)
		if err != nil {
			return err
		}
		fmt.Fprintf(c.out, "%s: %d files removed, %s freed, %s left, %v\n", from.Dir(), r.Removed, size(r.Freed), size(r.Left), time.Since(start).Round(time.Millisecond))
		return nil
	}
}

// size is a number of bytes for people.
func size(bytes int64) string {
	if bytes < 1<<20 {
		return fmt.Sprintf("%.1f KiB", float64(bytes)/(1<<10))
	}
	return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
}
