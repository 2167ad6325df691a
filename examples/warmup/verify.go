package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/examples/internal/command"
	"sonicmoe/jit"
)

// verify holds the flags of the subcommand verify.
type verify struct {
	*console
	dir       *string
	origin    *origin
	recompile bool
	by        string
}

func verifyCommand(set *flag.FlagSet, c *console) func(context.Context, []string) error {
	v := &verify{console: c, dir: cacheFlag(set), origin: originFlags(set)}
	set.BoolVar(&v.recompile, "recompile", false, "compile every module again and compare the machine code")
	set.StringVar(&v.by, "by", auto, "with -recompile: the `compiler`: ptxas, driver, or auto, which is ptxas if it is found, else the driver")
	return v.run
}

func (v *verify) run(ctx context.Context, args []string) error {
	place, err := onePlace("verify", *v.dir, args)
	if err != nil {
		return err
	}
	if v.by != auto && !v.recompile {
		return command.Usagef("-by needs -recompile, which is not given")
	}
	var from *cache.Cache
	if fi, err := os.Stat(place); err == nil && fi.Mode().IsRegular() {
		r, err := cache.Open(cache.Options{Dir: "off", Key: v.origin.key}).CheckBundle(ctx, place, v.origin.checks())
		if err != nil {
			return err
		}
		fmt.Fprintf(v.out, "sound bundle: %d modules, %d choices, %s\nsha256 %s\n", r.Modules, r.Choices, size(r.Bytes), r.SHA256)
		if !r.Signed.IsZero() {
			fmt.Fprintf(v.out, "signed %s\n", r.Signed.UTC().Format(time.RFC3339))
		}
		if !v.recompile {
			return nil
		}
		if from, err = openToRead(place); err != nil {
			return err
		}
	} else if *v.origin != (origin{}) {
		return command.Usagef("-sha256 and -key need a bundle, which %q is not", place)
	} else if from, err = openToVerify(place); err != nil {
		return err
	}
	return v.files(ctx, from)
}

// openToVerify opens a directory for writing, so that verify can set damaged files aside. If the
// directory cannot be written, openToVerify opens it for reading.
func openToVerify(place string) (*cache.Cache, error) {
	if err := notOff(place); err != nil {
		return nil, err
	}
	if place != "" { // a missing directory must be an error, and must not be created
		if _, err := openToRead(place); err != nil {
			return nil, err
		}
	}
	from := cache.Open(cache.Options{Dir: place})
	if from.Err() != nil {
		return openToRead(place)
	}
	return from, nil
}

// files checks the files of a cache.
func (v *verify) files(ctx context.Context, from *cache.Cache) error {
	var checks []func(ctx context.Context, key string, ptx []byte, code map[string][]byte) error
	var again *jit.Recompile
	if v.recompile {
		t := driver.H200()
		by, _, done, err := compiler(ctx, v.by, t)
		if err != nil {
			return err
		}
		defer done()
		again = &jit.Recompile{By: by, Arch: t.Arch}
		checks = append(checks, again.Check)
	}
	r, err := from.Verify(ctx, checks...)
	if err != nil {
		return err
	}
	fmt.Fprintf(v.out, "%d sound files, %s\n", r.Sound, size(r.Bytes))
	for _, i := range append(r.Damaged, r.Unreadable...) {
		fmt.Fprintf(v.out, "%s: %v\n", i.Path, i.Err)
	}
	if again != nil {
		fmt.Fprintf(v.out, "%d images compiled again by %s: the same bytes\n", again.Same(), again.By.Producer())
		left := again.Unchecked()
		for _, what := range slices.Sorted(maps.Keys(left)) {
			fmt.Fprintf(v.out, "not compared: %d of %s\n", left[what], what)
		}
		if err := again.Err(); err != nil {
			return err
		}
	}
	if n := len(r.Damaged); n > 0 {
		return fmt.Errorf("%d damaged files", n)
	}
	return nil
}
