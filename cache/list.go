package cache

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"sonicmoe/internal/store"
)

// Info describes one stored file.
type Info struct {
	// Kind is "module" or "choice".
	Kind string
	// Key is the key in the file's name: 64 hexadecimal digits.
	Key string
	// Label is the label of a module, or the key of a choice.
	Label string
	// Producers lists the producers of the module's images.
	Producers []string
	// Bytes is the size of the file. Used is the time of its last use, accurate to an hour.
	Bytes int64
	Used  time.Time
	// Path is the path of the file. ReadOnly reports whether the file is in a read-only cache
	// layer.
	Path     string
	ReadOnly bool
	// Err is nil for an undamaged file. Otherwise it describes the damage.
	Err error
}

// List reads and checks every stored file of every cache layer. It changes nothing. The result
// is ordered by layer, and within a cache layer the most recently used file comes first. A
// damaged file has its error in Err. If a directory cannot be listed or ctx ends, List returns
// an error together with the files that it found before.
func (c *Cache) List(ctx context.Context) ([]Info, error) {
	var infos []Info
	err := c.each(ctx, func(d described) { infos = append(infos, d.Info) })
	return infos, err
}

// VerifyReport is the result of Verify.
type VerifyReport struct {
	// Sound is the number of undamaged files, and Bytes their total size.
	Sound int
	Bytes int64
	// Damaged lists the damaged files. They were set aside, except in read-only cache layers.
	Damaged []Info
	// Unreadable lists the files that could not be read or that have another format version.
	// They stay, because another version of this package may still use them.
	Unreadable []Info
}

// Verify reads every file of every cache layer, sets damaged files aside, and reports. Each
// check examines an undamaged module: the PTX, and the machine code by producer. A module for
// which a check returns an error counts as damaged. Several goroutines call a check at the same
// time.
func (c *Cache) Verify(ctx context.Context, checks ...func(ctx context.Context, key string, ptx []byte, code map[string][]byte) error) (VerifyReport, error) {
	var r VerifyReport
	var mu sync.Mutex
	var running sync.WaitGroup
	room := make(chan struct{}, runtime.GOMAXPROCS(0))
	err := c.each(ctx, func(d described) {
		room <- struct{}{}
		running.Go(func() {
			defer func() { <-room }()
			for _, check := range checks {
				if d.Err == nil && d.kind == store.KindModule && ctx.Err() == nil {
					code := map[string][]byte{}
					for _, im := range d.entry.Images {
						code[im.Producer] = im.Code
					}
					if err := check(ctx, d.Key, d.entry.PTX, code); err != nil && ctx.Err() == nil {
						d.Err = fmt.Errorf("%w: %w", errDamaged, err)
					}
				}
			}
			mu.Lock()
			defer mu.Unlock()
			r.add(c, d)
		})
	})
	running.Wait()
	byPath := func(a, b Info) int { return strings.Compare(a.Path, b.Path) }
	slices.SortFunc(r.Damaged, byPath)
	slices.SortFunc(r.Unreadable, byPath)
	if err == nil {
		err = ctx.Err()
	}
	return r, err
}

// add adds a file to the report.
func (r *VerifyReport) add(c *Cache, d described) {
	switch {
	case d.Err == nil:
		r.Sound++
		r.Bytes += d.Bytes
	case errors.Is(d.Err, errDamaged):
		c.reportDamage(d.layer, d.name, d.file, d.Err)
		r.Damaged = append(r.Damaged, d.Info)
	default:
		r.Unreadable = append(r.Unreadable, d.Info)
	}
}

// described is a stored file with its description.
type described struct {
	Info
	kind  store.Kind
	entry store.Entry // of an undamaged module
	layer *layer
	name  string
	file  fs.FileInfo
}

// each visits the modules and choices of all cache layers.
func (c *Cache) each(ctx context.Context, visit func(described)) error {
	var errs []error
	for _, l := range c.layers {
		files, err := l.scan()
		if err != nil {
			errs = append(errs, fmt.Errorf("cache: list: %w", err))
			continue
		}
		slices.SortFunc(files, func(a, b file) int {
			if d := b.used.Compare(a.used); d != 0 {
				return d
			}
			return strings.Compare(a.name, b.name)
		})
		for _, f := range files {
			if f.class != classModule && f.class != classChoice {
				continue
			}
			if err := ctx.Err(); err != nil {
				return errors.Join(append(errs, err)...)
			}
			d := l.describe(f)
			if errors.Is(d.Err, fs.ErrNotExist) {
				continue // the file was removed after the scan
			}
			visit(d)
		}
	}
	return errors.Join(errs...)
}

// describe reads and checks one file.
func (l *layer) describe(f file) described {
	d := described{layer: l, kind: f.kind, name: f.name,
		Info: Info{Kind: f.kind.String(), Key: f.key.String(), Bytes: f.size, Used: f.used, Path: l.path(f.name), ReadOnly: !l.writable}}
	var data []byte
	if data, d.file, d.Err = l.read(f.name); d.Err != nil {
		return d
	}
	switch f.kind {
	case store.KindModule:
		d.entry, d.Err = decodeEntry(data, f.key)
		d.Label = d.entry.Label
		for _, im := range d.entry.Images {
			d.Producers = append(d.Producers, im.Producer)
		}
	case store.KindChoice:
		d.Label, _, d.Err = decodeChoice(data, f.key)
	}
	return d
}
