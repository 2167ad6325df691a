package cache

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"
)

// Info describes one stored file.
type Info struct {
	Kind Kind
	// Key is the file's name.
	Key Key
	// Label is a module's label or the key string of a choice.
	Label string
	// Producers are those of a module's images.
	Producers []string
	// Bytes is the file's size, Used its last use, exact to an hour.
	Bytes int64
	Used  time.Time
	// Path is where it lies, ReadOnly whether that is a read-only layer.
	Path     string
	ReadOnly bool
	// Err is nil for a sound file. Otherwise it says what is wrong and is an
	// ErrDamaged, an ErrVersion or an error of reading.
	Err error
}

// List reads and checks every stored file of every layer and changes nothing.
// They come layer by layer, the most recently used first; damaged ones carry
// their error. The error is of a directory that can't be listed or of ctx; what
// was found before it is returned with it.
func (c *Cache) List(ctx context.Context) ([]Info, error) {
	var infos []Info
	err := c.each(ctx, func(_ *layer, _ file, info Info, _ fs.FileInfo) { infos = append(infos, info) })
	return infos, err
}

// VerifyReport is what Verify found.
type VerifyReport struct {
	// Sound is how many files hold what was stored, Bytes their size.
	Sound int
	Bytes int64
	// Damaged are those that don't. They are set aside, except in read-only
	// layers.
	Damaged []Info
	// Unreadable are those that could not be read or are of another format
	// version, which another version of this package may still use. They stay.
	Unreadable []Info
}

// Verify reads every file of every layer, sets damaged ones aside and reports.
func (c *Cache) Verify(ctx context.Context) (VerifyReport, error) {
	var r VerifyReport
	err := c.each(ctx, func(l *layer, f file, info Info, fi fs.FileInfo) {
		switch {
		case info.Err == nil:
			r.Sound++
			r.Bytes += info.Bytes
		case errors.Is(info.Err, ErrDamaged):
			c.reportDamage(l, f.name, fi, info.Err)
			r.Damaged = append(r.Damaged, info)
		default:
			r.Unreadable = append(r.Unreadable, info)
		}
	})
	return r, err
}

// each visits the modules and choices of all layers.
func (c *Cache) each(ctx context.Context, visit func(*layer, file, Info, fs.FileInfo)) error {
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
			info, fi := l.describe(f)
			if errors.Is(info.Err, fs.ErrNotExist) {
				continue // removed since the scan
			}
			visit(l, f, info, fi)
		}
	}
	return errors.Join(errs...)
}

// describe reads one file.
func (l *layer) describe(f file) (Info, fs.FileInfo) {
	info := Info{Kind: f.kind, Key: f.key, Bytes: f.size, Used: f.used, Path: l.path(f.name), ReadOnly: !l.writable}
	data, fi, err := l.read(f.name)
	if err != nil {
		info.Err = err
		return info, fi
	}
	switch f.kind {
	case KindModule:
		e, err := decodeEntry(data, f.key)
		info.Label, info.Err = e.Label, err
		for _, im := range e.Images {
			info.Producers = append(info.Producers, im.Producer)
		}
	case KindChoice:
		info.Label, _, info.Err = decodeChoice(data, f.key)
	}
	return info, fi
}
