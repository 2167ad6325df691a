package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sonicmoe/cache"
	"sonicmoe/examples/internal/command"
	"sonicmoe/internal/store"
)

// cacheFlag declares the flag -cache.
func cacheFlag(set *flag.FlagSet) *string {
	return set.String("cache", "", "cache `directory` (default: the user's)")
}

// openToRead opens a directory or a bundle read-only. If place is empty, it opens the user's
// cache.
func openToRead(place string) (*cache.Cache, error) {
	if err := notOff(place); err != nil {
		return nil, err
	}
	if place == "" && os.Getenv("SONICMOE_CACHE") == "" {
		dir, err := store.DefaultDir()
		if err != nil {
			return nil, err
		}
		place = dir
	}
	if _, err := os.Stat(place); place != "" && err != nil {
		return nil, err
	}
	o := cache.Options{Dir: place, ReadOnly: true}
	if list := filepath.SplitList(os.Getenv("SONICMOE_CACHE")); place == "" && len(list) > 1 && list[0] == "" {
		// If the user's directory does not exist yet, the other directories and bundles of the
		// cache can still be read.
		own, err := store.DefaultDir()
		if err != nil {
			return nil, err
		}
		if _, err := os.Stat(own); errors.Is(err, fs.ErrNotExist) {
			o.Dir, o.Layers = list[1], list[2:]
		}
	}
	c := cache.Open(o)
	return c, c.Err()
}

// notOff returns an error if place is empty and the user's cache is off, because an empty
// result would be misleading.
func notOff(place string) error {
	if place == "" && os.Getenv("SONICMOE_CACHE") == "off" {
		return fmt.Errorf("the cache is off by %s: name a directory or a bundle", "SONICMOE_CACHE")
	}
	return nil
}

func listCommand(set *flag.FlagSet, c *console) func(context.Context, []string) error {
	dir := cacheFlag(set)
	each := set.Bool("files", false, "print a line for each file instead of each layer")
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
		if *each {
			listFiles(c.out, infos)
		} else {
			listLayers(c.out, infos, from.GetChoice)
		}
		var bytes int64
		for _, i := range infos {
			bytes += i.Bytes
		}
		fmt.Fprintf(c.out, "%d files, %s\n", len(infos), size(bytes))
		return err
	}
}

// listFiles prints a line for each file, sorted by the layer that the file belongs to.
func listFiles(w io.Writer, infos []cache.Info) {
	slices.SortStableFunc(infos, func(a, b cache.Info) int {
		return cmp.Or(cmp.Compare(layerOf(a), layerOf(b)), cmp.Compare(a.Label, b.Label))
	})
	for _, i := range infos {
		fmt.Fprintf(w, "%s  %-6s  %10s  %s  %s%s\n", i.Key[:12], i.Kind, size(i.Bytes), i.Used.Format("2006-01-02"), i.Label, remark(i))
	}
}

// listLayers prints a line for each layer and kind of file, and a line for each damaged file.
// It marks a layer of which prune has removed some modules, until the layer is filled again.
// noted returns the notes that prune has stored.
func listLayers(w io.Writer, infos []cache.Info, noted func(key string) ([]byte, bool)) {
	type part struct{ layer, what string }
	type sum struct {
		files int
		bytes int64
	}
	sums := map[part]sum{}
	for _, i := range infos {
		if i.Err != nil {
			fmt.Fprintf(w, "%s%s\n", i.Key[:12], remark(i))
			continue
		}
		if strings.HasPrefix(i.Label, pruned) {
			continue
		}
		p := part{layerOf(i), i.Kind + "s" + remark(i)}
		s := sums[p]
		sums[p] = sum{s.files + 1, s.bytes + i.Bytes}
	}
	for _, p := range slices.SortedFunc(maps.Keys(sums), func(a, b part) int {
		return cmp.Or(cmp.Compare(a.layer, b.layer), cmp.Compare(a.what, b.what))
	}) {
		fmt.Fprintf(w, "%-52s  %4d  %10s  %s\n", p.layer, sums[p].files, size(sums[p].bytes), p.what)
	}
	has := modules(infos)
	for _, layer := range slices.Sorted(maps.Keys(has)) {
		if had, ok := noted(pruned + layer); ok {
			if n, err := strconv.Atoi(string(had)); err == nil && has[layer] < n {
				printIncomplete(w, layer, has[layer], n)
			}
		}
	}
}

// pruned begins the key of a note that prune stores on a layer. The note is the number of
// modules that the layer had before.
const pruned = "pruned "

// modules returns the number of undamaged modules of each layer.
func modules(infos []cache.Info) map[string]int {
	count := map[string]int{}
	for _, i := range infos {
		if i.Kind == "module" && i.Err == nil {
			count[layerOf(i)]++
		}
	}
	return count
}

func printIncomplete(w io.Writer, layer string, has, had int) {
	fmt.Fprintf(w, "incomplete     %s: %d of %d modules left, the next start compiles the others\n", layer, has, had)
}

// layerOf returns the layer in the label of an entry, where it follows the kernel's name.
func layerOf(i cache.Info) string {
	_, layer, ok := strings.Cut(i.Label, " d=")
	if !ok {
		return i.Label
	}
	return "d=" + layer
}

// remark returns the producers of an entry's machine code, or the entry's error.
func remark(i cache.Info) string {
	switch {
	case i.Err != nil:
		return "  " + i.Err.Error()
	case i.Kind != "module":
		return ""
	case len(i.Producers) == 0:
		return "  [PTX only]"
	}
	return "  [" + strings.Join(i.Producers, ", ") + "]"
}

// onePlace returns the directory or bundle that the argument or -cache names.
func onePlace(verb, dir string, args []string) (string, error) {
	switch {
	case len(args) == 0:
		return dir, nil
	case len(args) == 1 && dir == "":
		return args[0], nil
	}
	return "", command.Usagef("%s wants one directory or bundle", verb)
}

func pruneCommand(set *flag.FlagSet, c *console) func(context.Context, []string) error {
	dir := cacheFlag(set)
	most := set.Int64("max-mb", 0, "keep at most this many `MiB`, the most recently used (default: no bound)")
	age := set.Duration("max-age", 0, "remove files that were not used for this `time`, such as 720h (default: no bound)")
	all := set.Bool("all", false, "remove everything")
	return func(ctx context.Context, args []string) error {
		if len(args) > 0 {
			return command.Usagef("%q is no flag of prune", args[0])
		}
		if *most < 0 || *age < 0 {
			return command.Usagef("-max-mb is %d, -max-age %v: want at least 0", *most, *age)
		}
		if *all && (*most > 0 || *age > 0) {
			return command.Usagef("-all and a bound are given, want one of them")
		}
		from := cache.Open(cache.Options{Dir: *dir})
		if from.Dir() == "" {
			return errors.Join(from.Err(), errors.New("there is no cache directory to prune"))
		}
		o := cache.PruneOptions{MaxBytes: min(*most, math.MaxInt64>>20) << 20, MaxAge: *age}
		if *all {
			o.MaxBytes = -1
		}
		before, err := from.List(ctx)
		if err != nil {
			return err
		}
		start := time.Now()
		r, err := from.Prune(ctx, o)
		if err != nil {
			return err
		}
		after, err := from.List(ctx)
		if err != nil {
			return err
		}
		fmt.Fprintf(c.out, "%s: %d files removed, %s freed, %s left, %v\n", from.Dir(), r.Removed, size(r.Freed), size(r.Left), time.Since(start).Round(time.Millisecond))
		return incomplete(c.out, from, before, after)
	}
}

// incomplete prints the layers of which a prune has removed some modules. It stores a note on
// each in the cache, which list reads.
func incomplete(w io.Writer, c *cache.Cache, before, after []cache.Info) error {
	had, has := modules(before), modules(after)
	for _, layer := range slices.Sorted(maps.Keys(has)) {
		if has[layer] == had[layer] {
			continue
		}
		printIncomplete(w, layer, has[layer], had[layer])
		if n, ok := c.GetChoice(pruned + layer); ok {
			if before, err := strconv.Atoi(string(n)); err == nil && before > had[layer] {
				continue // an earlier prune has noted a larger number
			}
		}
		if err := c.PutChoice(pruned+layer, []byte(strconv.Itoa(had[layer]))); err != nil {
			return err
		}
	}
	return nil
}

// size returns a number of bytes as text.
func size(bytes int64) string {
	if bytes < 1<<20 {
		return fmt.Sprintf("%.1f KiB", float64(bytes)/(1<<10))
	}
	return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
}
